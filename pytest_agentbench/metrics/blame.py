"""Decides from the records of a rollout's calls whether agent or backend caused its end. The agent's own report does not matter.

A call that failed because of the backend is recovered by a successful call to the same endpoint in the same role: the same request again,
or any call that began after the failure. If a call was not recovered, the rollout counts as `infra_error`, however it ended.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from pytest_agentbench.records import NOT_RECORDED, LLMCall

#: Kind of failure of a call that was refused because a limit was reached.
LIMIT = "limit"

#: Kinds of failures that are caused by the agent.
AGENT_ERRORS = frozenset({"client_gone", "bad_history", "refused", LIMIT})

#: HTTP statuses for a rejected key, permission, model or address. They do not depend on the content of the request.
REJECTED = frozenset({401, 403, 404})

#: HTTP statuses below 500 that may disappear when the request is repeated: a timeout, a conflict, a request that came too early.
TRANSIENT = frozenset({408, 409, 425})

_CONTEXT_FULL = re.compile(r"context[ _](?:length|window)|maximum model length|max_model_len|max_seq_len|prompt is too long", re.IGNORECASE)


def context_is_full(status: int | None, message: str) -> bool:
    """Returns whether a server refused a request because it exceeds the context length of the model."""
    return status in (400, 413, 422) and bool(_CONTEXT_FULL.search(message))


def final_status(status: str, reason: str, calls: Sequence[LLMCall], time_up_ns: int | None = None) -> tuple[str, str]:
    """Returns the final status and reason of a rollout.

    Args:
        status: Status with which the agent ended.
        reason: Reason with which the agent ended.
        calls: Calls of the attempt.
        time_up_ns: When the time limit of the rollout was reached, monotonic nanoseconds. None without a time limit.
    """
    if status == "infra_error" or _not_recorded(calls):
        return "infra_error", refusal(calls) or reason
    failed = unrecovered(calls)
    if failed:
        end = "answered without it" if status == "ok" else f"then ended with {reason}"
        return "infra_error", f"{failed[-1].error}; the agent {end}"
    if any(_awaited_token(call) for call in calls if time_up_ns is not None and call.received_ns < time_up_ns <= call.ended_ns):
        return "infra_error", f"{reason or 'its time was over'}, while a call was waiting for a token of the backend"
    if (beyond := next((call for call in calls if call.error_kind == LIMIT), None)) is not None:
        return "limit", beyond.error
    if status == "agent_error" and calls and context_is_full(calls[-1].http_status, calls[-1].error):
        return "limit", f"context: {calls[-1].error}"
    return status, reason


def refusal(calls: Sequence[LLMCall]) -> str:
    """Returns the server's message if it refused a call for a reason that a retry does not change. Empty if it did not.

    Such reasons are a rejected key, permission, model or address, a request that a recording does not contain, and any other 4xx before the
    first answered call of the rollout.
    """
    if missed := _not_recorded(calls):
        return missed
    for call in unrecovered(calls):
        if call.error_kind == "http_status" and 400 <= (call.http_status or 0) < 500 and call.http_status not in TRANSIENT:
            answered = any(
                _is_same_target(other, call) and other.error_kind is None and other.received_ns < call.received_ns for other in calls
            )
            if call.http_status in REJECTED or not answered:
                return call.error
    return ""


def _not_recorded(calls: Sequence[LLMCall]) -> str:
    """Returns the sentence about the first request that a recording does not contain, or an empty string. No later call recovers it."""
    return next((call.error for call in calls if call.error_kind == NOT_RECORDED), "")


def unrecovered(calls: Sequence[LLMCall]) -> list[LLMCall]:
    """Returns the calls that failed because of the backend and were not recovered by another call."""
    return [call for call in calls if _backend_failed(call) and not any(_recovers(other, call) for other in calls)]


def _backend_failed(call: LLMCall) -> bool:
    return call.error_kind is not None and call.error_kind not in AGENT_ERRORS and not context_is_full(call.http_status, call.error)


def _recovers(other: LLMCall, failed: LLMCall) -> bool:
    """Returns whether a successful call recovers a failed one: it is the same request, or it began after the failure."""
    if other.error_kind is not None or other.received_ns <= failed.received_ns or not _is_same_target(other, failed):
        return False
    same = failed.request_crc is not None and (other.request_crc, other.request_bytes) == (failed.request_crc, failed.request_bytes)
    return same or other.received_ns >= failed.ended_ns


def _is_same_target(one: LLMCall, other: LLMCall) -> bool:
    """Returns whether two calls have the same role and endpoint. Only such calls recover each other."""
    return (one.role, one.endpoint) == (other.role, other.endpoint)


def _awaited_token(call: LLMCall) -> bool:
    """Returns whether the agent closed the connection of a call before its first token, or during its longest wait for a token."""
    if call.error_kind != "client_gone" or call.finish_reason is not None:
        return False
    begun = call.received_ns if call.sent_ns is None else call.sent_ns
    *earlier, last = (after - before for before, after in pairwise([begun, *(chunk.at_ns for chunk in call.output), call.ended_ns]))
    return not earlier or last > max(earlier)
