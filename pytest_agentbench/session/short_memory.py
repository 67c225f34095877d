"""A session for which there is too little memory, or which may start no thread, ends in one sentence, not in a traceback."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_agentbench.lib.error_texts import address_space, shortage

#: Bytes of address space that a session takes once its suites are loaded, for its threads and its reports.
HEADROOM = 192 << 20


@contextmanager
def explained() -> Iterator[None]:
    """Turns an error for want of memory, threads or open files into a pytest.UsageError."""
    try:
        yield
    except (MemoryError, ImportError, OSError, RuntimeError) as error:
        if not (lacking := shortage(error)):
            raise
        raise pytest.UsageError(f"agentbench cannot run: {lacking}") from None


def refuse_short_memory() -> None:
    """Raises pytest.UsageError if the limit of address space leaves too little for a session that has loaded its suites."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    needed = address_space() + HEADROOM
    if limit < needed:
        raise pytest.UsageError(
            f"this session needs {needed >> 20} MiB of address space in a process, and {limit >> 20} MiB are allowed; "
            "raise the limit (`ulimit -v`), or load fewer plugins with -p no:NAME"
        )
