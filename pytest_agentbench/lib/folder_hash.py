"""What a folder holds as a hash: names, contents, links, and what of its files' modes matters."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pytest_agentbench.errors import ConfigError

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
