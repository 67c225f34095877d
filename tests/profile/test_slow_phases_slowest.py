"""The slowest calls of a run, and why they were slow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.profile import SLOWEST, read_profile
from pytest_agentbench.profile.slow_phases import Explanation
from pytest_agentbench.records import LLMCall
from tests.made_runs import run_directory
from tests.tables.shop import ALL, MS, START, call, rollout

#: Ten calls, one after the other, with 100 ms to the first token and then 20 ms per token.
USUAL = tuple(call(at, at + 100, at + 120, at + 140, end=at + 150) for at in range(0, 10_000, 1_000))


def slowest(folder: Path, *calls: LLMCall) -> tuple[Explanation, ...]:
    """Returns the slowest calls of a run with one rollout of these calls."""
    return read_profile(run_directory(folder / "run", rollout(end=100_000, calls=calls))).slowest


def why(folder: Path, odd: LLMCall) -> str:
    """Returns why a call is the slowest in a run whose other calls are all equal."""
    first, *_ = slowest(folder, *USUAL, odd)
    assert len(USUAL) + 1 == first.call.number

    return first.why


def test_only_the_slowest(tmp_path: Path) -> None:
    """At most ten calls are listed, the longest first."""
    calls = [call(at, at + 10, end=at + 100 + at // 1_000) for at in range(0, 30_000, 1_000)]
    times = [each.call.total_ms for each in slowest(tmp_path, *calls)]

    assert [129.0 - place for place in range(SLOWEST)] == times


def test_failed_calls_are_included(tmp_path: Path) -> None:
    """Failed calls are included, with the kind of failure."""
    first, *_ = slowest(tmp_path, *USUAL, call(20_000, end=25_000, error_kind="timeout_idle"))

    assert "failed: a stream stalled: no further output came within its budget" == first.why


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        (call(20_000, 20_100, 20_120, end=20_150, called_ns=START + 15_000 * MS), "it waited in the client before it was sent"),
        (
            call(20_000, 20_100, 20_120, end=20_150, called_ns=START + 15_000 * MS, held_ns=5_000 * MS),
            "the backend's rate limit held it back",
        ),
        (
            call(20_000, 25_000, 25_020, end=25_050, cached_tokens=0),
            "its first token was late: 100 prompt tokens that were not in the cache, usually 40",
        ),
        (
            call(20_000, 25_000, 25_020, end=25_050, cached_tokens=None, prompt_tokens=900),
            "its first token was late: 900 prompt tokens, usually 100",
        ),
        (
            call(20_000, 25_000, 25_020, end=25_050),
            "its first token was late, but neither its prompt nor the calls in flight explain it",
        ),
        (call(20_000, 20_100, 20_120, 24_000, end=24_010), "it stalled: one gap of 3,880.0 ms"),
        (call(20_000, *range(20_100, 24_000, 20), end=24_000), "a long answer: 195 tokens, usually 3"),
        (call(20_000, 20_100, 21_100, 22_100, 23_100, end=23_110), "slow tokens: 1,000.0 ms each, usually 20.0"),
        (call(20_000, 20_100, end=25_000), "the end of its answer was late"),
        (call(20_000, end=25_000, streamed=False), "it did not stream, so the time of its first token is unknown"),
    ],
    ids=["client", "rate-limit", "cold", "long-prompt", "nothing", "stall", "long-answer", "slow-tokens", "end", "whole"],
)
def test_why(tmp_path: Path, odd: LLMCall, expected: str) -> None:
    """The explanation is about the part of the call that exceeds its median most."""
    assert expected == why(tmp_path, odd)


def test_many_in_flight(tmp_path: Path) -> None:
    """A late first token is explained by an unusual number of calls in flight."""
    at_once = tuple(call(20_000 + each, 20_100, 20_120, end=20_200) for each in range(5))
    late = call(20_005, 20_900, 20_920, end=20_950)
    first, *_ = slowest(tmp_path, *USUAL, *at_once, late)

    assert (6, "its first token was late: 6 calls were in flight, usually 1 or fewer") == (first.in_flight, first.why)


def test_calls_without_times(tmp_path: Path) -> None:
    """Calls without known times have a duration, but their number of calls in flight is unknown."""
    untimed = replace(rollout(calls=(call(0, 10, end=20),)), started_ns=0, ended_ns=0)
    profile = read_profile(run_directory(tmp_path / "run", untimed))

    assert (1, 0, None) == (profile.calls, profile.timed, profile.concurrency)
    assert [(20.0, 0)] == [(each.call.total_ms, each.in_flight) for each in profile.slowest]


def test_judges_are_left_out(tmp_path: Path) -> None:
    """Calls of judges are left out. Calls of earlier attempts are included."""
    profile = read_profile(run_directory(tmp_path / "run", *ALL))

    assert [2, 1, 1, 1] == [each.call.attempt for each in profile.slowest]
    assert ["failed: any other HTTP 5xx"] == [each.why for each in profile.slowest if each.call.error_kind]
    assert 4 == profile.calls == profile.timed
