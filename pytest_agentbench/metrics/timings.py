"""Latencies of a single call, computed from its timestamps, and the timestamps that are too late, because this machine was busy.

Durations are nanoseconds, rates are per second. A call starts at `sent_ns`, when the last byte of its request was sent; the time before
that is the client queue, a metric of its own. Output chunks contain content, reasoning or a tool call; chunks with only a role, a finish
reason or usage do not count. Calls that failed (`error_kind`) or were not sent have no latencies: None, or an empty list.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Self

from pytest_agentbench.records import OUTPUT_KINDS, Chunk, LLMCall

SERVER_QUEUE = ("router_queue_ms", "prefill_wait_time_ms")  # keys of `server.timing`: ThunderAgent, Dynamo


def ttft_ns(call: LLMCall) -> int | None:
    """Returns the time to first token: from sending to the first output chunk."""
    return _since_sent(call, call.output)


def first_event_ns(call: LLMCall) -> int | None:
    """Returns the time from sending to the first chunk of any kind, including a bare role."""
    return _since_sent(call, call.chunks)


def first_answer_ns(call: LLMCall) -> int | None:
    """Returns the time from sending to the first output chunk that is not reasoning."""
    return _since_sent(call, [chunk for chunk in call.output if chunk.kind != "reasoning"])


def itl_ns(call: LLMCall) -> list[int]:
    """Returns the inter-token latencies: the gaps between consecutive output chunks.

    A chunk with several tokens has one gap for all of them; `tpot_ns` is the mean per token. Chunks that were read together have a gap of
    0; `LateTimestamps` counts them.
    """
    return [later.at_ns - earlier.at_ns for earlier, later in pairwise(call.output)] if _has_latencies(call) else []


def tpot_ns(call: LLMCall) -> float | None:
    """Returns the time per output token after the first chunk: (last - first output chunk) / (tokens - tokens of the first chunk).

    The first chunk counts as one token unless the server counts tokens in each event. None if no token arrived after the first chunk.
    """
    output = call.output
    if not _has_latencies(call) or len(output) < 2:
        return None
    later = later_tokens(call)
    return (output[-1].at_ns - output[0].at_ns) / later if later > 0 else None


def later_tokens(call: LLMCall) -> int:
    """Returns the output tokens after the first chunk, which counts as one token unless the server reports its tokens."""
    return output_tokens(call) - max(1, call.output[0].tokens or 1)


def e2e_ns(call: LLMCall) -> int | None:
    """Returns the time from sending to the end of the answer."""
    return call.ended_ns - call.sent_ns if _has_latencies(call) and call.sent_ns is not None else None


def tokens_per_s(call: LLMCall) -> float | None:
    """Returns the output tokens per second of E2E, which includes the wait for the first token."""
    duration = e2e_ns(call)
    return output_tokens(call) * 1e9 / duration if duration else None


def speedup(together: float | None, mean_of_calls: float | None) -> float | None:
    """Returns tokens per second of all calls together / mean tokens per second of a call. None if one of them is unknown."""
    return together / mean_of_calls if together and mean_of_calls else None


def client_queue_ns(call: LLMCall) -> int | None:
    """Returns the time from the agent's call to sending, without delays by a rate limit: the time of the client, not the backend.

    None if the client did not report when it called, or if the call was not sent.
    """
    return None if call.called_ns is None or call.sent_ns is None else call.sent_ns - call.called_ns - call.held_ns


def server_queue_ns(call: LLMCall) -> float | None:
    """Returns the wait before the prefill as reported by the server (ThunderAgent's pause, Dynamo's wait). TTFT includes it."""
    timing = (call.server or {}).get("timing") or {}
    waited = next((timing[name] for name in SERVER_QUEUE if timing.get(name) is not None), None)
    return waited * 1e6 if waited is not None and _has_latencies(call) else None


def served_ttft_ns(call: LLMCall) -> float | None:
    """Returns TTFT without the wait that the server reports. None if that is unknown."""
    ttft, waited = ttft_ns(call), server_queue_ns(call)
    return None if ttft is None or waited is None else max(0.0, ttft - waited)


#: The shortest time for which Linux delays an acknowledgement, nanoseconds.
DELAYED_ACK_NS = 40_000_000


def delayed_ack_ns(call: LLMCall) -> int:
    """Returns how much later the first event could reach a client that delays acknowledgements, in nanoseconds. 0 if it could not.

    Linux delays them on a connection whose last data arrived less than 40 ms before the request was sent. A server without TCP_NODELAY then
    sends the first event when the head is acknowledged, 40 ms after the head. The tap (the recording HTTP proxy) acknowledges at once. It
    cannot know whether the server sets TCP_NODELAY.
    """
    if not call.chunks or call.sent_ns is None or call.head_ns is None or call.idle_since_ns is None:
        return 0
    gap = call.chunks[0].at_ns - call.head_ns
    is_delayed = call.sent_ns - call.idle_since_ns < DELAYED_ACK_NS
    return DELAYED_ACK_NS - gap if is_delayed and 0 < gap < DELAYED_ACK_NS else 0


def output_tokens(call: LLMCall) -> int:
    """Returns the completion tokens reported by the server, or else the number of output chunks (see `token_source`)."""
    return len(call.output) if call.completion_tokens is None else call.completion_tokens


def _has_latencies(call: LLMCall) -> bool:
    return call.error_kind is None and call.sent_ns is not None


def _since_sent(call: LLMCall, chunks: Sequence[Chunk]) -> int | None:
    return chunks[0].at_ns - call.sent_ns if chunks and _has_latencies(call) and call.sent_ns is not None else None


#: Metrics that depend on the timestamps of single events. E2E is not included, because only the last read lag can make it wrong.
TIMESTAMP_METRICS = ("ttft", "tpot", "itl")

PROMPT_NS = 1_000_000  # greatest read lag in nanoseconds at which the tap counts as reading in time


@dataclass(frozen=True)
class LateTimestamps:
    """How many output chunks of a successful call have their own timestamp, and which ones have a later one, because they were read late.

    Chunks that were read together share the timestamp of that read.
    """

    call: LLMCall
    events: int = 0  # number of output chunks
    # Number of output chunks with their own timestamp. A chunk that shares its timestamp only with what follows the output (finish reason,
    # usage, [DONE]) is clean, because servers send these together.
    clean: int = 0
    # Indices of output chunks that have the timestamp of a later one because this machine read them late. If a read happened within a
    # millisecond of the last packet, the server had sent the chunks together, so they are not late. The lag of user-space timestamps is
    # unknown, so all their shared timestamps count as late.
    places: Sequence[int] = ()

    @classmethod
    def of(cls, call: LLMCall) -> Self:
        """Counts the output chunks of a call with and without their own timestamp. Counts none if the call failed or was not sent."""
        if call.error_kind is not None or call.sent_ns is None:
            return cls(call)
        output = call.output
        shared = [place for place, (chunk, later) in enumerate(pairwise(output)) if not chunk.own_stamp and chunk.at_ns == later.at_ns]
        late = [place for place in shared if (lag := output[place].lag_ns) is None or lag > PROMPT_NS]
        return cls(call, len(output), len(output) - len(shared), late)

    @cached_property
    def evened(self) -> LLMCall:
        """A copy of the call with new timestamps for chunks that were read late: at even distances over the time in which they arrived."""
        return evened(self.call, self.places)


def evened(call: LLMCall, late: Sequence[int]) -> LLMCall:
    """Returns a successful call with new timestamps for output chunks that this machine read late: at even distances.

    `late` has the indices of these chunks. They arrived between the previous timestamp and the one that they share. If there is no
    previous timestamp, they get the mean gap of the other chunks, but are not placed before the sending of the request.
    """
    if not late:
        return call
    times = iter(_evened_times(call, set(late)))
    chunks = (chunk._replace(at_ns=round(next(times))) if chunk.kind in OUTPUT_KINDS else chunk for chunk in call.chunks)
    return replace(call, chunks=tuple(chunks))


def _evened_times(call: LLMCall, late: Collection[int]) -> list[float]:
    """Returns the times of a call's output chunks in nanoseconds. Chunks that were read late get times at even distances."""
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
    """Returns the nanoseconds over which to spread the first chunks of a call, up to the index `last`, which were read together.

    This time ends at the timestamp of the read.
    """
    since_sent = times[last] - (call.sent_ns or 0)
    later = len(times) - 1 - last
    return min(since_sent, (times[-1] - times[last]) / later * (last + 1)) if later else since_sent
