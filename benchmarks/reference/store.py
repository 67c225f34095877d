"""The stored files of the reference runs: a small archive for each, whose bytes depend on its contents alone.

What a run is computed from lies under `inputs/`, what the code made of it under `expected/`. Both repeat each other, which one archive
compresses away.
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
    """Returns the files of one folder of an archive, by their paths in it."""
    return {name.removeprefix(folder): content for name, content in files.items() if name.startswith(folder)}


def under(folder: str, files: Files) -> dict[str, bytes]:
    """Returns files by their paths in an archive, in which they lie in one folder."""
    return {folder + name: content for name, content in files.items()}


def write_archive(path: Path, files: Files) -> None:
    """Writes files with neither times nor owners."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def read_archive(path: Path) -> dict[str, bytes]:
    """Returns the files of an archive."""
    with tarfile.open(path, mode="r:xz") as archive:
        return {entry.name: file.read() for entry in archive if (file := archive.extractfile(entry))}


def unpack(files: Files, directory: Path) -> None:
    """Writes files below a directory."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
