"""Locks, atomic writes, growing files, hashes of folders, and the data files of the package."""

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
    """Locks an open file until it is closed. Returns True; without `wait`, returns False if another process has the lock."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def folder() -> Path:
    """Returns the folder of the locks: AGENTBENCH_LOCKS, or a folder in /tmp. TMPDIR is ignored, because it differs between users."""
    chosen = os.environ.get("AGENTBENCH_LOCKS")
    return Path(chosen) if chosen else Path("/tmp/pytest-agentbench-locks")  # noqa: S108 - all users share this folder


@dataclass(frozen=True)
class Lock:
    """A lock on a name, such as a GPU, that this process holds until `release` or until the process ends."""

    name: str
    file: int  # file descriptor, which child processes do not inherit

    def release(self) -> None:
        with contextlib.suppress(OSError):  # The file may be open for reading only.
            os.ftruncate(self.file, 0)
        os.close(self.file)


def take(name: str, purpose: str) -> Lock | str:
    """Takes the lock `name` without waiting. If another process holds it, returns a text about that process.

    Raises BackendError if the lock file cannot be used.
    """
    path = _folder_for_all() / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.lock"
    file = _open(path)
    if not lock(file):
        holder = os.pread(file, 4096, 0)
        os.close(file)
        return _holder_text(holder)
    with contextlib.suppress(OSError):  # The lock is valid without the note, which a full disk or another user's file can prevent.
        os.ftruncate(file, 0)
        os.pwrite(file, _note(purpose), 0)
    return Lock(name, file)


def _folder_for_all() -> Path:
    path = folder()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BackendError(f"the lock folder {path} cannot be created: {error.strerror}; set AGENTBENCH_LOCKS to another folder") from error
    with contextlib.suppress(PermissionError):  # The folder belongs to another user, whose process has set its mode.
        if stat.S_IMODE(path.stat().st_mode) != 0o1777:
            path.chmod(0o1777)
    return path


def _open(path: Path) -> int:
    """Opens a lock file, and creates it if it does not exist. Returns the descriptor.

    In a folder with the sticky bit, the kernel may refuse O_CREAT if the file exists and belongs to another user. O_CREAT is therefore
    used only if the file does not exist.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            return _open_existing(path)
        with contextlib.suppress(FileExistsError):  # Another process has created it in the meantime.
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            os.fchmod(file, 0o666)  # The umask may have removed bits.
            return file
        return _open_existing(path)
    except OSError as error:
        raise BackendError(
            f"the lock {path} cannot be opened: {error.strerror}; remove it, or set AGENTBENCH_LOCKS to another folder"
        ) from error


def _open_existing(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)  # Reading is enough for a lock.


def _note(purpose: str) -> bytes:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # The user has no name, which is usual in containers.
        user = str(os.getuid())
    return json.dumps({"pid": os.getpid(), "user": user, "for": purpose, "since": time.time()}).encode()


def _holder_text(holder: bytes) -> str:
    """Describes the process that holds a lock, from the note in the lock file."""
    try:
        note = json.loads(holder)
        since = time.strftime("%H:%M:%S", time.localtime(note["since"]))
        return f"held by process {note['pid']} of {note['user']} for {note['for']} since {since}"
    except (ValueError, KeyError, TypeError):
        return "held by a process that left no note"


def write_whole(path: Path, text: str, errors: str = "strict") -> Path:
    """Creates or replaces a UTF-8 file atomically. Other processes may do the same at the same time. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8", errors=errors)
        return draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


class AppendedFile:
    """Reads a growing file, such as a log: the lines that are appended after this object was created. The file need not exist yet.

    If the file becomes shorter, it is read from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = self._size()  # bytes read so far

    def new_lines(self) -> Iterator[bytes]:
        """Yields the complete lines since the last call, with their line ends. Raises OSError."""
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


EXECUTABLE = 0o100  # the only mode bit that git keeps; the others depend on the umask
EVERY_BIT = 0o777  # all mode bits that matter in a container


def folder_sha256(paths: Iterable[Path], root: Path, bits: int = EXECUTABLE, skips: Callable[[str], bool] = lambda _: False) -> str:
    """Returns a hash of files and folders: paths relative to `root`, contents and modes. Missing paths are ignored.

    `bits` are the mode bits that count. `skips` returns whether to skip a file or folder inside a folder, by its name. Raises ConfigError
    if an entry is not a file, folder or link, or if a link leads out of `root`.
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
            raise ConfigError(f"{path}: is neither a file, a folder nor a link; remove it, because it cannot be hashed")
        kind = "link" if stat.S_ISLNK(mode) else f"{mode & bits:o}"
        for part in (os.fsencode(path.relative_to(root)), kind.encode(), content):
            digest.update(f"{len(part)}:".encode() + part)
    return digest.hexdigest()


def _entries(path: Path, skips: Callable[[str], bool]) -> Iterator[Path]:
    """Yields the path of a file or link, or all files and links in a folder and its subfolders."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for child in path.iterdir():
        if not skips(child.name):
            yield from _entries(child, skips)


def _stays_inside(link: Path, root: Path) -> None:
    if not link.resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"{link}: is a link that leads out of {root}; replace it by a copy of the file or folder that it leads to")


def shipped(kind: str) -> Path:
    """Returns the path of data that is installed with this package: `backends`, `scenarios`, `docs` or `.env.example`.

    In a checkout, the data is in the root of the project.
    """
    package = Path(str(files("pytest_agentbench"))).resolve()  # It may be a link to a checkout.
    installed = package / "shipped" / kind
    return installed if installed.exists() else package.parent / kind
