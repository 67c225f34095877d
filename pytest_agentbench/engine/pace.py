"""When each token is due, and which requests run: the engine's speed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import NamedTuple

from pytest_agentbench.engine.chat import Delivery


class TimedBytes(NamedTuple):
    """Bytes to send, and when."""

    data: bytes
    due: float  # seconds after the request's start
    tokens: int = 0  # of the answer, in these bytes


@dataclass(frozen=True)
class EnginePace:
    """The speed of an engine; an answer's Delivery may differ from it."""

    ttft_ms: float
    itl_ms: float
    jitter: float  # share by which each time may differ
    seed: int

    def due(self, tokens: int, delivery: Delivery, request: bytes) -> list[float]:
        """Seconds from the request's start to each token (at least one), the same for the same request every time."""
        ttft = self.ttft_ms if delivery.ttft_ms is None else delivery.ttft_ms
        itl = self.itl_ms if delivery.itl_ms is None else delivery.itl_ms
        gaps = [ttft / 1000] + [itl / 1000] * (tokens - 1)
        if self.jitter and (ttft or itl):
            random = Random(b"%d:%b" % (self.seed, request))
            gaps = [gap * (1 + self.jitter * random.uniform(-1, 1)) for gap in gaps]
        if delivery.stall and delivery.stall.after < len(gaps):
            gaps[delivery.stall.after] += delivery.stall.ms / 1000
        return list(accumulate(gaps))


class RequestSlots:
    """At most `limit` requests run at a time; the others wait in the order in which they came."""

    def __init__(self, limit: int | None) -> None:
        self._free = asyncio.Semaphore(limit) if limit else None
        self.running = 0
        self.waiting = 0

    async def __aenter__(self) -> bool:
        """Whether the request had to wait."""
        waits = self._free is not None and self._free.locked()
        if self._free is not None:
            self.waiting += 1
            try:
                await self._free.acquire()
            finally:
                self.waiting -= 1
        self.running += 1
        return waits

    async def __aexit__(self, *_: object) -> None:
        self.running -= 1
        if self._free is not None:
            self._free.release()


async def batches(events: Sequence[TimedBytes], started: float) -> AsyncIterator[list[TimedBytes]]:
    """The events as they come due, those due together in one list; due times are absolute, so lateness does not add up."""
    now = asyncio.get_running_loop().time
    ready: list[TimedBytes] = []
    for event in events:
        wait = started + event.due - now()
        if wait > 0:
            if ready:
                yield ready
                ready = []
                wait = started + event.due - now()
            await asyncio.sleep(wait)
        ready.append(event)
    if ready:
        yield ready
