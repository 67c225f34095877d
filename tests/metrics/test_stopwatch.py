"""The verdict on timing quality."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_agentbench.backends.machine.cpu import CpuWatch
from pytest_agentbench.metrics.stopwatch import READ_TOO_LATE, Stopwatch, StopwatchEvidence, busiest, judge, unusable_reason

GOOD = StopwatchEvidence(
    clean_share=1.0, read_lag_ms=0.1, client_queue_ms=1.0, client_queue_share=0.01, tap_cpu=0.2, pool_cpu=0.5, stamps=("kernel",)
)
S = 1_000_000_000  # nanoseconds


def late(names: str) -> str:
    return f"chunks arrive faster than this machine reads them; not usable: {names}; use a lower concurrency, or --agentbench-taps 2"


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({}, "ok", ""),
        ({"late_effects": {"itl.p50": 0.05, "itl.p99": 0.05}}, "ok", ""),
        ({"late_effects": {"itl.p99": 0.051}}, "warn", late("ITL p99")),
        ({"late_effects": {"itl.p95": 0.1, "itl.p99": 1.0}}, "warn", late("ITL from p95 on")),
        ({"late_effects": {"itl.p90": 0.1, "itl.p95": 0.0, "itl.p99": 1.0}}, "warn", late("ITL p90, ITL p99")),
        ({"late_effects": {"itl.p50": 0.1}}, "client-saturated", late("ITL p50")),
        ({"late_effects": {"ttft.p99": 0.1, "tpot.p99": 0.1}}, "warn", late("TTFT p99, TPOT p99")),
        ({"late_judgements": {"itl": 0.01}}, "ok", ""),
        ({"late_judgements": {"itl": 0.011}}, "warn", late("goodput by ITL")),
        ({"clean_share": 0.951}, "ok", ""),
        ({"clean_share": 0.9499}, "warn", "the backend sends several chunks at once, so the gaps between them are 0"),
        ({"read_lag_ms": 50.0}, "ok", ""),
        ({"client_queue_share": 0.05, "client_queue_ms": 50.0}, "ok", ""),
        (
            {"client_queue_share": 0.051},
            "warn",
            "calls waited on this machine before they were sent, which only the client queue includes; use a lower concurrency",
        ),
        ({"tap_cpu": 0.9}, "ok", ""),
        (
            {"tap_cpu": 0.91},
            "client-saturated",
            "the tap does not get enough CPU time; --agentbench-taps 2 spreads calls over two processes",
        ),
        ({"agents_cpu": 1.8, "cores": 2}, "ok", ""),
        ({"agents_cpu": 9.0, "cores": None}, "ok", ""),
        (
            {"agents_cpu": 1.9, "cores": 2},
            "warn",
            "the agents' programs used all CPUs of their machine, which delayed rollouts; the times of LLM calls are correct",
        ),
        (
            {"nice": ("w3 on node-c",)},
            "warn",
            "other processes take precedence over w3 on node-c (nice value above 0), which may delay its timestamps",
        ),
        ({"pool_cpu": 1.3}, "client-saturated", "the pool (the agents) does not get enough CPU time; use a lower concurrency"),
    ],
)
def test_verdicts(changes: Mapping[str, Any], verdict: str, reason: str) -> None:
    """A value at a limit is good. Beyond it, the reason says what was found, what is not usable, and what to do."""
    found = judge(replace(GOOD, **changes))

    assert (verdict, (reason,) * bool(reason), ()) == (found.verdict, found.reasons, found.notes)


def test_all_reasons_are_named() -> None:
    """The worst verdict counts, and its reasons come first."""
    found = judge(replace(GOOD, client_queue_share=0.99, tap_cpu=1.0))

    assert "client-saturated" == found.verdict
    assert ["the tap", "calls waited"] == [" ".join(reason.split()[:2]) for reason in found.reasons]


@pytest.mark.parametrize(
    ("verdict", "name", "why"),
    [
        ("ok", "ttft.p99", ""),
        ("warn", "itl.p95", ""),
        ("warn", "itl.p99", f"ITL p99 is not usable: {READ_TOO_LATE}"),
        ("warn", "goodput.itl", f"goodput by ITL is not usable: {READ_TOO_LATE}"),
        ("client-saturated", "e2e.p50", "the client was saturated, so its timings describe the client, not the backend"),
    ],
)
def test_reasons_why_a_timing_is_unusable(verdict: str, name: str, why: str) -> None:
    """A percentile or objective is not usable if it is listed. With a saturated client none is usable."""
    assert why == unusable_reason(Stopwatch(verdict=verdict, unusable=("itl.p99", "goodput.itl") * (verdict == "warn")), name)


def test_notes_about_unknown_data() -> None:
    """Notes name unknown data: read lag (user-space timestamps), client queue, and CPU shares."""
    found = judge(StopwatchEvidence(clean_share=1.0, stamps=("user",)))

    assert ("ok", 3) == (found.verdict, len(found.notes))
    assert "timestamps were taken in user space, so the read lag is unknown" == found.notes[0]


def test_nothing_measured() -> None:
    """Without output events the verdict is None."""
    assert judge(StopwatchEvidence()).verdict is None


def test_the_busiest_second() -> None:
    """The busiest second is taken from samples that are long enough, and during which calls were in flight for half of the time."""
    samples = [(0, S, 0.99), (S, 2 * S, 0.5), (2 * S, 3 * S, 0.7), (3 * S, 4 * S, 0.8), (4 * S, 4 * S + S // 10, 1.0)]
    calls = [(S, 3 * S), (7 * S // 2 + 1, 5 * S)]

    assert 0.7 == busiest(samples, calls)
    assert 0.8 == busiest(samples, [(S, 4 * S)])
    assert busiest(samples, []) is None
    assert busiest([], calls) is None


class Worker:
    """A process that uses half of a CPU all the time."""

    def cost(self) -> Mapping[str, float]:
        return {"cpu_s": time.monotonic() / 2}


class Gone:
    def cost(self) -> None:
        return None


def test_cpu_is_sampled() -> None:
    """Samples of CPU time follow each other without gaps, and a last one is taken at the end.

    A process without CPU times has no samples.
    """
    watch = CpuWatch(every_ns=5_000_000)
    watch.start({"tap": Worker(), "pool": Gone()})
    while len(watch.samples["tap"]) < 3:
        time.sleep(0.001)
    watch.stop()

    samples = watch.samples["tap"]
    assert [] == watch.samples["pool"]
    assert [end for _, end, _ in samples[:-1]] == [start for start, _, _ in samples[1:]]
    assert 0.5 == pytest.approx(sum(share * (end - start) for start, end, share in samples) / (samples[-1][1] - samples[0][0]), abs=0.1)
