"""Which rollouts get another attempt, when, and which attempts are kept."""

from __future__ import annotations

import pytest

from pytest_agentbench.records import Attempt, LLMCall, Rollout, RolloutKey
from pytest_agentbench.rollouts.pool.failed_attempts import RetryPolicy, pause
from pytest_agentbench.runs.attempts import AttemptFailed

KEY = RolloutKey("shop", "a")


def rollout(status: str = "infra_error", **fields: object) -> Rollout:
    return Rollout(*KEY, status=status, reason=f"{status}: why", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("retry_after", "attempt", "seconds"),
    [(None, 1, 0.2), (None, 3, 0.8), (0.1, 1, 0.2), (7, 1, 7), (7, 9, 51.2), (3600, 1, 60), (None, 99, 60)],
)
def test_the_pause_before_the_next_attempt(retry_after: float | None, attempt: int, seconds: float) -> None:
    """The pause doubles, and is at least what the backend asked for with Retry-After and at most a minute."""
    call = LLMCall(received_ns=0, sent_ns=0, ended_ns=1, error_kind="rate_limited", retry_after_s=retry_after)
    failed = Rollout("shop", "a", "default", 1, status="infra_error", calls=(LLMCall(0, 0, 1, retry_after_s=99), call))

    assert seconds == pause(failed, attempt)
    assert 0.2 == pause(Rollout("shop", "a", "default", 1, status="infra_error"), 1)


def test_attempts_of_earlier_pools_count() -> None:
    """Attempts of earlier pools are in the record, and count as retries unless they were interrupted."""
    first = AttemptFailed(KEY, Attempt(1, "infra_error", "no route"), interrupted=False)
    second = AttemptFailed(KEY, Attempt(2, "infra_error", "interrupted"), interrupted=True)
    reported: list[AttemptFailed] = []
    retries = RetryPolicy(2, {KEY: [first, second]}, reported.append)

    third = retries.numbered(rollout())
    assert (3, (first.attempt, second.attempt)) == (third.attempt, third.earlier_attempts)
    assert 0.4 == retries.pause_after(third)

    retries.keep(KEY, third.attempts[-1], interrupted=False)
    fourth = retries.numbered(rollout())
    assert (4, [AttemptFailed(KEY, third.attempts[-1], interrupted=False)]) == (fourth.attempt, reported)
    assert retries.pause_after(fourth) is None


def test_attempts_of_a_rollout_that_is_over() -> None:
    """The attempts of a finished rollout are dropped."""
    retries = RetryPolicy(1, {KEY: [AttemptFailed(KEY, Attempt(1, "infra_error"), interrupted=True)]})

    assert 1 == retries.count(KEY)
    retries.forget(KEY)
    assert (0, 1) == (retries.count(KEY), retries.numbered(rollout()).attempt)


@pytest.mark.parametrize("status", ["ok", "limit", "agent_error", "cancelled"])
def test_nothing_but_an_infra_error_is_tried_again(status: str) -> None:
    """Only infra_error is retried."""
    assert RetryPolicy(5, {}).pause_after(rollout(status)) is None


def test_a_refusal_is_not_tried_again() -> None:
    """A refused request is not retried, because the server would refuse it again."""
    refused = LLMCall(received_ns=0, sent_ns=0, ended_ns=1, error_kind="http_status", http_status=401, error="no such key")

    assert RetryPolicy(5, {}).pause_after(rollout(calls=(refused,))) is None
