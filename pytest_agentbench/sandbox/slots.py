"""How many sandboxes run at once on a host, whoever started them: a lock for each, as GPUs have them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from pytest_agentbench.errors import BackendError, InfraError
from pytest_agentbench.lib import host_locks

MOST = 24  # unless it is said otherwise
_LOOK = 0.1  # seconds between two looks for a free one
_SAID = 5.0  # seconds after which the user is told what is waited for


def default_count() -> int:
    """Sandboxes that a host carries: two for each core that this process may use, 24 at most."""
    return min(2 * len(os.sched_getaffinity(0)), MOST)


class Slot:
    """One that is held, until `release` or the end of this process."""

    def __init__(self, lock: host_locks.Lock) -> None:
        self._lock: host_locks.Lock | None = lock

    def release(self) -> None:
        """A second call does nothing."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class Slots:
    """The slots of a host, `count` of them as far as this session is concerned."""

    def __init__(self, count: int, tell: Callable[[str], None]) -> None:
        """`tell` is given a sentence, once, where somebody waits for long."""
        self._count, self._tell = count, tell
        self._queue = asyncio.Lock()  # one looks, the others wait behind him
        self._told = False

    async def take(self) -> Slot:
        """Waits until one is free; raises InfraError where locks cannot be used."""
        async with self._queue:
            began = time.monotonic()
            while (slot := self._free()) is None:
                if time.monotonic() - began > _SAID and not self._told:
                    self._told = True
                    self._tell(
                        f"{self._count} sandbox{'es run' if self._count > 1 else ' runs'} on this machine at once, and others wait; "
                        "--agentbench-sandboxes=N allows N"
                    )
                await asyncio.sleep(_LOOK)
            return slot

    def _free(self) -> Slot | None:
        try:
            locks = (host_locks.take(f"sandbox-{number}", "a sandbox") for number in range(self._count))
            lock = next((each for each in locks if not isinstance(each, str)), None)
        except BackendError as error:
            raise InfraError(str(error)) from error
        return Slot(lock) if lock is not None else None
