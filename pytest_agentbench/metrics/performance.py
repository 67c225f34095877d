"""The serving metrics of a run, as run.json has them, with how many calls were good, and what was measured in a chosen window."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_agentbench.errors import unknown_name
from pytest_agentbench.metrics import registry, stopwatch, timeline
from pytest_agentbench.metrics.slice_metrics import Tokens, call_verdicts, goodput_per_s, output_tokens_per_s, ratio, rollouts_per_hour
from pytest_agentbench.metrics.slow_calls import SlowCall, slowest
from pytest_agentbench.metrics.stopwatch import Stopwatch, StopwatchEvidence, busiest, judge
from pytest_agentbench.metrics.terms import BAD, GOOD, UNKNOWN, Objective, Terms, misses
from pytest_agentbench.metrics.timeline import InFlight, Span
from pytest_agentbench.records import OPEN
from pytest_agentbench.stats.quantiles import AdjustedSpread, LatencySpread, RateSpread, adjusted, percentile, rate_spread, tail
from pytest_agentbench.stats.series import unknown

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Frame, Rows, Slice
    from pytest_agentbench.stats.series import Floats


Offsets = tuple[float, float | None]  # seconds after the first call, from and to; None: to the end


@dataclass(frozen=True)
class WindowSummary:
    """What was measured in [a window of your own](metrics.md#a-window-of-your-own)."""

    start_s: float  # as asked, seconds after the start of the first call; several sessions follow each other without the pauses
    end_s: float | None  # as asked; null: to the end
    seconds: float  # of the window that there were; 0: the run was over before
    run_s: float  # seconds from the first call to the end of the run
    calls: int  # LLM calls that were sent in it
    failed_calls: int  # of them
    # metrics of a session: of the calls that were sent in it, the tokens that came in it, the calls that ended in it, and of each rollout
    # the share that lies in it
    metrics: Mapping[str, float | None] = field(metadata=OPEN)
    latencies: Mapping[str, LatencySpread | None]  # of the calls that were sent in it: `ttft_ms`, ...; null when there is no value


def window(part: Slice, offsets: Offsets) -> WindowSummary:
    """Returns what was measured in the window, which begins so many seconds after the first call."""
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
    """(session -> what the window has of it, nanoseconds from the first call to the end), sessions one after the other, without pauses.

    A session begins with its first call and ends with its last call or rollout. One without calls is not there.
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
    """(objective, milliseconds) of `ttft=500ms` or `e2e=30s`; raises ValueError that says what would work."""
    name, _, value = (part.strip() for part in text.partition("="))
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s)", value)
    if name and name not in registry.objectives():
        raise ValueError(unknown_name("objective", name, registry.objectives()))
    if not name or not match or not float(match[1]):
        raise ValueError("should be NAME=TIME, for example ttft=500ms or e2e=30s")
    return name, float(match[1]) * {"ms": 1, "s": 1000}[match[2]]


def objectives_of(slo: Mapping[str, float]) -> tuple[Objective, ...]:
    """Returns the objectives of `--agentbench-slo`: objective -> milliseconds."""
    known = registry.objectives()
    return tuple(Objective(name, limit, known[name].judged_key, known[name].expected) for name, limit in slo.items())


@dataclass(frozen=True)
class GoodputSummary:
    """How many calls were good."""

    slo_ms: Mapping[str, float]  # objective -> milliseconds
    good_calls: int  # that met all objectives
    bad_calls: int  # that missed one, or failed
    unknown_calls: int  # successful calls without the stamps to judge them by
    missed: Mapping[str, int]  # objective -> calls that missed it
    attainment: float | None  # good / (good + bad)
    goodput_per_s: float | None  # good calls per second of `span_s`


def goodput(part: Slice) -> GoodputSummary | None:
    """Returns how many calls of a slice were good. A failed call never was. None without objectives."""
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
    """Shares of one core in the busiest second with calls in flight; None if none was measured."""

    tap: float | None = None  # the busiest one of several
    pool: float | None = None


@dataclass(frozen=True)
class SteadyCalls:
    """Rates while at least 90 % of what was asked for was in flight."""

    seconds: float  # length of the window
    share: float | None  # of `span_s`
    output_tokens_per_s: float


@dataclass(frozen=True, kw_only=True)
class SteadyRollouts(SteadyCalls):
    """The same of rollouts."""

    rollouts_per_hour: float


@dataclass(frozen=True)
class SteadyRates:
    """Rates of the [steady window](metrics.md#throughput)."""

    asked: int  # concurrency asked for
    calls_without_chunks: int  # successful calls whose tokens are in no window, because nobody knows when they came
    rollouts: SteadyRollouts | None  # while so many rollouts were in flight; null when that never was
    calls: SteadyCalls | None  # while so many calls were


@dataclass(frozen=True)
class PartOfTime:
    """What somebody had of the time of the rollouts."""

    share: float  # of the time of all rollouts together, 0 to 1
    mean_ms: float  # per rollout
    p50_ms: float | None  # per rollout


@dataclass(frozen=True, kw_only=True)
class PerformanceSummary:
    """The [serving metrics](metrics.md#serving-metrics) of all rollouts of a run."""

    calls: int  # LLM calls, failed ones included
    failed_calls: Mapping[str, int]  # [kind of error](metrics.md#failed-calls) -> calls
    span_s: float  # seconds from the first start to the last end of a rollout; of several sessions the sum, without the pauses
    # the metrics of the [table](metrics.md#serving-metrics): of `ttft_ms` and all other durations the spread in milliseconds, of
    # `output_tokens_per_s` and all others of a session the number; null when there is no value
    metrics: Mapping[str, LatencySpread | float | None] = field(metadata=OPEN)
    ttft_adjusted_ms: AdjustedSpread | None  # TTFT in milliseconds with each failed call as an infinite one; null without failed calls
    held_s: float  # seconds that calls waited for the backend's rate limit, all together
    output_tokens: int  # of successful calls
    prompt_tokens: int
    call_output_tokens_per_s: RateSpread | None  # output tokens per second of a call
    rollout_calls_per_minute: RateSpread | None  # LLM calls per minute of an evaluable rollout
    steady: SteadyRates
    window: WindowSummary | None  # null without `--agentbench-window`
    goodput: GoodputSummary | None  # null without `--agentbench-slo`
    split: Mapping[str, PartOfTime] | None  # [who had the time](metrics.md#who-had-the-time): `decoding`, `first_token`, `tools`, ...
    token_sources: Mapping[str, int]  # where token counts are from (`usage`, `continuous`, `chunks`, `none`) -> calls
    stamps: Mapping[str, int]  # where stamps were taken (`user`, `kernel`) -> calls
    rollouts_in_flight: InFlight | None  # how many overlapped
    calls_in_flight: InFlight | None  # how many overlapped
    slowest_calls: tuple[SlowCall, ...]  # [five](profile.md#slowest-llm-calls) of them at most, the slowest first

    def latency(self, name: str) -> LatencySpread | None:
        """Returns the spread of a duration by its name without the unit, such as `ttft`. None if there is no value."""
        spread = self.metrics.get(f"{name}_ms")
        return spread if isinstance(spread, LatencySpread) else None

    @property
    def latencies(self) -> dict[str, LatencySpread | None]:
        """`ttft_ms` -> spread of the duration in milliseconds, of all durations."""
        return {metric.key: self.latency(metric.name) for metric in registry.latencies().values()}

    def number(self, name: str) -> float | None:
        """Returns a metric that a session has one number of, such as `output_tokens_per_s`; None when it is unknown."""
        value = self.metrics.get(name)
        return None if isinstance(value, LatencySpread) else value


@dataclass(frozen=True)
class PerformanceSettings:
    """The settings that a run is measured by."""

    concurrency: int = 1  # rollouts in flight
    by_session: Mapping[int, int] = field(default_factory=dict)  # session -> rollouts in flight, where it asked for another number
    slo: Mapping[str, float] = field(default_factory=dict)  # objective -> milliseconds
    window: Offsets | None = None  # that the user chose


def summarize(frame: Frame, settings: PerformanceSettings) -> PerformanceSummary:
    """Returns the serving metrics of a run: timings of all calls, those of all attempts; what failed is in no rate and no latency.

    What is about a rollout (its duration, its pace, who had its time, its programs) is about its last attempt. Rates are over the time
    of all sessions together, without the pauses between them.
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
    """Returns LLM calls per minute of each evaluable rollout. The time of judges does not count."""
    rollouts = part.rollouts
    own_ms = rollouts["rollout_ms"] - rollouts["judge_part_ms"]
    known = rollouts["is_evaluable"] & (own_ms != 0)
    paces: Floats = rollouts["calls"][known] * 60_000 / own_ms[known]
    return paces


def cpu_shares(part: Slice, cpu: Mapping[str, Sequence[tuple[int, int, float]]], session: int) -> CpuShares:
    """Returns the shares of tap and pool; `cpu` has samples (start and end in nanoseconds, share of a core) of a session."""
    busy = timeline.at_least(part.call_spans.get(session, ()), 1)
    taps = (busiest(samples, busy) for name, samples in cpu.items() if name.startswith("tap"))
    return CpuShares(max((share for share in taps if share is not None), default=None), busiest(cpu.get("pool", ()), busy))


def stopwatch_of(part: Slice, cpu: CpuShares, cores: int | None) -> Stopwatch:
    """Returns the stopwatch's judgement of itself on a machine with so many cores."""
    from pytest_agentbench.metrics.frame import milliseconds

    calls = part.successful_calls
    events, late = int(calls["timed_events"].sum()), int(calls["late_events"].sum())
    streams = int((calls["timed_events"] > 0).sum())
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
        agents_cpu=_agents_cpu(part),
        cores=cores,
        stamps=tuple(dict.fromkeys(part.calls["stamp"].tolist())),
    )
    return judge(reading)


def _queue_share(calls: Rows) -> float | None:
    """Returns the client queue's share of the time of good calls, of which the agents said when they made them."""
    queued, served = calls["client_queue_ms"], calls["e2e_ms"]
    known = ~unknown(queued)
    total = float(queued[known].sum() + served[known & ~unknown(served)].sum())
    return ratio(float(queued[known].sum()), total)


def _agents_cpu(part: Slice) -> float | None:
    """Returns how many cores programs took on average while any of them ran. None without programs."""
    programs = part.programs
    spans = [*zip(programs["started_ns"].tolist(), programs["ended_ns"].tolist(), strict=True)]
    ran_ns = timeline.total_ns(timeline.at_least(spans, 1))
    return float(programs["cpu_s"].sum()) * 1e9 / ran_ns if ran_ns else None


def _steady(part: Slice, settings: PerformanceSettings) -> SteadyRates:
    """Returns the rates while at least 90 % of what was asked for was in flight, of rollouts and of calls; None where that never was."""
    good, tokens = part.successful_calls, part.successful_calls["output_tokens"]
    rollouts, calls = (_while_steady(part, spans, settings) for spans in (part.attempt_spans, part.call_spans))
    return SteadyRates(
        asked=settings.concurrency,
        calls_without_chunks=int(((good["output_events"] == 0) & (tokens > 0)).sum()),
        rollouts=SteadyRollouts(*_window(rollouts, part), rollouts_per_hour=rollouts_per_hour(rollouts) or 0.0) if rollouts else None,
        calls=SteadyCalls(*_window(calls, part)) if calls else None,
    )


def _while_steady(part: Slice, spans: Mapping[int, Sequence[Span]], settings: PerformanceSettings) -> Slice | None:
    """Returns the part of the time in which enough of some spans overlapped. None if they never did."""
    steady = {session: timeline.steady(own, settings.by_session.get(session, settings.concurrency)) for session, own in spans.items()}
    return part.within(steady) if any(steady.values()) else None


def _window(steady: Slice, whole: Slice) -> tuple[float, float | None, float]:
    """Returns (seconds, their share of the span, output tokens per second)."""
    return steady.seconds, ratio(steady.seconds, whole.seconds), output_tokens_per_s(steady) or 0.0


def _split(part: Slice) -> Mapping[str, PartOfTime] | None:
    """Returns the share of each part in the time of the rollouts, of `judge` and `roles` only if one was asked.

    None without rollouts.
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
    """The same counts in the same order, whichever was counted first."""
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))
