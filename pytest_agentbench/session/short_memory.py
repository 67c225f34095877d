"""A session that starts with too little memory ends in one sentence, not in a traceback."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

#: Bytes of address space that a session takes once its suites are loaded, for its threads and its reports.
HEADROOM = 192 << 20

ADVICE = "raise the limit (`ulimit -v`), or load fewer plugins with -p no:NAME"

#: How the dynamic linker says that a library does not fit into the address space.
UNMAPPED = ("failed to map segment", "cannot allocate memory")


@contextmanager
def explained() -> Iterator[None]:
    """Turns an error for want of memory into a pytest.UsageError."""
    try:
        yield
    except (MemoryError, ImportError) as error:
        if isinstance(error, ImportError) and not any(words in str(error).lower() for words in UNMAPPED):
            raise
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        allowed = "" if limit == resource.RLIM_INFINITY else f", of which {limit >> 20} MiB are allowed"
        raise pytest.UsageError(f"agentbench cannot start: there is too little memory{allowed}; {ADVICE}") from None


def refuse_short_memory() -> None:
    """Raises pytest.UsageError if the limit of address space leaves too little for a session that has loaded its suites."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    needed = _address_space() + HEADROOM
    if limit < needed:
        raise pytest.UsageError(
            f"this session needs {needed >> 20} MiB of address space in a process, and {limit >> 20} MiB are allowed; {ADVICE}"
        )


def _address_space() -> int:
    """Returns the bytes of address space that this process has, or 0 if the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()
