"""How far the timings of a run can be trusted: the stopwatch's judgement of itself, and what events read late do to percentiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from pytest_agentbench.metrics.registry import title_of
from pytest_agentbench.metrics.terms import Objective, misses
from pytest_agentbench.metrics.timeline import Span, overlap_ns
from pytest_agentbench.metrics.timings import TIMESTAMP_METRICS
from pytest_agentbench.stats.quantiles import HIGH, percentile

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Rows, Slice
    from pytest_agentbench.stats.series import Floats


def effects(part: Slice) -> dict[str, float]:
    """Returns `itl.p99` -> how far the percentile is from that of events spread evenly, as a share of the latter.

    Every share is 0 if no event was late.
    """
    if not part.successful_calls["late_events"].any():
        return {f"{name}.p{q}": 0.0 for name in TIMESTAMP_METRICS for q in HIGH}
    return {
        f"{name}.p{q}": _difference(percentile(measured, q), percentile(evened, q))
        for name, (measured, evened) in _timings(part).items()
        for q in HIGH
    }


def _timings(part: Slice) -> dict[str, tuple[Floats, Floats]]:
    """Returns metric -> milliseconds of calls or of their events, as measured and spread evenly."""
    import numpy as np

    from pytest_agentbench.metrics.frame import milliseconds

    calls = part.successful_calls
    on_time = calls.mask & (part.frame.calls["late_events"] == 0)
    gaps = part.frame.events("itl")
    evened = np.concatenate([gaps.of(on_time), part.frame.evened.of(calls.mask & ~on_time)])
    of_events = milliseconds(gaps.of(calls.mask)), milliseconds(evened)
    return {name: (calls[f"{name}_ms"], _evened(calls, name, f"{name}_ms")) for name in ("ttft", "tpot")} | {"itl": of_events}


def _evened(calls: Rows, name: str, column: str) -> Floats:
    """Returns a column of calls as it would be if late events were spread evenly."""
    values = calls[column].copy()
    is_late = calls["late_events"] > 0
    values[is_late] = calls[f"evened_{name}_ms"][is_late]
    return values


def flipped(part: Slice) -> dict[str, float]:
    """Returns objective -> share of the calls with output that late events may have put on the wrong side of it."""
    calls = part.successful_calls
    timed = int((calls["timed_events"] > 0).sum())
    found = sorted((each for each in part.terms.objectives if each.name in TIMESTAMP_METRICS), key=lambda each: each.name)
    return {each.name: _flips(calls, each) / timed if timed else 0.0 for each in found}


def _flips(calls: Rows, objective: Objective) -> int:
    measured = misses(calls.__getitem__, objective)
    evened = misses(lambda column: _evened(calls, objective.name, column), objective)
    return int((measured != evened).sum())


def _difference(measured: float | None, evened: float | None) -> float:
    if not measured or not evened:
        return 0.0 if measured == evened else 1.0
    return abs(measured - evened) / evened


OK, WARN, SATURATED = "ok", "warn", "client-saturated"

OFF = 0.05  # how far a percentile may be from what it would be without late events, as a share of that
OF_EVENTS = 0.05  # of the events that a backend may send together
OF_CALLS = 0.01  # of the calls that may be judged wrongly: goodput is read to a percent
OF_QUEUE = 0.05  # of the time that calls took their agents
CORE = 0.9  # share of a core above which a process is taken for saturated
SAMPLE_NS = 1_000_000_000  # between two samples of CPU time

SATURATED_WORDS = "the client was saturated: its timings are the client's own"


@dataclass(frozen=True, kw_only=True)
class StopwatchFigures:
    """What is known about the stopwatch of a run; None for what is not."""

    clean_share: float | None = None  # of the output events of successful calls, those with a stamp of their own, 0 to 1
    late_share: float = 0.0  # of the same events, those that share a stamp because this machine read them late
    late_first_share: float = 0.0  # of the calls with output events, those whose first event is such
    late_calls_share: float = 0.0  # of the same calls, those with any
    # `itl.p99` and others: how far the percentile is from that of events spread evenly, as a share of the latter
    late_effects: Mapping[str, float] = field(default_factory=dict)
    # objective of the SLO: share of the calls that late events may have put on the wrong side of it
    late_judgements: Mapping[str, float] = field(default_factory=dict)
    read_lag_ms: float | None = (
        None  # p99 of the time that an event waited to be read (the greatest of fewer than 100); null: `user` stamps
    )
    client_queue_ms: float | None = None  # p99 of the client queue (the greatest of fewer than 100); null when no client says when it calls
    client_queue_share: float | None = None  # of the time from agents' calls to the ends of their answers, what was client queue
    tap_cpu: float | None = None  # share of one core, in the busiest second with calls in flight
    pool_cpu: float | None = None  # share of one core, likewise
    agents_cpu: float | None = None  # cores that the programs of [command agents](command-agents.md) took while any of them ran


@dataclass(frozen=True, kw_only=True)
class StopwatchEvidence(StopwatchFigures):
    """All that a verdict rests on."""

    cores: int | None = None  # of this machine
    stamps: Sequence[str] = field(default=())  # where they were taken: user, kernel


@dataclass(frozen=True, kw_only=True)
class Stopwatch(StopwatchFigures):
    """[How far the timings can be trusted](metrics.md#timing-quality)."""

    verdict: str | None  # `ok`, `warn` or `client-saturated`; null when no call was measured
    reasons: tuple[str, ...] = ()  # why it is not `ok`, what made it `client-saturated` first
    notes: tuple[str, ...] = ()  # what the verdict could not take into account
    unusable: tuple[str, ...] = ()  # percentiles (`itl.p99`) and objectives (`goodput.itl`) that say nothing of the backend


def judge(evidence: StopwatchEvidence) -> Stopwatch:
    """The verdict on a run's timings, with why, and what is not usable; null where no call was measured.

    `client-saturated`: not even the median gap is usable, or a process took more than 0.9 of a core. Then the numbers are about this
    machine's client, not the backend. `warn`: something is not usable, calls spent more than 0.05 of their time in the client queue,
    or agents that are programs took more than 0.9 of the machine. Events that share a stamp although the tap read in time were sent
    together by the backend: that makes gaps of 0, whoever measures them; where it is one event in twenty it is a `warn`, and everything
    is usable.
    """
    unusable = [*_unusable(evidence)]
    saturated, warned = [*_saturated(evidence, unusable)], [*_warned(evidence, unusable)]
    verdict = SATURATED if saturated else WARN if warned else OK
    return Stopwatch(
        verdict=None if evidence.clean_share is None else verdict,
        reasons=(*saturated, *warned),
        notes=tuple(_notes(evidence)),
        unusable=tuple(unusable),
        **{each.name: getattr(evidence, each.name) for each in fields(StopwatchFigures)},
    )


def doubt(stopwatch: Stopwatch, name: str) -> str:
    """Why a run's `ttft.p99`, or the objective `goodput.itl`, says nothing of its backend; empty where it does."""
    if stopwatch.verdict == SATURATED:
        return SATURATED_WORDS
    if name in stopwatch.unusable:
        return f"{title(name)} is not usable: chunks arrived faster than the client's machine read them"
    return ""


def title(name: str) -> str:
    """`ITL p99` of `itl.p99`, `goodput by ITL` of `goodput.itl`."""
    metric, _, statistic = name.partition(".")
    return f"goodput by {title_of(statistic)}" if metric == "goodput" else f"{title_of(metric)} {statistic}"


def _unusable(evidence: StopwatchEvidence) -> Iterator[str]:
    yield from (name for name, effect in evidence.late_effects.items() if effect > OFF)
    yield from (f"goodput.{objective}" for objective, share in evidence.late_judgements.items() if share > OF_CALLS)


def _saturated(evidence: StopwatchEvidence, unusable: Sequence[str]) -> Iterator[str]:
    if "itl.p50" in unusable:
        yield _late(unusable)
    if evidence.tap_cpu is not None and evidence.tap_cpu > CORE:
        yield "the tap has too little of the CPU; --agentbench-taps 2 spreads calls over two"
    if evidence.pool_cpu is not None and evidence.pool_cpu > CORE:
        yield "the pool (the agents) has too little of the CPU; fewer in flight"


def _warned(evidence: StopwatchEvidence, unusable: Sequence[str]) -> Iterator[str]:
    if unusable and "itl.p50" not in unusable:
        yield _late(unusable)
    if evidence.clean_share is not None and 1 - evidence.clean_share - evidence.late_share > OF_EVENTS:
        yield "the backend sends several chunks at once, and the gaps between them are 0"
    if evidence.client_queue_share is not None and evidence.client_queue_share > OF_QUEUE:
        yield "calls waited in this machine before they were sent, which no latency but the client queue counts; fewer in flight"
    if evidence.agents_cpu is not None and evidence.cores and evidence.agents_cpu > CORE * evidence.cores:
        yield "the agents' programs took this whole machine, so that rollouts waited for it; the calls' own times are right"


def _late(unusable: Sequence[str]) -> str:
    return (
        f"chunks arrive faster than this machine reads them; not usable: {', '.join(_together(unusable))}; "
        "fewer in flight, or --agentbench-taps 2"
    )


def _together(unusable: Sequence[str]) -> Iterator[str]:
    """`ITL p99`, `TTFT from p95 on` where all above is not usable either, `goodput by ITL`."""
    metrics: dict[str, list[str]] = {}
    for name in unusable:
        metrics.setdefault(name if name.startswith("goodput") else name.partition(".")[0], []).append(name)
    for metric, names in metrics.items():
        if len(names) > 1 and names == [f"{metric}.p{q}" for q in HIGH[-len(names) :]]:
            yield title(names[0]).replace(" ", " from ") + " on"
        else:
            yield from map(title, names)


def _notes(evidence: StopwatchEvidence) -> list[str]:
    """What the verdict could not take into account."""
    notes = []
    if "user" in evidence.stamps:
        notes.append("stamps: user, so the read lag is not known")
    if evidence.client_queue_ms is None:
        notes.append("no client said when it made its calls, so the client queue is not known")
    if evidence.tap_cpu is None or evidence.pool_cpu is None:
        notes.append("no CPU share: no whole second with calls in flight was seen, or this system does not tell")
    return notes


def busiest(samples: Sequence[tuple[int, int, float]], calls: Sequence[Span]) -> float | None:
    """The greatest share of a core among samples (start and end in nanoseconds, share) that had calls in flight half the time.

    `calls` are in order and apart from each other. Samples of less than half a second are too coarse to count.
    """
    long = [sample for sample in samples if sample[1] - sample[0] >= SAMPLE_NS / 2]
    return max((share for start, end, share in long if 2 * overlap_ns((start, end), calls) >= end - start), default=None)
