"""Serving metrics, derived from the raw stamps of a record. Pure functions; durations are nanoseconds, rates are per second or hour.

The start of a call is `sent_ns`, when its last request byte was written: the time before that is the client queue and stands
on its own. An output chunk carries content, reasoning or a tool call; chunks with only a role or usage never count.
A failed call (`error_kind`) and one that was never sent have no latencies: None, or no gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from pytest_agentbench.records import OUTPUT_KINDS, Chunk, LLMCall, Rollout

T = TypeVar("T")
Span = tuple[int, int]  # start and end, monotonic nanoseconds


class InFlight(NamedTuple):
    """How many of something were under way at a time."""

    peak: int
    mean: float  # over the time from the first start to the last end


def ttft_ns(call: LLMCall) -> int | None:
    """Time to first token: from the send to the first output chunk."""
    return _since_sent(call, _output(call))


def first_event_ns(call: LLMCall) -> int | None:
    """From the send to the first chunk of any kind, a bare role included; what `vllm bench serve` calls TTFT."""
    return _since_sent(call, call.chunks)


def first_answer_ns(call: LLMCall) -> int | None:
    """From the send to the first output chunk that is not reasoning."""
    return _since_sent(call, [chunk for chunk in _output(call) if chunk.kind != "reasoning"])


def itl_ns(call: LLMCall) -> list[int]:
    """Inter-token latencies: the gaps between consecutive output chunks, one fewer than chunks.

    A server that packs n tokens into a chunk shows one gap for them; `tpot_ns` is the mean per token. Chunks that were read
    together have a gap of 0: `own_stamp_share` says how many.
    """
    return [later.at_ns - earlier.at_ns for earlier, later in pairwise(_output(call))] if _measured(call) else []


def tpot_ns(call: LLMCall) -> float | None:
    """Time per output token after the first: (last - first output chunk) / (tokens - 1), the first chunk being taken as one token.

    None for fewer than two tokens or two chunks.
    """
    output, tokens = _output(call), output_tokens(call)
    if not _measured(call) or tokens < 2 or len(output) < 2:
        return None
    return (output[-1].at_ns - output[0].at_ns) / (tokens - 1)


def e2e_ns(call: LLMCall) -> int | None:
    """From the send to the end of the answer."""
    return call.ended_ns - call.sent_ns if _measured(call) and call.sent_ns is not None else None


def client_queue_ns(call: LLMCall) -> int | None:
    """From the agent's call to the send: what the client, not the backend, took. None when the client did not say when it called."""
    return None if call.called_ns is None or call.sent_ns is None else call.sent_ns - call.called_ns


def output_tokens(call: LLMCall) -> int:
    """The server's count of completion tokens; without one, the number of output chunks (`token_source` says which)."""
    return len(_output(call)) if call.completion_tokens is None else call.completion_tokens


def known(values: Iterable[T | None]) -> list[T]:
    """The values that were measured: `percentile(known(map(ttft_ns, calls)), 90)`."""
    return [value for value in values if value is not None]


def percentile(values: Iterable[float], q: float) -> float | None:
    """The q-th percentile (0 to 100) by linear interpolation, as numpy's default; None of nothing. Infinite values are allowed."""
    if not 0 <= q <= 100:
        raise ValueError(f"a percentile is between 0 and 100, not {q}")
    ordered = sorted(values)
    if not ordered:
        return None
    position = (len(ordered) - 1) * q / 100
    below, above = ordered[math.floor(position)], ordered[math.ceil(position)]
    return below if below == above else below + (above - below) * (position - math.floor(position))


def output_throughput(calls: Sequence[LLMCall]) -> float | None:
    """Output tokens of successful calls per second, from the first send to the last end of any call; ramp and drain are in it."""
    tokens = sum(output_tokens(call) for call in calls if _measured(call))
    return _rate(tokens, call_spans(calls), 1e9)


def rollouts_per_hour(rollouts: Sequence[Rollout]) -> float | None:
    """Evaluable rollouts per hour, from the first start to the last end of any rollout; ramp and drain are in it."""
    return _rate(sum(rollout.evaluable for rollout in rollouts), rollout_spans(rollouts), 3600e9)


def call_spans(calls: Iterable[LLMCall]) -> list[Span]:
    """When each call was with the backend, failed calls included."""
    return [(call.sent_ns, call.ended_ns) for call in calls if call.sent_ns is not None]


def rollout_spans(rollouts: Iterable[Rollout]) -> list[Span]:
    """When each rollout ran."""
    return [(rollout.started_ns, rollout.ended_ns) for rollout in rollouts]


def in_flight(spans: Sequence[Span]) -> InFlight:
    """Peak and time-weighted mean of how many spans overlap; one that ends when another starts does not overlap it."""
    steps = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    peak = count = 0
    for _, step in steps:
        count += step
        peak = max(peak, count)
    busy = sum(end - start for start, end in spans)
    return InFlight(peak, busy / duration if (duration := _duration(spans)) else 0.0)


def prefix_cache_hit_ratio(calls: Iterable[LLMCall]) -> float | None:
    """Cached prompt tokens / prompt tokens, over the calls whose usage names both; None when none does."""
    counts = [(call.cached_tokens, call.prompt_tokens) for call in calls if call.cached_tokens is not None and call.prompt_tokens]
    return sum(cached for cached, _ in counts) / sum(prompt for _, prompt in counts) if counts else None


def own_stamp_share(calls: Iterable[LLMCall]) -> float | None:
    """The share of output chunks of successful calls whose arrival was stamped on its own; how far to trust ITL."""
    own = [chunk.own_stamp for call in calls if _measured(call) for chunk in _output(call)]
    return sum(own) / len(own) if own else None


def _measured(call: LLMCall) -> bool:
    return call.error_kind is None and call.sent_ns is not None


def _output(call: LLMCall) -> list[Chunk]:
    return [chunk for chunk in call.chunks if chunk.kind in OUTPUT_KINDS]


def _since_sent(call: LLMCall, chunks: Sequence[Chunk]) -> int | None:
    return chunks[0].at_ns - call.sent_ns if chunks and _measured(call) and call.sent_ns is not None else None


def _duration(spans: Sequence[Span]) -> int:
    return max(end for _, end in spans) - min(start for start, _ in spans) if spans else 0


def _rate(amount: float, spans: Sequence[Span], unit_ns: float) -> float | None:
    duration = _duration(spans)
    return amount * unit_ns / duration if duration else None
