"""User code that is left running after its time, and the refusal of what it asks for."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass, field

PAUSE = 1.0  # seconds before a request of abandoned code is refused, so that a loop of retries does not use up a core


@dataclass
class BoundedRun:
    """One run of user code under a time limit. The tasks and threads that it starts share this object through their context."""

    outer: BoundedRun | None
    threads: set[threading.Thread] = field(default_factory=set)  # those of `lib.threads` that have not returned
    abandoned: bool = False  # its time is over, and some of its code still runs

    @property
    def is_abandoned(self) -> bool:
        """Whether this run, or one that it is a part of, was abandoned."""
        return self.abandoned or (self.outer is not None and self.outer.is_abandoned)

    @property
    def has_threads(self) -> bool:
        """Whether a thread of this run still runs."""
        return any(thread.is_alive() for thread in self.threads)


#: The run that a task or a thread belongs to; None outside of user code.
current_run: ContextVar[BoundedRun | None] = ContextVar("agentbench_bounded_run", default=None)


async def refuse_abandoned() -> None:
    """Raises CancelledError, after a pause, if the calling code was left running after its time."""
    if (run := current_run.get()) is not None and run.is_abandoned:
        import asyncio  # here: a worker, which has no event loop, does not load it

        await asyncio.sleep(PAUSE)
        raise asyncio.CancelledError("the time of this code is over")
