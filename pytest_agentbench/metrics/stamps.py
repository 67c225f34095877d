"""How far the stamps of a call can be trusted, and what its timings would be if those that are wrong were not. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Self

from pytest_agentbench.records import OUTPUT_KINDS, LLMCall

#: Metrics that depend on the stamps of single events. E2E ends with a connection or the last event, and is late by the read lag at most.
OF_STAMPS = ("ttft", "tpot", "itl")

PROMPT_NS = 1_000_000  # a read lag up to which the tap was in time


@dataclass(frozen=True)
class LateStamps:
    """The output chunks of a successful call by their stamps. Chunks of one read share its stamp."""

    call: LLMCall
    events: int = 0  # output chunks
    # those with a stamp of their own; one that shares it only with what follows the output (the finish reason, usage, [DONE]) counts as
    # clean: servers write these together
    clean: int = 0
    # places of those whose stamp is a later one's because this machine read them late. A read within a millisecond of the last packet
    # found what the server had sent together: whoever measures has gaps of 0 there. How late stamps of user space are is unknown, so
    # that those which are shared count as late
    places: Sequence[int] = ()

    @classmethod
    def of(cls, call: LLMCall) -> Self:
        """Counts the output chunks of a call by their stamps. All counts are 0 if the call failed or was never sent."""
        if call.error_kind is not None or call.sent_ns is None:
            return cls(call)
        output = call.output
        shared = [place for place, (chunk, later) in enumerate(pairwise(output)) if not chunk.own_stamp and chunk.at_ns == later.at_ns]
        late = [place for place in shared if (lag := output[place].lag_ns) is None or lag > PROMPT_NS]
        return cls(call, len(output), len(output) - len(shared), late)

    @cached_property
    def evened(self) -> LLMCall:
        """The call as it may have been, see `evened`."""
        return evened(self.call, self.places)


def evened(call: LLMCall, late: Sequence[int]) -> LLMCall:
    """A successful call as it may have been: its output chunks that were read late, in the places `late`, are spread evenly.

    Between the stamp before them and the one that they share they came, and nobody knows when. Before the first stamp that is known
    they are as far apart as all others of their call on average, but not before the send.
    """
    if not late:
        return call
    times = iter(_evened_times(call, set(late)))
    chunks = (chunk._replace(at_ns=round(next(times))) if chunk.kind in OUTPUT_KINDS else chunk for chunk in call.chunks)
    return replace(call, chunks=tuple(chunks))


def _evened_times(call: LLMCall, late: Collection[int]) -> list[float]:
    """Nanoseconds of the output chunks."""
    times = [float(chunk.at_ns) for chunk in call.output]
    place = 0
    while place < len(times):
        last = place
        while last in late:
            last += 1
        step = (times[last] - times[place - 1] if place else _before(call, times, last)) / (last - place + 1)
        for each in range(place, last):
            times[each] = times[last] - step * (last - each)
        place = last + 1
    return times


def _before(call: LLMCall, times: Sequence[float], last: int) -> float:
    """How long before the first stamp, that of the chunk in place `last`, the chunks that share it may have begun to come."""
    since_sent = times[last] - (call.sent_ns or 0)
    later = len(times) - 1 - last
    return min(since_sent, (times[-1] - times[last]) / later * (last + 1)) if later else since_sent
