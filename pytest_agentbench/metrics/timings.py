"""Serving metrics, derived from the raw stamps of a record. Pure functions; durations are nanoseconds, rates are per second.

The start of a call is `sent_ns`, when its last request byte was written: the time before that is the client queue and stands
on its own. An output chunk carries content, reasoning or a tool call; chunks with only a role, a finish reason or usage never count.
A failed call (`error_kind`) and one that was never sent have no latencies: None, or no gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pytest_agentbench.records import Chunk, LLMCall

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
    return waited * 1e6 if waited is not None and _measured(call) else None


def served_ttft_ns(call: LLMCall) -> float | None:
    """TTFT without the time that the call waited at the server; None where that is not known."""
    ttft, waited = ttft_ns(call), server_queue_ns(call)
    return None if ttft is None or waited is None else max(0.0, ttft - waited)


def output_tokens(call: LLMCall) -> int:
    """The server's count of completion tokens; without one, the number of output chunks (`token_source` says which)."""
    return len(call.output) if call.completion_tokens is None else call.completion_tokens


def _measured(call: LLMCall) -> bool:
    return call.error_kind is None and call.sent_ns is not None


def _since_sent(call: LLMCall, chunks: Sequence[Chunk]) -> int | None:
    return chunks[0].at_ns - call.sent_ns if chunks and _measured(call) and call.sent_ns is not None else None
