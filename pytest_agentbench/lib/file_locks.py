"""Locks of files: one of an open file, and those that all users of a host share.

The kernel holds them, and forgets a lock when its holder ends, however that ends: none is ever stale.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pytest_agentbench.errors import BackendError


def lock(file: int | IO[bytes] | IO[str], *, wait: bool = False, shared: bool = False) -> bool:
    """Takes the lock of an open file, which closing it gives back; False where somebody else has it, unless we wait for him."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def folder() -> Path:
    """Where the locks are: AGENTBENCH_LOCKS, or below /tmp whatever TMPDIR says, for other users have another TMPDIR."""
    named = os.environ.get("AGENTBENCH_LOCKS")
    return Path(named) if named else Path("/tmp/pytest-agentbench-locks")  # noqa: S108 - the place that all users share


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
        return _said(holder)
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


def _said(holder: bytes) -> str:
    """Who holds a lock, from what he wrote into its file."""
    try:
        note = json.loads(holder)
        since = time.strftime("%H:%M:%S", time.localtime(note["since"]))
        return f"held by process {note['pid']} of {note['user']} for {note['for']} since {since}"
    except (ValueError, KeyError, TypeError):
        return "held by a process that left no note"
