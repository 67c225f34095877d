"""Serving metrics, derived from the raw stamps of a call, and how far these stamps can be trusted.

Pure functions; durations are nanoseconds, rates are per second. The start of a call is `sent_ns`, when its last request byte was
written: the time before that is the client queue and stands on its own. An output chunk carries content, reasoning or a tool call;
chunks with only a role, a finish reason or usage never count. A failed call (`error_kind`) and one that was never sent have no
latencies: None, or no gaps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Self

from pytest_agentbench.records import OUTPUT_KINDS, Chunk, LLMCall

SERVER_QUEUE = ("router_queue_ms", "prefill_wait_time_ms")  # in `server.timing`: of ThunderAgent, of Dynamo


def ttft_ns(call: LLMCall) -> int | None:
    """Time to first token: from the send to the first output chunk."""
    return _since_sent(call, call.output)


def first_event_ns(call: LLMCall) -> int | None:
    """From the send to the first chunk of any kind, a bare role included."""
    return _since_sent(call, call.chunks)


def first_answer_ns(call: LLMCall) -> int | None:
    """From the send to the first output chunk that is not reasoning."""
    return _since_sent(call, [chunk for chunk in call.output if chunk.kind != "reasoning"])


def itl_ns(call: LLMCall) -> list[int]:
    """Inter-token latencies: the gaps between consecutive output chunks, one fewer than chunks.

    A server that packs n tokens into a chunk shows one gap for them; `tpot_ns` is the mean per token. Chunks that were read
    together have a gap of 0: `LateTimestamps` says how many.
    """
    return [later.at_ns - earlier.at_ns for earlier, later in pairwise(call.output)] if _has_latencies(call) else []


def tpot_ns(call: LLMCall) -> float | None:
    """Time per output token after the first event: (last - first output chunk) / (tokens - tokens of the first chunk).

    A server that counts tokens in every event says how many the first one held; of others it is taken as one. None where no token
    came after the first chunk, or none is known to.
    """
    output = call.output
    if not _has_latencies(call) or len(output) < 2:
        return None
    later = later_tokens(call)
    return (output[-1].at_ns - output[0].at_ns) / later if later > 0 else None


def later_tokens(call: LLMCall) -> int:
    """The output tokens of a call with output that came after its first chunk; that is one token where the server does not say."""
    return output_tokens(call) - max(1, call.output[0].tokens or 1)


def e2e_ns(call: LLMCall) -> int | None:
    """From the send to the end of the answer."""
    return call.ended_ns - call.sent_ns if _has_latencies(call) and call.sent_ns is not None else None


def tokens_per_s(call: LLMCall) -> float | None:
    """Output tokens of a call per second of its E2E, so the wait for the first one is in it."""
    duration = e2e_ns(call)
    return output_tokens(call) * 1e9 / duration if duration else None


def speedup(together: float | None, mean_of_calls: float | None) -> float | None:
    """Tokens per second of all calls together over the mean of theirs: how many calls' worth came at a time. None without either."""
    return together / mean_of_calls if together and mean_of_calls else None


def client_queue_ns(call: LLMCall) -> int | None:
    """From the agent's call to the send, without what a rate limit held it back: what the client, not the backend, took.

    None when the client did not say when it called.
    """
    return None if call.called_ns is None or call.sent_ns is None else call.sent_ns - call.called_ns - call.held_ns


def server_queue_ns(call: LLMCall) -> float | None:
    """What the server says that a call waited before its prefill began: ThunderAgent's pause, Dynamo's wait. TTFT has it in it."""
    timing = (call.server or {}).get("timing") or {}
    waited = next((timing[name] for name in SERVER_QUEUE if timing.get(name) is not None), None)
    return waited * 1e6 if waited is not None and _has_latencies(call) else None


def served_ttft_ns(call: LLMCall) -> float | None:
    """TTFT without the time that the call waited at the server; None where that is not known."""
    ttft, waited = ttft_ns(call), server_queue_ns(call)
    return None if ttft is None or waited is None else max(0.0, ttft - waited)


def output_tokens(call: LLMCall) -> int:
    """The server's count of completion tokens; without one, the number of output chunks (`token_source` says which)."""
    return len(call.output) if call.completion_tokens is None else call.completion_tokens


def _has_latencies(call: LLMCall) -> bool:
    return call.error_kind is None and call.sent_ns is not None


def _since_sent(call: LLMCall, chunks: Sequence[Chunk]) -> int | None:
    return chunks[0].at_ns - call.sent_ns if chunks and _has_latencies(call) and call.sent_ns is not None else None


#: Metrics that depend on the stamps of single events. E2E ends with a connection or the last event, and is late by the read lag at most.
TIMESTAMP_METRICS = ("ttft", "tpot", "itl")

PROMPT_NS = 1_000_000  # a read lag up to which the tap was in time


@dataclass(frozen=True)
class LateTimestamps:
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
