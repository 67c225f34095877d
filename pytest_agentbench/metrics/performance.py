"""Computes `performance` of run.json: serving metrics, goodput, rates while concurrency was reached, and metrics of a chosen window."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pytest_agentbench.errors import unknown_name
from pytest_agentbench.metrics import registry, stopwatch, timeline
from pytest_agentbench.metrics.slice_metrics import Tokens, call_verdicts, goodput_per_s, output_tokens_per_s, ratio, rollouts_per_hour
from pytest_agentbench.metrics.slow_calls import SlowCall, slowest
from pytest_agentbench.metrics.stopwatch import CpuSample, Stopwatch, StopwatchEvidence, busiest, judge
from pytest_agentbench.metrics.terms import BAD, GOOD, UNKNOWN, Objective, Terms, misses
from pytest_agentbench.metrics.timeline import InFlight, Span
from pytest_agentbench.records import OPEN
from pytest_agentbench.stats.quantiles import AdjustedSpread, LatencySpread, RateSpread, adjusted, percentile, rate_spread, tail
from pytest_agentbench.stats.series import unknown

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Frame, Rows, Slice
    from pytest_agentbench.stats.series import Floats


Offsets = tuple[float, float | None]  # start and end of a window, seconds after the first call; None for no end


@dataclass(frozen=True)
class WindowSummary:
    """The metrics of [a window of time](metrics.md#a-window-of-your-own) that the user chose with `--agentbench-window`."""

    start_s: float  # chosen start, seconds after the first call, without pauses between sessions
    end_s: float | None  # chosen end, seconds after the first call; null if the window has no end
    seconds: float  # seconds of the window within the run; 0 if the run ended before the window began
    run_s: float  # seconds from the first call to the end of the run
    calls: int  # LLM calls that were sent in the window
    failed_calls: int  # LLM calls that were sent in the window and failed
    # metrics of a session in the window: of the calls that were sent in it, the tokens that arrived in it, the calls that ended in it, and
    # the share of each rollout that lies in it; null if unknown
    metrics: Mapping[str, float | None] = field(metadata=OPEN)
    # `ttft_ms` and other latencies of the calls that were sent in the window -> spread in milliseconds; null if no call has a value
    latencies: Mapping[str, LatencySpread | None]


def window(part: Slice, offsets: Offsets) -> WindowSummary:
    """Returns the metrics of a slice in a window of time, whose offsets are seconds after the first call."""
    spans, run_ns = session_windows(offsets, part)
    chosen = part.within({session: [span] for session, span in spans.items()})
    return WindowSummary(
        *offsets,
        seconds=chosen.seconds,
        run_s=run_ns / 1e9,
        calls=len(chosen.calls),
        failed_calls=len(chosen.calls) - len(chosen.successful_calls),
        metrics=registry.numbers(chosen, "session"),
        latencies=registry.spreads(chosen, "call", "event"),
    )


def session_windows(offsets: Offsets, part: Slice) -> tuple[dict[int, Span], int]:
    """Returns session -> its span in the window that the user chose, and the run's duration in nanoseconds without pauses of sessions.

    A session begins with its first call and ends with its last call or rollout. Sessions without calls are left out.
    """
    low, high = (None if each is None else round(each * 1e9) for each in offsets)
    spans: dict[int, Span] = {}
    before = 0
    for number, calls in sorted(part.call_spans.items()):
        if calls:
            first = min(start for start, _ in calls)
            last = max(end for _, end in (*calls, *part.attempt_spans[number]))
            start = max(first, first + (low or 0) - before)
            end = last if high is None else min(last, first + high - before)
            if start < end:
                spans[number] = start, end
            before += last - first
    return spans, before


def parse_objective(text: str) -> tuple[str, float]:
    """Parses an objective such as `ttft=500ms` or `e2e=30s`. Returns its name and milliseconds, or raises ValueError."""
    name, _, value = (part.strip() for part in text.partition("="))
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s)", value)
    if name and name not in registry.objectives():
        raise ValueError(unknown_name("objective", name, registry.objectives()))
    if not name or not match or not float(match[1]):
        raise ValueError("a latency objective must be NAME=TIME (ms or s), for example ttft=500ms or e2e=30s")
    return name, float(match[1]) * {"ms": 1, "s": 1000}[match[2]]


