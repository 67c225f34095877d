"""Clients that make calls while a test changes something."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Self


class Sent(NamedTuple):
    """A call of the load."""

    began: float  # seconds, time.monotonic()
    status: int  # HTTP status; 0 if the answer was not complete
    worker: str  # what answered, or "" if that is not known


class Load:
    """Clients that make calls, one after the other, until the block ends. An error that `call` raises is raised at its end.

    `call` gets the number of the client and that of its call, and returns the status and what answered.
    """

    def __init__(self, clients: int, call: Callable[[int, int], tuple[int, str]]) -> None:
        self._clients, self._call = clients, call
        self._stopped = threading.Event()
        self.calls: list[Sent] = []

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(self._clients)
        self._running = [self._pool.submit(self._run, client) for client in range(self._clients)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._pool.shutdown()
        for client in self._running:
            client.result()

    def answered_after(self, moment: float, worker: str | None = None) -> int:
        """Returns the number of answered calls that began after a moment, of one worker or of all."""
        return sum(each.began > moment and each.status == 200 and worker in (None, each.worker) for each in self.calls)

    def _run(self, client: int) -> None:
        for number in itertools.count():
            if self._stopped.is_set():
                return
            began = time.monotonic()
            self.calls.append(Sent(began, *self._call(client, number)))
