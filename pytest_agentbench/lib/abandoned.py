"""Marks user code as abandoned if it still runs after its time limit. Its model calls, tool calls and sandbox commands are refused."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass, field

PAUSE = 1.0  # seconds before a request of abandoned code is refused, so that a loop of retries does not use up a core


@dataclass
class BoundedRun:
    """One execution of user code by `run_bounded`. The tasks and threads that the code starts find this object in their context."""

    outer: BoundedRun | None
    threads: set[threading.Thread] = field(default_factory=set)  # threads of `lib.threads` that have not returned
    abandoned: bool = False  # whether some of its code still runs after the time limit

    @property
    def is_abandoned(self) -> bool:
        """Whether this run or an enclosing one was abandoned."""
        return self.abandoned or (self.outer is not None and self.outer.is_abandoned)

    @property
    def has_threads(self) -> bool:
        """Whether a thread of this run still runs."""
        return any(thread.is_alive() for thread in self.threads)


#: The run that a task or thread belongs to. None outside of user code.
current_run: ContextVar[BoundedRun | None] = ContextVar("agentbench_bounded_run", default=None)


async def refuse_abandoned() -> None:
    """Raises CancelledError, after a pause, if the calling code has been abandoned. Called before each model call, tool call or command."""
    if (run := current_run.get()) is not None and run.is_abandoned:
        import asyncio  # Imported here because workers have no event loop and need not load it.

        await asyncio.sleep(PAUSE)
        raise asyncio.CancelledError("the time limit of this code has been exceeded")