def objectives_of(slo: Mapping[str, float]) -> tuple[Objective, ...]:
    """Returns the objectives of `--agentbench-slo` (name -> milliseconds)."""
    known = registry.objectives()
    return tuple(Objective(name, limit, known[name].judged_key, known[name].expected) for name, limit in slo.items())


@dataclass(frozen=True)
class GoodputSummary:
    """The goodput: how many calls met all latency objectives."""

    slo_ms: Mapping[str, float]  # objective -> milliseconds
    good_calls: int  # calls that met all objectives
    bad_calls: int  # calls that missed an objective, or failed
    unknown_calls: int  # successful calls that lack the timestamps for an objective
    missed: Mapping[str, int]  # objective -> number of calls that missed it
    attainment: float | None  # good calls / (good and bad calls); null if there are none
    goodput_per_s: float | None  # good calls per second of `span_s`; null if that is 0


def goodput(part: Slice) -> GoodputSummary | None:
    """Returns the goodput of a slice. Failed calls are bad. None without objectives."""
    objectives = part.terms.objectives
    if not objectives:
        return None
    verdicts = call_verdicts(part)
    good, bad, unknown = (int((verdicts == each).sum()) for each in (GOOD, BAD, UNKNOWN))
    return GoodputSummary(
        slo_ms={each.name: each.limit_ms for each in objectives},
        good_calls=good,
        bad_calls=bad,
        unknown_calls=unknown,
        missed={each.name: int(misses(part.successful_calls.__getitem__, each).sum()) for each in objectives},
        attainment=ratio(good, good + bad),
        goodput_per_s=goodput_per_s(part),
    )


@dataclass(frozen=True)
class CpuShares:
    """The CPU use of tap (the recording HTTP proxy) and pool (the process that runs rollouts), as shares of one core.

    Each is that of the busiest second with calls in flight. None if it was not measured.
    """

    tap: float | None = None  # share of the busiest tap
    pool: float | None = None  # share of the pool


@dataclass(frozen=True)
class SteadyCalls:
    """The rates during the time in which at least 90 % of the concurrency was in flight, counted in LLM calls."""

    seconds: float  # length of that time, seconds
    share: float | None  # share of that time in `span_s`, 0 to 1; null if `span_s` is 0
    output_tokens_per_s: float  # output tokens per second of that time


@dataclass(frozen=True, kw_only=True)
class SteadyRollouts(SteadyCalls):
    """The rates during the time in which at least 90 % of the concurrency was in flight, counted in rollouts."""

    rollouts_per_hour: float  # evaluable rollouts per hour of that time


@dataclass(frozen=True)
class SteadyRates:
    """The rates of the [steady window](metrics.md#throughput): the time in which concurrency was nearly reached."""

    asked: int  # concurrency of the run
    calls_without_chunks: int  # successful calls whose tokens no window includes, because their times are unknown
    rollouts: SteadyRollouts | None  # rates while enough rollouts were in flight; null if that was never the case
    calls: SteadyCalls | None  # rates while enough calls were in flight; null if that was never the case


@dataclass(frozen=True)
class PartOfTime:
    """The time that one activity, such as `decoding`, took in the rollouts of a run."""

    share: float  # share of the total time of all rollouts, 0 to 1
    mean_ms: float  # mean per rollout, milliseconds
    p50_ms: float | None  # median per rollout, milliseconds; null if there is none


