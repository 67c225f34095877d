"""Whose fault a rollout was, by what the tap saw of its calls: what the agent made of them does not matter.

A call that the backend failed is made good by one in the same role that went well: the same request again, or any that began after the
failure. One that nothing made good leaves the rollout without a measurement, however it ended.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from pytest_agentbench.records import LLMCall

#: Kind of a call that would have exceeded a limit.
LIMIT = "limit"

#: Kinds of failed calls that are the agent's doing.
AGENT_ERRORS = frozenset({"client_gone", "bad_history", "refused", LIMIT})

#: Statuses with which a server turns down whoever asks, whatever is asked: a key, a permission, a model or an address.
REJECTED = frozenset({401, 403, 404})

#: Statuses below 500 that say nothing of the request itself: a timeout, a conflict, an attempt that came too early.
TRANSIENT = frozenset({408, 409, 425})

_CONTEXT_FULL = re.compile(r"context[ _](?:length|window)|maximum model length|max_model_len|max_seq_len|prompt is too long", re.IGNORECASE)


def context_is_full(status: int | None, message: str) -> bool:
    """Whether a server refuses a request because it is longer than the model can read."""
    return status in (400, 413, 422) and bool(_CONTEXT_FULL.search(message))


def final_status(status: str, reason: str, calls: Sequence[LLMCall], time_up_ns: int | None = None) -> tuple[str, str]:
    """(status, reason) of a rollout that its agent ended so; `time_up_ns` (monotonic) is when its time was over, None: it had no end."""
    if status == "infra_error":
        return status, refusal(calls) or reason
    failed = unrecovered(calls)
    if failed:
        end = "answered without it" if status == "ok" else f"then ended with {reason}"
        return "infra_error", f"{failed[-1].error}; the agent {end}"
    if any(_awaited_token(call) for call in calls if time_up_ns is not None and call.received_ns < time_up_ns <= call.ended_ns):
        return "infra_error", f"{reason or 'its time was over'}, and the backend owed a token of a call"
    if (beyond := next((call for call in calls if call.error_kind == LIMIT), None)) is not None:
        return "limit", beyond.error
    if status == "agent_error" and calls and context_is_full(calls[-1].http_status, calls[-1].error):
        return "limit", f"context: {calls[-1].error}"
    return status, reason


def refusal(calls: Sequence[LLMCall]) -> str:
    """The words with which a server refused what no further try changes: how it, or the suite, is set up. Empty where it did not.

    That is a key, a model or an address that it does not take, and any other 4xx before it answered a call of the rollout.
    """
    for call in unrecovered(calls):
        if call.error_kind == "http_status" and 400 <= (call.http_status or 0) < 500 and call.http_status not in TRANSIENT:
            answered = any(
                _is_same_target(other, call) and other.error_kind is None and other.received_ns < call.received_ns for other in calls
            )
            if call.http_status in REJECTED or not answered:
                return call.error
    return ""


def unrecovered(calls: Sequence[LLMCall]) -> list[LLMCall]:
    """The calls that the backend failed and that nothing made good."""
    return [call for call in calls if _backend_failed(call) and not any(_recovers(other, call) for other in calls)]


def _backend_failed(call: LLMCall) -> bool:
    return call.error_kind is not None and call.error_kind not in AGENT_ERRORS and not context_is_full(call.http_status, call.error)


def _recovers(other: LLMCall, failed: LLMCall) -> bool:
    """Whether this call went well, and is the failed one again or began after its end. One that ran beside it says nothing of it."""
    if other.error_kind is not None or other.received_ns <= failed.received_ns or not _is_same_target(other, failed):
        return False
    same = failed.request_crc is not None and (other.request_crc, other.request_bytes) == (failed.request_crc, failed.request_bytes)
    return same or other.received_ns >= failed.ended_ns


def _is_same_target(one: LLMCall, other: LLMCall) -> bool:
    """Whether two calls are made in one role at one endpoint: what another one answers says nothing of it."""
    return (one.role, one.endpoint) == (other.role, other.endpoint)


def _awaited_token(call: LLMCall) -> bool:
    """Whether a call that was broken off waited for its first token, or for the next one: after a silence longer than any before it."""
    if call.error_kind != "client_gone" or call.finish_reason is not None:
        return False
    begun = call.received_ns if call.sent_ns is None else call.sent_ns
    *earlier, last = (after - before for before, after in pairwise([begun, *(chunk.at_ns for chunk in call.output), call.ended_ns]))
    return not earlier or last > max(earlier)
