"""Whether the agent or the backend caused the end of a rollout, for tables of calls."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.metrics.blame import AGENT_ERRORS, context_is_full, final_status, refusal, unrecovered
from pytest_agentbench.records import ERROR_KINDS, Chunk, LLMCall

SECOND = 1_000_000_000
FULL = "HTTP 400: This model's maximum Context Length is 4096"


def call(start: float = 0, end: float | None = None, *, tokens: tuple[float, ...] = (), **keys: Any) -> LLMCall:
    """Returns a call. Times of its receipt, tokens and end are seconds."""
    end = start + 1 if end is None else end
    chunks = tuple(Chunk(int(at * SECOND), "content") for at in tokens)
    return LLMCall(int(start * SECOND), int(start * SECOND), int(end * SECOND), chunks=chunks, **keys)


def broken(start: float = 0, end: float | None = None, status: int = 500, **keys: Any) -> LLMCall:
    return call(start, end, **{"error_kind": "server_error", "http_status": status, "error": f"HTTP {status}: boom", **keys})


def refused(start: float = 0, status: int = 400, **keys: Any) -> LLMCall:
    return broken(start, status=status, **{"error_kind": "http_status", **keys})


def left(start: float, end: float, *tokens: float, **keys: Any) -> LLMCall:
    return call(start, end, tokens=tokens, error_kind="client_gone", error="it hung up", **keys)


MISSED = refused(1, status=404, error_kind="not_recorded", error="not recorded")
LOST = ("infra_error", "HTTP 500: boom; the agent answered without it")


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], ("ok", "")),
        ([call(0)], ("ok", "")),
        ([broken(0)], LOST),
        ([call(0), broken(1)], LOST),
        ([broken(0), call(1)], ("ok", "")),  # sent again, or replaced by another request
        ([broken(0), broken(1), call(2)], ("ok", "")),
        ([broken(0), call(1), broken(2)], LOST),
        ([broken(0, 5), call(3)], LOST),  # both ran at the same time
        ([broken(0, 5, request_crc=7), call(3, request_crc=7)], ("ok", "")),  # the same request again, before the first one gave up
        ([broken(0, 5, request_crc=7), call(3, request_crc=8)], LOST),
        ([call(0, request_crc=7), broken(2, request_crc=7)], LOST),  # an earlier answer does not answer a later request
        ([broken(0), left(1, 2)], LOST),  # a call that the agent abandoned is not an answer
        ([left(0, 1)], ("ok", "")),
        ([call(0), broken(1, error_kind="bad_history", status=400)], ("ok", "")),
        ([refused(0, error=FULL)], ("ok", "")),
        ([call(0), MISSED, call(2)], ("infra_error", "not recorded")),  # a later answer does not make up for it
        ([broken(0, role="search"), call(1)], LOST),  # an answer of another role does not count
        ([broken(0, role="search"), call(1, role="search")], ("ok", "")),
        ([broken(0, role="judge", endpoint="http://one"), call(1, role="judge")], LOST),
    ],
)
def test_a_failed_call_has_to_be_repeated(calls: list[LLMCall], expected: tuple[str, str]) -> None:
    """A call that the backend failed makes the rollout an infra_error, unless the same call or a later one succeeds."""
    assert expected == final_status("ok", "", calls)


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_every_kind_of_failure_has_a_cause(kind: str) -> None:
    """Each kind of failure counts as caused by the backend, except those listed as the agent's."""
    calls = [broken(0, error_kind=kind)]

    assert ([] if kind in AGENT_ERRORS else calls) == unrecovered(calls)
    assert ("refused", "limit", "client_gone", "bad_history") == tuple(sorted(AGENT_ERRORS, reverse=True))


@pytest.mark.parametrize(
    ("status", "reason", "calls", "expected"),
    [
        ("agent_error", "KeyError", [broken(0)], ("infra_error", "HTTP 500: boom; the agent then ended with KeyError")),
        ("agent_error", "KeyError", [broken(0), call(1)], ("agent_error", "KeyError")),
        ("agent_error", "KeyError", [left(0, 1)], ("agent_error", "KeyError")),
        ("agent_error", "KeyError", [refused(0, error=FULL)], ("limit", f"context: {FULL}")),
        ("agent_error", "KeyError", [refused(0, error=FULL), call(1)], ("agent_error", "KeyError")),
        ("ok", "", [call(0), broken(1, error_kind="limit", error="calls: enough")], ("limit", "calls: enough")),
        ("agent_error", "KeyError", [broken(0, error_kind="limit", error="calls: enough")], ("limit", "calls: enough")),
        ("ok", "", [broken(0), broken(1, error_kind="limit")], LOST),
        ("limit", "turns: 3", [call(0), broken(1)], ("infra_error", "HTTP 500: boom; the agent then ended with turns: 3")),
        ("limit", "turns: 3", [broken(0), call(1)], ("limit", "turns: 3")),
        ("infra_error", "the judge is gone", [call(0)], ("infra_error", "the judge is gone")),
        ("infra_error", "HTTP 400: no", [refused(0, error="HTTP 400: no; advice")], ("infra_error", "HTTP 400: no; advice")),
    ],
)
def test_the_end_of_the_agent_does_not_matter(status: str, reason: str, calls: list[LLMCall], expected: tuple[str, str]) -> None:
    """After a failed call, it does not matter how the agent ends. Exceeding the context length is a limit.

    The reason of a refusal is the error of the tap, which may add advice to the server's message.
    """
    assert expected == final_status(status, reason, calls)