@dataclass(frozen=True, kw_only=True)
class PerformanceSummary:
    """The [serving metrics](metrics.md#serving-metrics) of all rollouts of a run."""

    calls: int  # number of LLM calls, failed ones included
    failed_calls: Mapping[str, int]  # [kind of failure](metrics.md#failed-calls) -> number of calls
    span_s: float  # seconds from the first start to the last end of a rollout, summed over sessions, without pauses between them
    # metrics of the [table](metrics.md#serving-metrics): for `ttft_ms` and other durations the spread in milliseconds, for
    # `output_tokens_per_s` and other metrics of a session a number; null if there is no value
    metrics: Mapping[str, LatencySpread | float | None] = field(metadata=OPEN)
    ttft_adjusted_ms: AdjustedSpread | None  # TTFT in milliseconds, failed calls counted as infinite; null without failed calls
    held_s: float  # total seconds that rate limits delayed calls
    output_tokens: int  # output tokens of successful calls
    prompt_tokens: int  # prompt tokens of all calls, failed ones included
    call_output_tokens_per_s: RateSpread | None  # output tokens per second of a call; null if no call has a value
    rollout_calls_per_minute: RateSpread | None  # LLM calls per minute of an evaluable rollout; null if no rollout has a value
    steady: SteadyRates  # rates of the steady window
    window: WindowSummary | None  # metrics of a chosen window; null without `--agentbench-window`
    goodput: GoodputSummary | None  # goodput; null without `--agentbench-slo`
    # [activity](metrics.md#who-had-the-time) (`decoding`, `first_token`, `tools`, ...) -> its time; null without rollouts
    split: Mapping[str, PartOfTime] | None
    token_sources: Mapping[str, int]  # source of token counts (`usage`, `continuous`, `chunks`, `none`) -> number of successful calls
    stamps: Mapping[str, int]  # source of timestamps (`user`, `kernel`) -> number of calls
    rollouts_in_flight: InFlight | None  # rollouts in flight; null without rollouts
    calls_in_flight: InFlight | None  # LLM calls in flight; null without calls
    slowest_calls: tuple[SlowCall, ...]  # [slowest calls](profile.md#slowest-llm-calls), at most five, the slowest first

    def latency(self, name: str) -> LatencySpread | None:
        """Returns the spread of a duration by its name without the unit, such as `ttft`. None if there is no value."""
        spread = self.metrics.get(f"{name}_ms")
        return spread if isinstance(spread, LatencySpread) else None

    @property
    def latencies(self) -> dict[str, LatencySpread | None]:
        """Key of a duration, such as `ttft_ms` -> its spread in milliseconds, or None if there is no value. Has all durations."""
        return {metric.key: self.latency(metric.name) for metric in registry.latencies().values()}

    def number(self, name: str) -> float | None:
        """Returns a metric that is a single number, such as `output_tokens_per_s`. None if it is unknown."""
        value = self.metrics.get(name)
        return None if isinstance(value, LatencySpread) else value


@dataclass(frozen=True)
class PerformanceSettings:
    """The settings of a run that its serving metrics depend on."""

    concurrency: int = 1  # maximum number of rollouts in flight
    by_session: Mapping[int, int] = field(default_factory=dict)  # session -> its maximum, if it differs
    slo: Mapping[str, float] = field(default_factory=dict)  # objective -> milliseconds
    window: Offsets | None = None  # window that the user chose


