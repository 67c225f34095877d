"""Serving metrics, derived from the raw stamps of a record. Pure functions; durations are nanoseconds, rates are per second or hour.

The start of a call is `sent_ns`, when its last request byte was written: the time before that is the client queue and stands
on its own. An output chunk carries content, reasoning or a tool call; chunks with only a role, a finish reason or usage never count.
A failed call (`error_kind`) and one that was never sent have no latencies: None, or no gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from pytest_agentbench.metrics.windows import Span, duration_ns
from pytest_agentbench.records import Chunk, LLMCall, Rollout


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
    together have a gap of 0: `stamps` says how many.
    """
    return [later.at_ns - earlier.at_ns for earlier, later in pairwise(call.output)] if _measured(call) else []


def tpot_ns(call: LLMCall) -> float | None:
    """Time per output token after the first event: (last - first output chunk) / (tokens - tokens of the first chunk).

    A server that counts tokens in every event says how many the first one held; of others it is taken as one. None where no token
    came after the first chunk, or none is known to.
    """
    output = call.output
    if not _measured(call) or len(output) < 2:
        return None
    later = later_tokens(call)
    return (output[-1].at_ns - output[0].at_ns) / later if later > 0 else None


def later_tokens(call: LLMCall) -> int:
    """The output tokens of a call with output that came after its first chunk; that is one token where the server does not say."""
    return output_tokens(call) - max(1, call.output[0].tokens or 1)


def e2e_ns(call: LLMCall) -> int | None:
    """From the send to the end of the answer."""
    return call.ended_ns - call.sent_ns if _measured(call) and call.sent_ns is not None else None


def tokens_per_s(call: LLMCall) -> float | None:
    """Output tokens of a call per second of its E2E, so the wait for the first one is in it."""
    duration = e2e_ns(call)
    return output_tokens(call) * 1e9 / duration if duration else None


def client_queue_ns(call: LLMCall) -> int | None:
    """From the agent's call to the send, without what a rate limit held it back: what the client, not the backend, took.

    None when the client did not say when it called.
    """
    return None if call.called_ns is None or call.sent_ns is None else call.sent_ns - call.called_ns - call.held_ns


def output_tokens(call: LLMCall) -> int:
    """The server's count of completion tokens; without one, the number of output chunks (`token_source` says which)."""
    return len(call.output) if call.completion_tokens is None else call.completion_tokens


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


def prefix_cache_hit_ratio(calls: Iterable[LLMCall]) -> float | None:
    """Cached prompt tokens / prompt tokens, over the calls whose usage names both; None when none does."""
    counts = [(call.cached_tokens, call.prompt_tokens) for call in calls if call.cached_tokens is not None and call.prompt_tokens]
    return sum(cached for cached, _ in counts) / sum(prompt for _, prompt in counts) if counts else None


def _measured(call: LLMCall) -> bool:
    return call.error_kind is None and call.sent_ns is not None


def _since_sent(call: LLMCall, chunks: Sequence[Chunk]) -> int | None:
    return chunks[0].at_ns - call.sent_ns if chunks and _measured(call) and call.sent_ns is not None else None


def _rate(amount: float, spans: Sequence[Span], unit_ns: float) -> float | None:
    duration = duration_ns(spans)
    return amount * unit_ns / duration if duration else None
