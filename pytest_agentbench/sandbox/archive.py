"""Files on their way into a sandbox and out of it: the tar that the Docker Engine speaks."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from pytest_agentbench.sandbox.sandbox import LOGS, SCRIPT, TESTS, File

_FRAME = 1 << 16  # bytes of a tar that are not its file's
_IN_MEMORY = 8 << 20  # bytes of a tar; a larger one is a file

_KINDS = {tarfile.DIRTYPE: "a folder", tarfile.SYMTYPE: "a link", tarfile.FIFOTYPE: "a pipe"}


def packed(source: Path, target: str) -> IO[bytes]:
    """A file, or a folder with all that is in it, as it is to be in a sandbox: it belongs to root, modes and links stay."""
    tar = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - it is the caller's
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.add(source, target.strip("/"), filter=_of_root)
    tar.seek(0)
    return tar


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def packed_tests(tests: Path, user: int) -> IO[bytes]:
    """Returns a tar that makes LOGS, for this user and root alone, and TESTS, which all users may read, in place of what is there.

    Where a folder may be, a file comes first: an engine removes a folder for a file, with all that is in it.
    """
    tar = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - it is the caller's
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.addfile(_folder("logs", 0o755))
        archive.addfile(tarfile.TarInfo(LOGS.strip("/")))
        archive.addfile(_folder(LOGS, 0o700, user))
        archive.addfile(tarfile.TarInfo(TESTS.strip("/")))
        archive.add(tests, TESTS.strip("/"), filter=_readable)
    tar.seek(0)
    return tar


def _folder(path: str, mode: int, user: int = 0) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path.strip("/"))
    entry.type, entry.mode, entry.uid = tarfile.DIRTYPE, mode, user
    return entry


def _readable(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry = _of_root(entry)
    runs = entry.isdir() or entry.mode & 0o111 or f"/{entry.name}" == SCRIPT
    entry.mode |= 0o555 if runs else 0o444
    return entry


def first_file(pieces: Iterable[bytes], most: int) -> File | str:
    """The one regular file that an engine sends, or why it is not read: what it is, or that it has more than `most` bytes."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as tar:
        for piece in pieces:  # to the end: the connection is used again
            if tar.tell() <= most + _FRAME:
                tar.write(piece)
        tar.seek(0)
        with tarfile.open(fileobj=tar) as archive:
            entry = archive.next()
            if entry is None or not entry.isreg():
                return f"it is {_KINDS.get(entry.type, 'no file') if entry else 'nothing'}"
            if entry.size > most:
                return f"it has {entry.size} bytes, and {most} is the most that is read"
            file = archive.extractfile(entry)
            assert file is not None
            return File(file.read(), entry.uid)
