"""Files and folders: files that are written as a whole or grow line by line, hashes of folders, and data that came with the package."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from pathlib import Path

from pytest_agentbench.errors import ConfigError


def write_whole(path: Path, text: str, errors: str = "strict") -> Path:
    """Writes a UTF-8 file, or replaces it; processes beside this one may do the same. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8", errors=errors)
        return draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


class AppendedFile:
    """Its lines from now on; it need not exist yet. What is in it is passed over, and one that got shorter is read from its start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = self._size()  # bytes

    def new_lines(self) -> Iterator[bytes]:
        """Lines that are whole and were not given before, with their line ends; raises OSError."""
        size = self._size()
        if size < self._read:
            self._read = 0
        if size == self._read:
            return
        with self.path.open("rb") as lines:
            lines.seek(self._read)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                yield line

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0


EXECUTABLE = 0o100  # the bit of a mode that git keeps: the others follow the umask of whoever made the files
EVERY_BIT = 0o777  # what a container sees


def folder_sha256(paths: Iterable[Path], root: Path, bits: int = EXECUTABLE, skips: Callable[[str], bool] = lambda _: False) -> str:
    """Of files and of folders with all that is in them, as they stand below `root`; those that are not there are passed over.

    `bits` are those of modes that count, `skips` looks at the name of each file and folder in a folder. Raises ConfigError for what is
    neither file, folder nor link, and for a link that leads out of `root`.
    """
    digest = hashlib.sha256()
    for path in sorted(file for each in paths if each.exists() for file in _entries(each, skips)):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            _stays_inside(path, root)
            content = os.fsencode(path.readlink())
        elif stat.S_ISREG(mode):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
        else:
            raise ConfigError(f"{path}: is neither a file, a folder nor a link; take it out")
        kind = "link" if stat.S_ISLNK(mode) else f"{mode & bits:o}"
        for part in (os.fsencode(path.relative_to(root)), kind.encode(), content):
            digest.update(f"{len(part)}:".encode() + part)
    return digest.hexdigest()


def _entries(path: Path, skips: Callable[[str], bool]) -> Iterator[Path]:
    """A file or a link, or all of them in a folder and below it."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for child in path.iterdir():
        if not skips(child.name):
            yield from _entries(child, skips)


def _stays_inside(link: Path, root: Path) -> None:
    if not link.resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"{link}: is a link that leads out of {root}; put what it leads to in its place")


def shipped(kind: str) -> Path:
    """Data that came with the package: the folder `backends` or `scenarios`, or `.env.example`; in a checkout, the project's own."""
    package = Path(str(files("pytest_agentbench"))).resolve()  # an environment may have a link to it
    installed = package / "shipped" / kind
    return installed if installed.exists() else package.parent / kind
