"""How far the stamps of a call can be trusted, and what its timings would be if those that are wrong were not. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

from pytest_agentbench.records import OUTPUT_KINDS, Chunk, LLMCall

PROMPT_NS = 1_000_000  # a read lag up to which the tap was in time


def clean_stamps(call: LLMCall) -> tuple[int, int]:
    """(how many output chunks of a successful call have a stamp of their own, how many there are).

    Chunks of one read share its stamp. A chunk that shares it only with what follows the output (the finish reason, usage, [DONE])
    counts as clean: servers write these together.
    """
    output = _output(call)
    merged = sum(not chunk.own_stamp and chunk.at_ns == later.at_ns for chunk, later in pairwise(output))
    return len(output) - merged, len(output)


def late_stamps(call: LLMCall) -> list[int]:
    """The places of output chunks of a successful call whose stamp is a later one's because this machine read them late.

    A read within a millisecond of the last packet found what the server had sent together: whoever measures has gaps of 0 there. Of
    stamps of user space nobody knows how late they are, so that those which are shared count as late.
    """
    return [
        place
        for place, (chunk, later) in enumerate(pairwise(_output(call)))
        if not chunk.own_stamp and chunk.at_ns == later.at_ns and (chunk.lag_ns is None or chunk.lag_ns > PROMPT_NS)
    ]


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


def _output(call: LLMCall) -> Sequence[Chunk]:
    return call.output if call.error_kind is None and call.sent_ns is not None else []
