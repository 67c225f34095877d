"""Reads and writes the archives of the reference runs. Equal contents give equal bytes.

An archive has the inputs of a run in `inputs/`, and the files that the code made from them in `expected/`. The two repeat each other, so
one archive for both is small.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Mapping
from pathlib import Path

RUNS = Path(__file__).parent / "runs"
INPUTS, EXPECTED = "inputs/", "expected/"

Files = Mapping[str, bytes]  # path -> content


def archive_of(name: str) -> Path:
    """Returns the path of the archive of a reference run."""
    return RUNS / f"{name}.tar.xz"


def stored() -> list[str]:
    """Returns the names of the reference runs that are stored."""
    return sorted(path.name.removesuffix(".tar.xz") for path in RUNS.glob("*.tar.xz"))


def below(folder: str, files: Files) -> dict[str, bytes]:
    """Returns the files in a folder of an archive, by their paths in the folder."""
    return {name.removeprefix(folder): content for name, content in files.items() if name.startswith(folder)}


def under(folder: str, files: Files) -> dict[str, bytes]:
    """Puts files into a folder of an archive: returns them by their paths in the archive."""
    return {folder + name: content for name, content in files.items()}


def write_archive(path: Path, files: Files) -> None:
    """Writes an archive without times and owners of files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def read_archive(path: Path) -> dict[str, bytes]:
    """Returns the contents of the files of an archive, by path."""
    with tarfile.open(path, mode="r:xz") as archive:
        return {entry.name: file.read() for entry in archive if (file := archive.extractfile(entry))}


def unpack(files: Files, directory: Path) -> None:
    """Writes files below a directory."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
