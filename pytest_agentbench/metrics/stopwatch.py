"""Timing quality: decides whether the timings of a run can be trusted.

If this machine is busy, it reads events of streams late. Then several events share a timestamp. The module computes how much percentiles
and objectives would change if these events were evenly spread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import compress
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pytest_agentbench.metrics import timeline
from pytest_agentbench.metrics.registry import title_of
from pytest_agentbench.metrics.slice_metrics import ratio
from pytest_agentbench.metrics.terms import Objective, misses
from pytest_agentbench.metrics.timeline import Span, overlap_ns
from pytest_agentbench.metrics.timings import TIMESTAMP_METRICS
from pytest_agentbench.stats.quantiles import HIGH, percentile, tail
from pytest_agentbench.stats.series import unknown

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Rows, Slice
    from pytest_agentbench.stats.series import Floats


def percentile_effects(part: Slice) -> dict[str, float]:
    """Returns the relative error of each percentile, such as `itl.p99`: as this machine read events late.

    A percentile is compared with the one that would result if the late events had arrived at even distances. All errors are 0 if no
    event was read late.
    """
    if not part.successful_calls["late_events"].any():
        return {f"{name}.p{q}": 0.0 for name in TIMESTAMP_METRICS for q in HIGH}
    return {
        f"{name}.p{q}": _difference(percentile(measured, q), percentile(evened, q))
        for name, (measured, evened) in _timings(part).items()
        for q in HIGH
    }


def _timings(part: Slice) -> dict[str, tuple[Floats, Floats]]:
    """Returns metric -> (measured values, values if late events had arrived at even distances), both in milliseconds."""
    import numpy as np

    from pytest_agentbench.metrics.frame import milliseconds

    calls = part.successful_calls
    on_time = calls.mask & (part.frame.calls["late_events"] == 0)
    gaps = part.frame.events("itl")
    evened = np.concatenate([gaps.of(on_time), part.frame.evened.of(calls.mask & ~on_time)])
    of_events = milliseconds(gaps.of(calls.mask)), milliseconds(evened)
    return {name: (calls[f"{name}_ms"], _evened(calls, name, f"{name}_ms")) for name in ("ttft", "tpot")} | {"itl": of_events}


def _evened(calls: Rows, name: str, column: str) -> Floats:
    """Returns a column of calls with the values that would result if events that were read late had arrived at even distances."""
    values = calls[column].copy()
    is_late = calls["late_events"] > 0
    values[is_late] = calls[f"evened_{name}_ms"][is_late]
    return values


def judgement_effects(part: Slice) -> dict[str, float]:
    """Returns latency objective -> share of the calls with output that may wrongly meet or miss it, because events were read late."""
    calls = part.successful_calls
    timed = int((calls["timed_events"] > 0).sum())
    objectives = sorted((each for each in part.terms.objectives if each.name in TIMESTAMP_METRICS), key=lambda each: each.name)
    return {each.name: _flips(calls, each) / timed if timed else 0.0 for each in objectives}


def _flips(calls: Rows, objective: Objective) -> int:
    measured = misses(calls.__getitem__, objective)
    evened = misses(lambda column: _evened(calls, objective.name, column), objective)
    return int((measured != evened).sum())


def _difference(measured: float | None, evened: float | None) -> float:
    if not measured or not evened:
        return 0.0 if measured == evened else 1.0
    return abs(measured - evened) / evened


#: Version of the way in which the tap (the recording HTTP proxy) times calls. docs/why/stopwatch.md says what each version changed.
VERSION = 2

OK, WARN, SATURATED = "ok", "warn", "client-saturated"

OFF = 0.05  # accepted relative error of a percentile because of late events
OF_EVENTS = 0.05  # accepted share of events that the backend sends together
OF_CALLS = 0.01  # accepted share of calls that are judged wrongly; goodput is shown in whole percents
OF_QUEUE = 0.05  # accepted share of the client queue in the time of calls
CORE = 0.9  # share of a core above which a process counts as saturated
CpuSample: TypeAlias = tuple[int, int, float]  # start and end in monotonic nanoseconds, share of one core
SAMPLE_NS = 1_000_000_000  # nanoseconds between two samples of CPU time

SATURATED_WORDS = "the client was saturated, so its timings describe the client, not the backend"
LIGHTER_LOAD = "use a lower concurrency, or --agentbench-taps 2"
READ_TOO_LATE = f"chunks arrived faster than the client's machine read them; {LIGHTER_LOAD}"


@dataclass(frozen=True, kw_only=True)
class StopwatchFigures:
    """The measurements from which the timing quality of a run follows. Unknown values are None."""

    # share of output events of successful calls that have their own timestamp, 0 to 1; null without output events
    clean_share: float | None = None
    late_share: float = 0.0  # share of these events that share a timestamp because this machine read them late, 0 to 1
    late_first_share: float = 0.0  # share of calls with output events whose first event was read late, 0 to 1
    late_calls_share: float = 0.0  # share of calls with output events of which any was read late, 0 to 1
    # share of calls with output events whose first event a client that delays acknowledgements could get up to 40 ms later, 0 to 1
    delayed_ack_share: float = 0.0
    # percentile (`itl.p99` and others) -> its relative difference from the percentile with evenly spread events
    late_effects: Mapping[str, float] = field(default_factory=dict)
    # objective -> share of calls that it may judge wrongly because of late events, 0 to 1
    late_judgements: Mapping[str, float] = field(default_factory=dict)
    # p99 of the milliseconds until an event was read, the maximum of fewer than 100; null for `user` timestamps
    read_lag_ms: float | None = None
    # p99 of the client queue in milliseconds, the maximum of fewer than 100; null if no client reports when it calls
    client_queue_ms: float | None = None
    # share of the client queue in the time from agents' calls to the ends of the answers, 0 to 1; null if no client reports when it calls
    client_queue_share: float | None = None
    # CPU use of the tap in the busiest second with calls in flight, share of one core; with [nodes](nodes.md), of the busiest tap of all;
    # null if not measured
    tap_cpu: float | None = None
    # CPU use of the pool in the busiest second with calls in flight, share of one core; with nodes that of the busiest process of all that
    # makes attempts; null if not measured
    pool_cpu: float | None = None
    # mean cores that programs of [command agents](command-agents.md) used; with nodes on the machine where that is the greatest share of
    # its cores; null without such programs
    agents_cpu: float | None = None


@dataclass(frozen=True, kw_only=True)
class StopwatchEvidence(StopwatchFigures):
    """Everything that the verdict on timing quality depends on."""

    cores: int | None = None  # number of CPU cores of the machine of `agents_cpu`
    nice: Sequence[str] = ()  # node workers that run with a nice value above 0
    stamps: Sequence[str] = field(default=())  # sources of timestamps: user, kernel


@dataclass(frozen=True, kw_only=True)
class Stopwatch(StopwatchFigures):
    """The [timing quality](stopwatch.md#timing-quality): whether the timings can be trusted."""

    verdict: str | None  # verdict: `ok`, `warn` or `client-saturated`; null if no call was measured
    version: int = 1  # [version](stopwatch.md#versions-of-the-stopwatch) of the way in which the tap times calls; 1 in earlier runs
    reasons: tuple[str, ...] = ()  # reasons for a verdict other than `ok`, those for `client-saturated` first
    notes: tuple[str, ...] = ()  # sentences on data that the verdict lacks
    unusable: tuple[str, ...] = ()  # percentiles (`itl.p99`) and objectives (`goodput.itl`) that are not usable


def judge(evidence: StopwatchEvidence) -> Stopwatch:
    """Returns the timing quality of a run. The verdict is None if no call was measured.

    It is `client-saturated` if even the median gap is not usable, or if the tap (the recording HTTP proxy) or the pool (the process
    that runs rollouts) took more than 0.9 of a core. The timings then describe the client on this machine, not the backend.

    It is `warn` in five other cases:

    - A percentile or an objective is not usable.
    - Calls spent more than 0.05 of their time in the client queue.
    - Programs of agents took more than 0.9 of a machine.
    - A node worker runs with a nice value above 0.
    - The backend sent more than one event in twenty together with another one. Such events share a timestamp although the tap read them
      in time, so the gaps between them are 0.
    """
    unusable = [*_unusable(evidence)]
    saturated, warned = [*_saturated(evidence, unusable)], [*_warned(evidence, unusable)]
    verdict = SATURATED if saturated else WARN if warned else OK
    return Stopwatch(
        verdict=None if evidence.clean_share is None else verdict,
        version=VERSION,
        reasons=(*saturated, *warned),
        notes=tuple(_notes(evidence)),
        unusable=tuple(unusable),
        **{each.name: getattr(evidence, each.name) for each in fields(StopwatchFigures)},
    )


def unusable_reason(stopwatch: Stopwatch, name: str) -> str:
    """Returns why a percentile such as `ttft.p99`, or an objective such as `goodput.itl`, is not usable. Empty if it is usable."""
    if stopwatch.verdict == SATURATED:
        return SATURATED_WORDS
    if name in stopwatch.unusable:
        return f"{title(name)} is not usable: {READ_TOO_LATE}"
    return ""


def title(name: str) -> str:
    """Returns a title: `ITL p99` for `itl.p99`, `goodput by ITL` for `goodput.itl`."""
    metric, _, statistic = name.partition(".")
    return f"goodput by {title_of(statistic)}" if metric == "goodput" else f"{title_of(metric)} {statistic}"


def _unusable(evidence: StopwatchEvidence) -> Iterator[str]:
    yield from (name for name, effect in evidence.late_effects.items() if effect > OFF)
    yield from (f"goodput.{objective}" for objective, share in evidence.late_judgements.items() if share > OF_CALLS)


def _saturated(evidence: StopwatchEvidence, unusable: Sequence[str]) -> Iterator[str]:
    if "itl.p50" in unusable:
        yield _late(unusable)
    if evidence.tap_cpu is not None and evidence.tap_cpu > CORE:
        yield "the tap does not get enough CPU time; --agentbench-taps 2 spreads calls over two processes"
    if evidence.pool_cpu is not None and evidence.pool_cpu > CORE:
        yield "the pool (the agents) does not get enough CPU time; use a lower concurrency"


def _warned(evidence: StopwatchEvidence, unusable: Sequence[str]) -> Iterator[str]:
    if unusable and "itl.p50" not in unusable:
        yield _late(unusable)
    if evidence.clean_share is not None and 1 - evidence.clean_share - evidence.late_share > OF_EVENTS:
        yield "the backend sends several chunks at once, so the gaps between them are 0"
    if evidence.client_queue_share is not None and evidence.client_queue_share > OF_QUEUE:
        yield "calls waited on this machine before they were sent, which only the client queue includes; use a lower concurrency"
    if evidence.nice:
        yield f"other processes take precedence over {', '.join(evidence.nice)} (nice value above 0), which may delay its timestamps"
    if evidence.agents_cpu is not None and evidence.cores and evidence.agents_cpu > CORE * evidence.cores:
        yield "the agents' programs used all CPUs of their machine, which delayed rollouts; the times of LLM calls are correct"


def _late(unusable: Sequence[str]) -> str:
    return f"chunks arrive faster than this machine reads them; not usable: {', '.join(_together(unusable))}; {LIGHTER_LOAD}"


def _together(unusable: Sequence[str]) -> Iterator[str]:
    """Yields titles of timings that are not usable, such as `ITL p99`. `TTFT from p95 on` stands for p95 and all higher percentiles."""
    metrics: dict[str, list[str]] = {}
    for name in unusable:
        metrics.setdefault(name if name.startswith("goodput") else name.partition(".")[0], []).append(name)
    for metric, names in metrics.items():
        if len(names) > 1 and names == [f"{metric}.p{q}" for q in HIGH[-len(names) :]]:
            yield title(names[0]).replace(" ", " from ") + " on"
        else:
            yield from map(title, names)


def _notes(evidence: StopwatchEvidence) -> list[str]:
    """Returns a sentence about each kind of data that was not measured, and that the verdict therefore does not consider."""
    notes = []
    if "user" in evidence.stamps:
        notes.append("timestamps were taken in user space, so the read lag is unknown")
    if evidence.client_queue_ms is None:
        notes.append("no client reported when it made its calls, so the client queue is unknown")
    if evidence.tap_cpu is None or evidence.pool_cpu is None:
        notes.append("the CPU use is unknown: no full second with calls in flight was sampled, or this system does not report it")
    return notes


def busiest(samples: Sequence[CpuSample], calls: Sequence[Span]) -> float | None:
    """Returns the greatest share of a core among samples with calls in flight half the time.

    `calls` are disjoint, ordered spans. Samples shorter than half a second are ignored, because they are too imprecise.
    """
    long = [sample for sample in samples if sample[1] - sample[0] >= SAMPLE_NS / 2]
    return max((share for start, end, share in long if 2 * overlap_ns((start, end), calls) >= end - start), default=None)


@dataclass(frozen=True)
class CpuShares:
    """The CPU use of tap (the recording HTTP proxy) and pool (the process that runs rollouts), as shares of one core.

    Each is that of the busiest second with calls in flight. None if it was not measured.
    """

    tap: float | None = None  # share of the busiest tap
    pool: float | None = None  # share of the pool


def cpu_shares(part: Slice, cpu: Mapping[str, Sequence[CpuSample]], session: int) -> CpuShares:
    """Returns the CPU use of tap and pool in their busiest second with calls in flight.

    `cpu` maps the processes of one machine to samples. On a node, a process called runner makes the attempts, as the pool does elsewhere.
    """
    busy = timeline.at_least(part.call_spans.get(session, ()), 1)
    shares = {name: share for name, samples in cpu.items() if (share := busiest(samples, busy)) is not None}
    taps = (share for name, share in shares.items() if name.startswith("tap"))
    pools = (share for name, share in shares.items() if name.startswith(("pool", "runner")))
    return CpuShares(max(taps, default=None), max(pools, default=None))


def greatest_shares(shares: Iterable[CpuShares]) -> CpuShares:
    """Returns the CPU use of the busiest tap and of the busiest pool of several machines."""
    every = [*shares]
    taps, pools = ([share for share in own if share is not None] for own in ([each.tap for each in every], [each.pool for each in every]))
    return CpuShares(max(taps, default=None), max(pools, default=None))


class Machine(NamedTuple):
    """The machine of a node worker."""

    name: str  # empty for the machine of the session
    cores: int
    niceness: int = 0  # nice value of the node worker; above 0, other processes of the machine take precedence


Machines: TypeAlias = Mapping[tuple[int, str], Machine]  # session and name of a node worker -> its machine
NO_MACHINES: Machines = MappingProxyType({})


def stopwatch_of(part: Slice, cpu: CpuShares, cores: int | None, machines: Machines = NO_MACHINES) -> Stopwatch:
    """Returns whether the timings of a slice can be trusted.

    Args:
        part: The slice.
        cpu: CPU use of the busiest tap and pool.
        cores: Number of CPU cores of the session's machine.
        machines: Session and name of each node worker -> its machine.
    """
    from pytest_agentbench.metrics.frame import milliseconds

    calls = part.successful_calls
    events, late = int(calls["timed_events"].sum()), int(calls["late_events"].sum())
    streams = int((calls["timed_events"] > 0).sum())
    agents_cpu, cores = _agents_cpu(part, cores, machines)
    reading = StopwatchEvidence(
        clean_share=int(calls["clean_events"].sum()) / events if events else None,
        late_share=late / events if events else 0.0,
        late_first_share=int(calls["is_first_late"].sum()) / streams if streams else 0.0,
        late_calls_share=int((calls["late_events"] > 0).sum()) / streams if streams else 0.0,
        delayed_ack_share=int(calls["is_first_ack_bound"].sum()) / streams if streams else 0.0,
        late_effects=percentile_effects(part),
        late_judgements=judgement_effects(part),
        read_lag_ms=tail(milliseconds(part.frame.lags.of(calls.mask))),
        client_queue_ms=tail(calls["client_queue_ms"]),
        client_queue_share=_queue_share(calls),
        tap_cpu=cpu.tap,
        pool_cpu=cpu.pool,
        agents_cpu=agents_cpu,
        cores=cores,
        nice=tuple(
            sorted({f"{worker} on {each.name}" if each.name else worker for (_, worker), each in machines.items() if each.niceness > 0})
        ),
        stamps=tuple(dict.fromkeys(part.calls["stamp"].tolist())),
    )
    return judge(reading)


def _queue_share(calls: Rows) -> float | None:
    """Returns which share of their time successful calls spent in the client queue: already made by the agent, but not sent yet.

    Calls whose agent did not report when it made them are left out.
    """
    queued, served = calls["client_queue_ms"], calls["e2e_ms"]
    known = ~unknown(queued)
    total = float(queued[known].sum() + served[known & ~unknown(served)].sum())
    return ratio(float(queued[known].sum()), total)


def _agents_cpu(part: Slice, cores: int | None, machines: Machines) -> tuple[float | None, int | None]:
    """Returns the mean number of cores that the agents' programs used while any of them ran, and the number of cores of their machine.

    The machine is the one whose cores they used most. The first value is None without programs.
    """
    programs, rollouts = part.programs, part.frame.rollouts
    workers = zip(rollouts["session"][programs["rollout"]].tolist(), rollouts["node"][programs["rollout"]].tolist(), strict=True)
    found = (machines.get((session, node or "")) for session, node in workers)
    places = [(each.name, each.cores) if each else ("", cores or 0) for each in found]
    used = [(_mean_cores(part, [place == each for place in places]), each[1] or None) for each in dict.fromkeys(places)]
    known = [(mean, of) for mean, of in used if mean is not None]
    return max(known, key=lambda each: each[0] / (each[1] or math.inf), default=(None, cores))


def _mean_cores(part: Slice, chosen: Sequence[bool]) -> float | None:
    """Returns the mean number of cores that some programs used while any of them ran. None if they took no time."""
    started, ended, cpu_s = (list(compress(part.programs[name].tolist(), chosen)) for name in ("started_ns", "ended_ns", "cpu_s"))
    ran_ns = timeline.total_ns(timeline.at_least([*zip(started, ended, strict=True)], 1))
    return math.fsum(cpu_s) * 1e9 / ran_ns if ran_ns else None
