"""Errors of a process to which the system refuses memory, threads or open files, as sentences that name the limit."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

STACK = 8 << 20  # bytes of address space that a thread takes, where the system does not say otherwise
PIDS = Path("/sys/fs/cgroup/pids.max")

#: How the dynamic linker says that a library does not fit into the address space.
UNMAPPED = ("failed to map segment", "cannot allocate memory")


def shortage(error: BaseException) -> str:
    """Returns the shortage behind an error and the limit that applies, or an empty text for an error of another kind."""
    code = error.errno if isinstance(error, OSError) else None
    words = str(error).lower()
    if "can't start new thread" in words or code == errno.EAGAIN:
        return f"there are too few threads or processes: {_of_memory() if _is_full() else _of_threads()}"
    unmapped = isinstance(error, ImportError) and any(each in words for each in UNMAPPED)
    if unmapped or isinstance(error, MemoryError) or code == errno.ENOMEM:
        return f"there is too little memory: {_of_memory()}"
    if code == errno.EMFILE:
        return f"there are too few open files: {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} are allowed to a process (`ulimit -n`)"
    return ""


def address_space() -> int:
    """Returns the bytes of address space that this process has, or 0 if it cannot be read."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except (OSError, MemoryError):
        return 0
    return int(pages) * resource.getpagesize()


def _is_full() -> bool:
    """Returns whether the limit of address space leaves no room for a thread, or for a second one behind it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return limit != resource.RLIM_INFINITY and limit - address_space() < 2 * (STACK if stack == resource.RLIM_INFINITY else stack)


def _of_memory() -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return "no limit is set for a process, so the machine or its control group has no more"
    taken = address_space() >> 20
    known = f", and {taken} are taken" if taken else ""
    return f"{limit >> 20} MiB of address space are allowed to a process{known}; raise the limit (`ulimit -v`)"


def _of_threads() -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    allowed = [] if limit == resource.RLIM_INFINITY else [f"{limit} are allowed to this user (`ulimit -u`)"]
    try:
        if (pids := PIDS.read_text(encoding="ascii").strip()) != "max":
            allowed.append(f"{pids} to this control group (pids.max; --pids-limit of Docker)")
    except OSError:
        pass  # a system without control groups, or with those of version 1
    return f"{' and '.join(allowed) or 'no limit is set, so the machine has no more'}; raise the limit, or end other processes"