TIME = "time: the rollout took longer than 10 s"
OWED = f"{TIME}, while a call was waiting for a token of the backend"


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], ("limit", TIME)),
        ([call(0, 9)], ("limit", TIME)),  # the agent itself was at work
        ([left(1, 10)], ("infra_error", OWED)),
        ([left(9.9, 10)], ("infra_error", OWED)),
        ([left(1, 10, 2, 3)], ("infra_error", OWED)),  # seven seconds of silence after gaps of one
        ([left(1, 10, 8)], ("limit", TIME)),  # two after seven
        ([left(1, 10, 3, 5, 7, 9)], ("limit", TIME)),
        ([left(1, 10, 2, 3, finish_reason="stop")], ("limit", TIME)),  # only the end mark was still to come
        ([left(1, 10, *(1 + number / 10 for number in range(1, 90)))], ("limit", TIME)),
        ([left(1, 10, 9), left(2, 10)], ("infra_error", OWED)),
        ([left(1, 9)], ("limit", TIME)),  # the agent had hung up before
        ([left(1, 11)], ("infra_error", OWED)),
        ([left(10.5, 11)], ("limit", TIME)),  # the agent's code continued after its time was over
    ],
)
def test_a_time_limit_while_the_backend_is_late(calls: list[LLMCall], expected: tuple[str, str]) -> None:
    """If a call waits for its first token, or longer than before for the next one, when time is up, the backend is the cause."""
    assert expected == final_status("limit", TIME, calls, 10 * SECOND)
    assert ("limit", TIME) == final_status("limit", TIME, calls)  # without a known end of the rollout


def test_a_call_that_was_never_sent() -> None:
    """A call that still waited for a connection or a rate limit when time was up counts as waiting for its first token."""
    waiting = LLMCall(0, None, 10 * SECOND, error_kind="client_gone")

    assert ("infra_error", OWED) == final_status("limit", TIME, [waiting], 10 * SECOND)


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ([], ""),
        ([refused(0)], "HTTP 400: boom"),
        ([refused(0, 422)], "HTTP 422: boom"),
        ([refused(0), call(1)], ""),  # another request succeeded
        ([call(0), refused(1)], ""),
        *(([call(0), refused(1, status)], f"HTTP {status}: boom") for status in (401, 403, 404)),
        ([refused(0), refused(1, 404)], "HTTP 400: boom"),
        ([refused(0, 408)], ""),
        ([broken(0, status=429, error_kind="rate_limited")], ""),
        ([broken(0)], ""),
        ([refused(0, 302, error_kind="redirect")], ""),
        ([refused(0, error=FULL)], ""),
        ([refused(0, error_kind="bad_history")], ""),
    ],
)
def test_refusals(calls: list[LLMCall], words: str) -> None:
    """A 4xx before the first answer, or a rejected key, model or address, is a refusal that a retry does not change."""
    assert words == refusal(calls)


@pytest.mark.parametrize(
    ("status", "message", "full"),
    [
        (400, "This model's maximum context length is 2048 tokens. However, your messages resulted in 9011 tokens.", True),
        (400, "The input (5000 tokens) is longer than the model's context length (4096 tokens).", True),
        (400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096.", True),
        (400, "prompt is too long: 210000 tokens > 200000 maximum", True),
        (422, "context_length_exceeded", True),
        (500, "This model's maximum context length is 2048 tokens.", False),
        (400, "The name of a tool is too long.", False),
        (None, "maximum context length", False),
    ],
)
def test_a_full_context(status: int | None, message: str, full: bool) -> None:
    """Refusals because of the context length are recognised, although the messages of servers differ."""
    assert full == context_is_full(status, message)


def test_a_call_that_was_not_recorded_is_refused() -> None:
    """Repeating it cannot help, even if calls before it were answered."""
    assert "not recorded" == refusal([call(0), MISSED, call(2)])