def summarize(frame: Frame, settings: PerformanceSettings) -> PerformanceSummary:
    """Returns the serving metrics of a run.

    Calls of all attempts count, but failed calls have no latencies and do not count for rates, except calls per minute. Metrics of
    rollouts (duration, calls per minute, split of the time) use the last attempt. Rates are over the time of all sessions, without pauses
    between them.
    """
    part = frame.scenarios(Terms(objectives_of(settings.slo))).timed
    good, failed = part.successful_calls, Counter(filter(None, part.calls["error_kind"]))
    return PerformanceSummary(
        calls=len(part.calls),
        failed_calls=_most_first(failed),
        span_s=part.seconds,
        metrics={**registry.spreads(part), **registry.numbers(part, "session")},
        ttft_adjusted_ms=adjusted(good["ttft_ms"], failed.total()),
        held_s=float(part.calls["held_ms"].sum()) / 1e3,
        output_tokens=int(part.output_tokens),
        prompt_tokens=Tokens.of(part.calls).prompt,
        call_output_tokens_per_s=rate_spread(good["call_output_tokens_per_s"]),
        rollout_calls_per_minute=rate_spread(_paces(part)),
        steady=_steady(part, settings),
        window=window(part, settings.window) if settings.window else None,
        goodput=goodput(part),
        split=_split(part),
        token_sources=_most_first(Counter(good["token_source"].tolist())),
        stamps=_most_first(Counter(part.calls["stamp"].tolist())),
        rollouts_in_flight=timeline.in_flight(*part.attempt_spans.values()),
        calls_in_flight=timeline.in_flight(*part.call_spans.values()),
        slowest_calls=tuple(call for _, call in slowest(part)),
    )


def _paces(part: Slice) -> Floats:
    """Returns the LLM calls per minute of each rollout that ended as `ok` or `limit`. The time of judges is excluded."""
    rollouts = part.rollouts
    own_ms = rollouts["rollout_ms"] - rollouts["judge_part_ms"]
    known = rollouts["is_evaluable"] & (own_ms != 0)
    paces: Floats = rollouts["calls"][known] * 60_000 / own_ms[known]
    return paces


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
        late_effects=stopwatch.percentile_effects(part),
        late_judgements=stopwatch.judgement_effects(part),
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


def _steady(part: Slice, settings: PerformanceSettings) -> SteadyRates:
    """Returns the rates while rollouts, or calls, in flight were at least 90 % of the concurrency."""
    good, tokens = part.successful_calls, part.successful_calls["output_tokens"]
    rollouts, calls = (_while_steady(part, spans, settings) for spans in (part.attempt_spans, part.call_spans))
    return SteadyRates(
        asked=settings.concurrency,
        calls_without_chunks=int(((good["output_events"] == 0) & (tokens > 0)).sum()),
        rollouts=SteadyRollouts(*_window(rollouts, part), rollouts_per_hour=rollouts_per_hour(rollouts) or 0.0) if rollouts else None,
        calls=SteadyCalls(*_window(calls, part)) if calls else None,
    )


def _while_steady(part: Slice, spans: Mapping[int, Sequence[Span]], settings: PerformanceSettings) -> Slice | None:
    """Returns the slice limited to the time in which at least 90 % of the configured concurrency was in flight. None if that was never so.

    `spans` maps sessions to the spans of their rollouts or calls.
    """
    steady = {session: timeline.steady(own, settings.by_session.get(session, settings.concurrency)) for session, own in spans.items()}
    return part.within(steady) if any(steady.values()) else None


def _window(steady: Slice, whole: Slice) -> tuple[float, float | None, float]:
    """Returns the seconds of the steady window, their share of the whole time, and the output tokens per second in the window.

    The steady window is the time in which at least 90 % of the concurrency was in flight.
    """
    return steady.seconds, ratio(steady.seconds, whole.seconds), output_tokens_per_s(steady) or 0.0


def _split(part: Slice) -> Mapping[str, PartOfTime] | None:
    """Returns activity, such as `decoding` -> its part of the time of all rollouts. `judge` and `roles` are left out if they took no time.

    Returns None without rollouts.
    """
    parts = {name: part.rollouts[f"{name}_part_ms"] for name in timeline.PARTS}
    total = math.fsum(float(values.sum()) for values in parts.values())
    if not total:
        return None
    return {
        name: PartOfTime(share=float(values.sum()) / total, mean_ms=float(values.mean()), p50_ms=percentile(values, 50))
        for name, values in parts.items()
        if name not in ("judge", "roles") or values.any()
    }


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    """Returns name -> count, sorted by count (greatest first) and then by name."""
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))
