"""Copying artifacts to a verifier."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from pytest_agentbench.errors import AgentError
from pytest_agentbench.sandbox.sandbox import LARGEST, unpack


def tar_of(*entries: tuple[str, bytes, str]) -> bytes:
    """Returns a tar with entries of (name, type, link or content)."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, kind, text in entries:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            if kind == tarfile.REGTYPE:
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
            else:
                entry.linkname = text
                archive.addfile(entry)
    return packed.getvalue()


def test_only_files_and_folders(tmp_path: Path) -> None:
    """Only files and folders are copied. A symbolic link could show the verifier its own tests as if the agent had made them.

    Pipes and devices are left out, too. A hard link is copied if the file that it names is copied.
    """
    tar = tar_of(
        ("app", tarfile.DIRTYPE, ""),
        ("app/answer.txt", tarfile.REGTYPE, "42"),
        ("app/stolen.txt", tarfile.SYMTYPE, "/tests/expected.txt"),
        ("app/near.txt", tarfile.SYMTYPE, "answer.txt"),
        ("app/hard.txt", tarfile.LNKTYPE, "app/answer.txt"),
        ("app/harder.txt", tarfile.LNKTYPE, "app/hard.txt"),
        ("app/hard-stolen.txt", tarfile.LNKTYPE, "app/stolen.txt"),
        ("app/hard-outside.txt", tarfile.LNKTYPE, "/etc/passwd"),
        ("app/hard-later.txt", tarfile.LNKTYPE, "app/later.txt"),
        ("app/later.txt", tarfile.REGTYPE, "7"),
        ("app/pipe", tarfile.FIFOTYPE, ""),
    )

    unpack(tar, tmp_path)

    names = ["answer.txt", "hard.txt", "harder.txt", "later.txt"]
    assert ["app", *(f"app/{name}" for name in names)] == sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*"))
    assert ["42", "42", "42", "7"] == [(tmp_path / "app" / name).read_text() for name in names]


@pytest.mark.parametrize("name", ["../out.txt", "/../../out.txt", "app/../../out.txt"])
def test_paths_out_of_the_folder(tmp_path: Path, name: str) -> None:
    """A path that leads out of the folder is refused, and nothing is written there."""
    inside = tmp_path / "inside"
    inside.mkdir()

    with pytest.raises(AgentError, match="cannot be unpacked"):
        unpack(tar_of((name, tarfile.REGTYPE, "x")), inside)

    assert ["inside"] == [each.name for each in tmp_path.iterdir()]


def test_too_large(tmp_path: Path) -> None:
    """A sparse file, which is small in a tar but large on a disk, is refused before anything is written."""
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(LARGEST + 1)
    subprocess.run(["tar", "-cSf", "holes.tar", "holes"], cwd=tmp_path, check=True)
    inside = tmp_path / "inside"
    inside.mkdir()

    with pytest.raises(AgentError, match="more than 256 MiB"):
        unpack((tmp_path / "holes.tar").read_bytes(), inside)

    assert [] == [*inside.iterdir()]


def test_no_tar(tmp_path: Path) -> None:
    """Data that is not a tar is an error that says so."""
    with pytest.raises(AgentError, match="cannot be unpacked"):
        unpack(b"x" * 2000, tmp_path)
