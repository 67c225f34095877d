"""The stopwatch's verdict on itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_agentbench.serving.cpu import CpuWatch
from pytest_agentbench.stopwatch import Reading, busiest, judge

GOOD = Reading(clean_share=1.0, read_lag_ms=0.1, itl_ms=20.0, client_queue_ms=1.0, tap_cpu=0.2, pool_cpu=0.5, stamps=("kernel",))
S = 1_000_000_000  # nanoseconds


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({}, "ok", ""),
        ({"clean_share": 0.999}, "ok", ""),
        ({"clean_share": 0.9989}, "warn", "99.89 % of the output events have a stamp of their own, fewer than 99.9 %"),
        ({"clean_share": 0.95}, "warn", "95 % of the output events have a stamp of their own, fewer than 99.9 %"),
        (
            {"clean_share": 0.9499},
            "warn",
            "94.99 % of the output events have a stamp of their own: the backend sends several at once, and their gaps are 0",
        ),
        (
            {"clean_share": 0.9499, "read_lag_ms": 1.01},
            "client-saturated",
            "94.99 % of the output events have a stamp of their own, fewer than 95 %",
        ),
        ({"read_lag_ms": 5.0}, "ok", ""),
        ({"read_lag_ms": 5.01}, "warn", "a read lag p99 of 5.01 ms is more than a quarter of the median gap, 20.00 ms"),
        ({"client_queue_ms": 5.0}, "ok", ""),
        ({"client_queue_ms": 5.1}, "warn", "a client queue p99 of 5.1 ms is more than 5 ms"),
        ({"tap_cpu": 0.9}, "ok", ""),
        (
            {"tap_cpu": 0.91},
            "client-saturated",
            "the tap took 91 % of a core in its busiest second, more than 90 %; --agentbench-taps 2 spreads calls over two",
        ),
        ({"agents_cpu": 1.8, "cores": 2}, "ok", ""),
        ({"agents_cpu": 9.0, "cores": None}, "ok", ""),
        (
            {"agents_cpu": 1.9, "cores": 2},
            "warn",
            "the agents' programs took 1.9 of 2 cores, so that rollouts waited for this machine; the calls' own times are right",
        ),
        ({"pool_cpu": 1.3}, "client-saturated", "the pool took 130 % of a core in its busiest second, more than 90 %"),
    ],
)
def test_verdicts(changes: Mapping[str, Any], verdict: str, reason: str) -> None:
    """Each limit is the last good value; what is beyond it is named with its number."""
    found = judge(replace(GOOD, **changes))

    assert (verdict, [reason] * bool(reason), []) == (found["verdict"], found["reasons"], found["notes"])


def test_all_reasons_are_named() -> None:
    """The worst counts, and what is behind it comes first."""
    found = judge(replace(GOOD, client_queue_ms=99.0, tap_cpu=1.0))

    assert "client-saturated" == found["verdict"]
    assert ["the tap", "a client queue"] == [reason.partition(" took")[0].partition(" p99")[0] for reason in found["reasons"]]


def test_what_is_not_known_is_said() -> None:
    """Stamps of user space tell no lag, a client may not say when it called, and a system not what its processes take."""
    found = judge(Reading(clean_share=1.0, stamps=("user",)))

    assert ("ok", 3) == (found["verdict"], len(found["notes"]))
    assert "stamps: user, so the read lag is not known" == found["notes"][0]


def test_nothing_measured() -> None:
    """Without an output event there is nothing to judge."""
    assert judge(Reading())["verdict"] is None


def test_the_busiest_second() -> None:
    """Only seconds count that had calls in flight for half of their time, and no mere moments."""
    samples = [(0, S, 0.99), (S, 2 * S, 0.5), (2 * S, 3 * S, 0.7), (3 * S, 4 * S, 0.8), (4 * S, 4 * S + S // 10, 1.0)]
    calls = [(S, 3 * S), (7 * S // 2 + 1, 5 * S)]

    assert 0.7 == busiest(samples, calls)
    assert 0.8 == busiest(samples, [(S, 4 * S)])
    assert busiest(samples, []) is None
    assert busiest([], calls) is None


class Worker:
    """A process whose CPU time is the time itself."""

    def cost(self) -> Mapping[str, float]:
        return {"cpu_s": time.monotonic() / 2}


class Gone:
    def cost(self) -> None:
        return None


def test_cpu_is_sampled() -> None:
    """Samples follow each other without a gap; a process that does not tell has none; the end takes a last one."""
    watch = CpuWatch(every_ns=5_000_000)
    watch.start({"tap": Worker(), "pool": Gone()})
    while len(watch.samples["tap"]) < 3:
        time.sleep(0.001)
    watch.stop()

    samples = watch.samples["tap"]
    assert [] == watch.samples["pool"]
    assert [end for _, end, _ in samples[:-1]] == [start for start, _, _ in samples[1:]]
    assert 0.5 == pytest.approx(sum(share * (end - start) for start, end, share in samples) / (samples[-1][1] - samples[0][0]), abs=0.1)
