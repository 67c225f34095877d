"""Locks of files by the kernel, which forgets a lock when its holder ends, however that ends: none is ever stale."""

from __future__ import annotations

import fcntl
from typing import IO


def lock(file: int | IO[bytes] | IO[str], *, wait: bool = False, shared: bool = False) -> bool:
    """Takes the lock of an open file, which closing it gives back; False where somebody else has it, unless we wait for him."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
