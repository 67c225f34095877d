"""Files and folders: their locks, files that are written as a whole or grow, hashes of folders, and data that came with the package."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import IO

from pytest_agentbench.errors import BackendError, ConfigError


def lock(file: int | IO[bytes] | IO[str], *, wait: bool = False, shared: bool = False) -> bool:
    """Takes the lock of an open file, which closing it gives back; False where somebody else has it, unless we wait for him."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def folder() -> Path:
    """Where the locks are: AGENTBENCH_LOCKS, or below /tmp whatever TMPDIR says, for other users have another TMPDIR."""
    chosen = os.environ.get("AGENTBENCH_LOCKS")
    return Path(chosen) if chosen else Path("/tmp/pytest-agentbench-locks")  # noqa: S108 - the place that all users share


@dataclass(frozen=True)
class Lock:
    """A lock that is held, until `release` or the end of this process."""

    name: str
    file: int  # descriptor; not inherited by programs that this process starts

    def release(self) -> None:
        with contextlib.suppress(OSError):  # opened for reading only
            os.ftruncate(self.file, 0)
        os.close(self.file)


def take(name: str, purpose: str) -> Lock | str:
    """The lock, or a sentence on who holds it. Never waits; raises BackendError when the file cannot be used."""
    path = _folder_for_all() / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.lock"
    file = _open(path)
    if not lock(file):
        holder = os.pread(file, 4096, 0)
        os.close(file)
        return _holder_text(holder)
    with contextlib.suppress(OSError):  # a full disk, or a file that another user made and kept for himself: the lock counts all the same
        os.ftruncate(file, 0)
        os.pwrite(file, _note(purpose), 0)
    return Lock(name, file)


def _folder_for_all() -> Path:
    path = folder()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BackendError(f"the folder of locks, {path}, cannot be made: {error.strerror}; AGENTBENCH_LOCKS names another") from error
    with contextlib.suppress(PermissionError):  # it is another user's, who has done this
        if stat.S_IMODE(path.stat().st_mode) != 0o1777:
            path.chmod(0o1777)
    return path


def _open(path: Path) -> int:
    """A descriptor of the file, which is made if need be.

    In a folder with the sticky bit the kernel may refuse O_CREAT for a file of another user, so it is asked for only where none is.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            return _open_existing(path)
        with contextlib.suppress(FileExistsError):  # somebody was faster
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            os.fchmod(file, 0o666)  # whatever the umask
            return file
        return _open_existing(path)
    except OSError as error:
        raise BackendError(
            f"the lock {path} cannot be opened: {error.strerror}; remove it, or name a folder in AGENTBENCH_LOCKS"
        ) from error


def _open_existing(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)  # enough to lock it


def _note(purpose: str) -> bytes:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return json.dumps({"pid": os.getpid(), "user": user, "for": purpose, "since": time.time()}).encode()


def _holder_text(holder: bytes) -> str:
    """Who holds a lock, from what he wrote into its file."""
    try:
        note = json.loads(holder)
        since = time.strftime("%H:%M:%S", time.localtime(note["since"]))
        return f"held by process {note['pid']} of {note['user']} for {note['for']} since {since}"
    except (ValueError, KeyError, TypeError):
        return "held by a process that left no note"


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
