"""Files on their way into a sandbox and out of it: the tar that the Docker Engine speaks."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from pytest_agentbench.sandbox.sandbox import File

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
