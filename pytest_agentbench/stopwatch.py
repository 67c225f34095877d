"""How far the timings of a run can be trusted: the stopwatch's judgement of itself. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_agentbench.records import Json
from pytest_agentbench.windows import Span, overlap_ns

OK, WARN, SATURATED = "ok", "warn", "client-saturated"

CLEAN, CLEAN_AT_LEAST = 0.999, 0.95  # shares of output events with a stamp of their own
PROMPT_MS = 1.0  # a read lag p99 up to which the tap was never late, so that events which share a stamp were sent together
LAG_OF_ITL = 0.25  # how much of the median gap the read lag may be
QUEUE_MS = 5.0
CORE = 0.9  # share of a core above which a process is taken for saturated
SAMPLE_NS = 1_000_000_000  # between two samples of CPU time


@dataclass(frozen=True)
class Reading:
    """What is known about the stopwatch of a run; None for what is not."""

    clean_share: float | None = None  # of the output events of successful calls, those with a stamp of their own
    read_lag_ms: float | None = None  # p99 of how long an event lay in the kernel
    itl_ms: float | None = None  # median gap
    client_queue_ms: float | None = None  # p99
    tap_cpu: float | None = None  # share of one core, in the busiest second with calls in flight
    pool_cpu: float | None = None
    agents_cpu: float | None = None  # cores that programs of command agents took while any of them ran
    cores: int | None = None  # of this machine
    stamps: Sequence[str] = field(default=())  # where they were taken: user, kernel


def judge(reading: Reading) -> Json:
    """The verdict on a run's timings, with why; null where no call was measured.

    `client-saturated`: fewer than 95 % of the events have a stamp of their own, or a process took more than 0.9 of a core. Then the
    numbers are about this machine's client, not the backend. `warn`: fewer than 99.9 %, a read lag above a quarter of the median
    gap, a client queue above 5 ms, or agents that are programs and took more than 0.9 of the machine. Events that share a stamp
    although the tap read all within a millisecond were sent together by the backend: that makes gaps of 0, whoever measures them,
    and is a `warn`.
    """
    saturated, warned = _saturated(reading), _warned(reading)
    verdict = SATURATED if saturated else WARN if warned else OK
    return {
        "verdict": None if reading.clean_share is None else verdict,
        "reasons": saturated + warned,
        "notes": _notes(reading),
        "clean_share": reading.clean_share,
        "read_lag_ms": reading.read_lag_ms,
        "client_queue_ms": reading.client_queue_ms,
        "tap_cpu": reading.tap_cpu,
        "pool_cpu": reading.pool_cpu,
        "agents_cpu": reading.agents_cpu,
    }


def _saturated(reading: Reading) -> list[str]:
    reasons = []
    if reading.clean_share is not None and reading.clean_share < CLEAN_AT_LEAST and not _prompt(reading):
        reasons.append(
            f"{_percent(reading.clean_share)} of the output events have a stamp of their own, fewer than {_percent(CLEAN_AT_LEAST)}"
        )
    remedies = (("tap", reading.tap_cpu, "; --agentbench-taps 2 spreads calls over two"), ("pool", reading.pool_cpu, ""))
    for name, share, remedy in remedies:
        if share is not None and share > CORE:
            reasons.append(f"the {name} took {_percent(share)} of a core in its busiest second, more than {_percent(CORE)}{remedy}")
    return reasons


def _prompt(reading: Reading) -> bool:
    return reading.read_lag_ms is not None and reading.read_lag_ms <= PROMPT_MS


def _warned(reading: Reading) -> list[str]:
    reasons = []
    if reading.clean_share is not None and reading.clean_share < CLEAN:
        share = f"{_percent(reading.clean_share)} of the output events have a stamp of their own"
        if reading.clean_share >= CLEAN_AT_LEAST:
            reasons.append(f"{share}, fewer than {_percent(CLEAN)}")
        elif _prompt(reading):
            reasons.append(f"{share}: the backend sends several at once, and their gaps are 0")
    if reading.read_lag_ms is not None and reading.itl_ms and reading.read_lag_ms > LAG_OF_ITL * reading.itl_ms:
        reasons.append(f"a read lag p99 of {reading.read_lag_ms:.2f} ms is more than a quarter of the median gap, {reading.itl_ms:.2f} ms")
    if reading.client_queue_ms is not None and reading.client_queue_ms > QUEUE_MS:
        reasons.append(f"a client queue p99 of {reading.client_queue_ms:.1f} ms is more than {QUEUE_MS:g} ms")
    if reading.agents_cpu is not None and reading.cores and reading.agents_cpu > CORE * reading.cores:
        took = f"{reading.agents_cpu:.1f} of {reading.cores} cores"
        reasons.append(f"the agents' programs took {took}, so that rollouts waited for this machine; the calls' own times are right")
    return reasons


def _percent(share: float) -> str:
    return f"{share * 100:.4g} %"


def _notes(reading: Reading) -> list[str]:
    """What the verdict could not take into account."""
    notes = []
    if "user" in reading.stamps:
        notes.append("stamps: user, so the read lag is not known")
    if reading.client_queue_ms is None:
        notes.append("no client said when it made its calls, so the client queue is not known")
    if reading.tap_cpu is None or reading.pool_cpu is None:
        notes.append("no CPU share: no whole second with calls in flight was seen, or this system does not tell")
    return notes


def busiest(samples: Sequence[tuple[int, int, float]], calls: Sequence[Span]) -> float | None:
    """The greatest share of a core among samples (start and end in nanoseconds, share) that had calls in flight half the time.

    `calls` are in order and apart from each other. Samples of less than half a second are too coarse to count.
    """
    long = [sample for sample in samples if sample[1] - sample[0] >= SAMPLE_NS / 2]
    return max((share for start, end, share in long if 2 * overlap_ns((start, end), calls) >= end - start), default=None)
