"""The slowest LLM calls."""

from __future__ import annotations

from pytest_agentbench.metrics import performance
from pytest_agentbench.metrics.performance import FIVE, SlowCall
from pytest_agentbench.records import LLMCall
from tests.frames import scenarios_of
from tests.made_runs import run_of
from tests.tables.shop import ALL, MS, START, call, rollout


def slowest(*calls: LLMCall, most: int = FIVE) -> list[SlowCall]:
    """Returns the slowest calls of a rollout with these calls."""
    return [found for _, found in performance.slowest(scenarios_of(rollout(end=100_000, calls=calls)), most)]


def test_parts() -> None:
    """The duration of a slow call begins with the agent's call. It has its number, the parts of its duration, and its tokens."""
    queued = call(500, 700, end=800, called_ns=START + 300 * MS, received_ns=START + 310 * MS, held_ns=50 * MS)
    first, second = slowest(call(0, 100, 120, 160, end=200), queued)

    assert SlowCall("shop[shop-0]", 1, 2, 2, 500.0, 200.0, 200.0, 100.0, 100, 60, 1, None) == first
    assert (1, 200.0, 0.0, 100.0, 100.0) == (second.number, second.total_ms, second.queue_ms, second.first_token_ms, second.decoding_ms)


def test_an_unknown_time_of_the_call() -> None:
    """If the client did not report when it called, the duration begins with the receipt at the tap."""
    [only] = slowest(call(500, 700, end=800, called_ns=None, received_ns=START + 400 * MS))

    assert (400.0, 100.0) == (only.total_ms, only.queue_ms)


def test_failed_calls() -> None:
    """Failed calls are included without latencies. A call that was not sent has no queue time."""
    [only] = slowest(call(0, 10, end=5_000, error_kind="connect", sent_ns=None))

    assert (5_000.0, "connect", None, None, None) == (
        *(only.total_ms, only.error_kind),
        *(only.queue_ms, only.first_token_ms, only.decoding_ms),
    )


def test_most() -> None:
    """Only the given number of calls is kept. If calls are equally slow, the first are kept."""
    calls = [call(at * 1_000, at * 1_000 + 1, end=at * 1_000 + took) for at, took in enumerate((10, 30, 30, 20, 30, 5))]

    assert [2, 3, 5, 4] == [each.number for each in slowest(*calls, most=4)]
    assert [2, 3] == [each.number for each in slowest(*calls, most=2)]
    assert [] == slowest(LLMCall(0, None, 0))


def test_places() -> None:
    """Each slow call has its index among all calls of the slice."""
    part = scenarios_of(rollout(calls=(call(0, 1, end=10), call(20, 21, end=50), call(60, 61, end=80))))

    assert [1, 2] == [place for place, _ in performance.slowest(part, 2)]


def test_in_a_run() -> None:
    """A run has the slowest calls of all attempts at all rollouts, without calls of judges."""
    calls = run_of(*ALL).performance.slowest_calls

    assert [(700.0, 2, None), (300.0, 1, None), (200.0, 1, None), (100.0, 1, "server_error")] == [
        (each.total_ms, each.attempt, each.error_kind) for each in calls
    ]
