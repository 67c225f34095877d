"""The serving side of a run: timings of all calls, collected rollout by rollout, as run.json stores them."""

from __future__ import annotations

import os
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from pytest_agentbench.metrics import registry, timings, windows
from pytest_agentbench.metrics.chosen_window import ChosenWindow, Offsets, WindowSummary
from pytest_agentbench.metrics.goodput import Goodput, GoodputSummary
from pytest_agentbench.metrics.lateness import Lateness
from pytest_agentbench.metrics.registry import Metric
from pytest_agentbench.metrics.slow_calls import SlowCall, SlowCalls
from pytest_agentbench.metrics.stopwatch import Stopwatch, StopwatchEvidence, busiest, judge
from pytest_agentbench.metrics.windows import InFlight, Span, Timeline
from pytest_agentbench.records import OPEN, LLMCall, Rollout
from pytest_agentbench.stats.percentiles import (
    AdjustedSpread,
    Distribution,
    LatencySpread,
    RateSpread,
    adjusted,
    latency_spread,
    numbers,
    percentile,
    rate_spread,
    series,
    tail,
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
    # `ttft_ms` and all other durations of the [table](metrics.md#serving-metrics): milliseconds; null when there is no value
    latencies: Mapping[str, LatencySpread | None] = field(metadata=OPEN)
    ttft_adjusted_ms: AdjustedSpread | None  # TTFT in milliseconds with each failed call as an infinite one; null without failed calls
    held_s: float  # seconds that calls waited for the backend's rate limit, all together
    output_tokens: int  # of successful calls
    prompt_tokens: int
    output_tokens_per_s: float | None
    call_output_tokens_per_s: RateSpread | None  # output tokens per second of a call
    rollouts_per_hour: float | None  # `ok` and `limit` rollouts
    calls_per_minute: float | None  # successful LLM calls
    # [output tokens per second](metrics.md#throughput) of the run / their mean of a call; null when no call has both
    speedup: float | None
    rollout_calls_per_minute: RateSpread | None  # LLM calls per minute of an evaluable rollout
    steady: SteadyRates
    window: WindowSummary | None  # null without `--agentbench-window`
    goodput: GoodputSummary | None  # null without `--agentbench-slo`
    split: Mapping[str, PartOfTime] | None  # [who had the time](metrics.md#who-had-the-time): `decoding`, `first_token`, `tools`, ...
    prefix_cache_hit_ratio: float | None  # cached prompt tokens / prompt tokens, 0 to 1; null when no usage names both
    call_prefix_cache_hit_ratio: float | None  # the mean over calls of the same ratio of each
    token_sources: Mapping[str, int]  # where token counts are from (`usage`, `continuous`, `chunks`, `none`) -> calls
    stamps: Mapping[str, int]  # where stamps were taken (`user`, `kernel`) -> calls
    rollouts_in_flight: InFlight | None  # how many overlapped
    calls_in_flight: InFlight | None  # how many overlapped
    slowest_calls: tuple[SlowCall, ...]  # [five](profile.md#slowest-llm-calls) of them at most, the slowest first

    def latency(self, name: str) -> LatencySpread | None:
        """By its name without the unit, such as `ttft`; None when there is no value."""
        return self.latencies.get(f"{name}_ms")


@dataclass
class Performance:
    """Timings of all calls of a run, those of all attempts; what failed counts in no rate and no latency.

    What is about a rollout (its duration, its pace, who had its time, its programs) is about its last attempt.
    It keeps some numbers a call and two an event, when it came and the tokens so far; gaps are pooled to the microsecond.
    """

    asked: int = 1  # rollouts in flight
    slo: Mapping[str, float] = field(default_factory=dict)  # objective -> milliseconds
    asked_by: Mapping[int, int] = field(default_factory=dict)  # session -> rollouts in flight, where it asked for another number
    window: Offsets | None = None  # that the user chose
    latencies: defaultdict[str, array[float]] = field(default_factory=series)  # milliseconds
    gaps: defaultdict[str, Distribution] = field(default_factory=lambda: defaultdict(Distribution))  # of metrics that events have
    lag: Distribution = field(default_factory=Distribution)
    call_rates: array[float] = field(default_factory=numbers)  # output tokens per second
    own_call_rates: array[float] = field(default_factory=numbers)  # LLM calls per minute of a rollout
    parts: defaultdict[str, array[float]] = field(default_factory=series)  # milliseconds that each part of a rollout took
    sessions: defaultdict[int, Timeline] = field(default_factory=lambda: defaultdict(Timeline))
    without_chunks: int = 0  # successful calls with tokens of which nobody knows when they came
    calls: int = 0
    failed: Counter[str] = field(default_factory=Counter)  # error kind -> calls
    held_ns: int = 0  # by the backend's rate limit
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached: int = 0
    cached_of: int = 0  # prompt tokens of calls whose usage names both
    hit_ratios: array[float] = field(default_factory=numbers)  # of the same calls
    token_sources: Counter[str] = field(default_factory=Counter)
    stamps: Counter[str] = field(default_factory=Counter)
    queued_ns: int = 0  # of successful calls whose agents said when they made them
    asked_ns: int = 0  # of the same calls, from there to the end of the answer
    programs_cpu_s: float = 0.0  # of command agents
    program_spans: list[Span] = field(default_factory=list)
    slow: SlowCalls = field(default_factory=SlowCalls)

    def __post_init__(self) -> None:
        self.goodput = Goodput(self.slo)
        self.lateness = Lateness(self.slo)
        self._chosen = ChosenWindow(self.window) if self.window else None
        self._of_calls = [(name, each.of_call) for name, each in registry.latencies("call").items() if each.of_call]
        self._of_events = [(name, each.of_events) for name, each in registry.latencies("event").items() if each.of_events]

    def add(self, rollout: Rollout) -> None:
        for name, metric in registry.latencies("rollout").items():
            if metric.of_rollout:
                self.latencies[name].append(metric.of_rollout(rollout) / 1e6)
        parts = windows.split(rollout)
        if rollout.evaluable:
            self.sessions[rollout.session].evaluable.append((rollout.started_ns, rollout.ended_ns))
            if own_s := rollout.duration_s - parts["judge"] / 1e9:  # what a judge takes is not the agent's
                self.own_call_rates.append(len(rollout.calls) * 60 / own_s)
        for part, duration in parts.items():
            self.parts[part].append(duration / 1e6)
        for program in rollout.programs:
            self.programs_cpu_s += program.cpu_s
            self.program_spans.append((program.started_ns, program.ended_ns))
        for attempt in rollout.attempts:
            timeline = self.sessions[attempt.session]
            timeline.rollouts.append((attempt.started_ns, attempt.ended_ns))
            for number, call in enumerate(attempt.calls, 1):
                self.slow.add(rollout, attempt, number, call)
                self._add_call(call, timeline)
                if self._chosen:
                    self._chosen.add(call, attempt.session)

    def _add_call(self, call: LLMCall, timeline: Timeline) -> None:
        self.calls += 1
        if call.sent_ns is not None:
            timeline.calls.append((call.sent_ns, call.ended_ns))
        self.held_ns += call.held_ns
        self.prompt_tokens += call.prompt_tokens or 0
        self.stamps[call.stamp] += 1
        self.goodput.add(call)
        if call.error_kind:
            self.failed[call.error_kind] += 1
        else:
            self._add_timings(call)
            self._add_tokens(call, timeline)

    def _add_timings(self, call: LLMCall) -> None:
        for name, metric in self._of_calls:
            if (value := metric(call)) is not None:
                self.latencies[name].append(value / 1e6)
        for name, events in self._of_events:
            self.gaps[name].add(events(call))
        if (queued := timings.client_queue_ns(call)) is not None:
            self.queued_ns += queued
            self.asked_ns += queued + (timings.e2e_ns(call) or 0)
        self.lag.add(chunk.lag_ns for chunk in call.output if chunk.lag_ns is not None)
        self.lateness.add(call)

    def _add_tokens(self, call: LLMCall, timeline: Timeline) -> None:
        tokens = timings.output_tokens(call)
        self.token_sources[call.token_source] += 1
        self.output_tokens += tokens
        self.without_chunks += not timeline.tokens.add(call, tokens) and tokens > 0
        if (rate := timings.tokens_per_s(call)) is not None:
            self.call_rates.append(rate)
        if call.cached_tokens is not None and call.prompt_tokens:
            self.cached += call.cached_tokens
            self.cached_of += call.prompt_tokens
            self.hit_ratios.append(call.cached_tokens / call.prompt_tokens)

    def summary(self) -> PerformanceSummary:
        """Rates are over the time of all sessions together, without the pauses between them."""
        timelines = self.sessions.values()
        span = sum(windows.duration_ns(each.rollouts) for each in timelines) / 1e9
        evaluable = sum(len(each.evaluable) for each in timelines)
        tokens_per_s, call_rates = self.output_tokens / span if span else None, rate_spread(self.call_rates)
        return PerformanceSummary(
            calls=self.calls,
            failed_calls=_most_first(self.failed),
            span_s=span,
            latencies={each.key: latency_spread(self._values(each)) for each in registry.latencies().values()},
            ttft_adjusted_ms=adjusted(self.latencies["ttft"], self.failed.total()),
            held_s=self.held_ns / 1e9,
            output_tokens=self.output_tokens,
            prompt_tokens=self.prompt_tokens,
            output_tokens_per_s=tokens_per_s,
            call_output_tokens_per_s=call_rates,
            rollouts_per_hour=evaluable * 3600 / span if span else None,
            calls_per_minute=(self.calls - self.failed.total()) * 60 / span if span else None,
            speedup=timings.speedup(tokens_per_s, call_rates.mean if call_rates else None),
            rollout_calls_per_minute=rate_spread(self.own_call_rates),
            steady=self._steady(span),
            window=self._chosen.summary(self.sessions) if self._chosen else None,
            goodput=self.goodput.summary(span),
            split=self._split(),
            prefix_cache_hit_ratio=self.cached / self.cached_of if self.cached_of else None,
            call_prefix_cache_hit_ratio=fmean(self.hit_ratios) if self.hit_ratios else None,
            token_sources=_most_first(self.token_sources),
            stamps=_most_first(self.stamps),
            rollouts_in_flight=in_flight(*(each.rollouts for each in timelines)),
            calls_in_flight=in_flight(*(each.calls for each in timelines)),
            slowest_calls=tuple(call for _, call in self.slow.ranked()),
        )

    def _values(self, metric: Metric) -> Iterable[float]:
        """Milliseconds."""
        return self.gaps[metric.name] if metric.level == "event" else self.latencies[metric.name]

    def stopwatch(self, cpu: Mapping[str, Sequence[tuple[int, int, float]]], session: int = 1) -> Stopwatch:
        """The stopwatch's judgement of itself; `cpu` has samples (start and end in nanoseconds, share of a core) of a session."""
        busy = windows.at_least(self.sessions[session].calls, 1)
        taps = (busiest(samples, busy) for name, samples in cpu.items() if name.startswith("tap"))
        tap = max((share for share in taps if share is not None), default=None)
        return self.judged(CpuShares(tap, busiest(cpu.get("pool", ()), busy)), os.cpu_count())

    def judged(self, cpu: CpuShares, cores: int | None) -> Stopwatch:
        """Returns the stopwatch's judgement of itself on a machine with so many cores."""
        late = self.lateness
        reading = StopwatchEvidence(
            clean_share=late.clean / late.events if late.events else None,
            late_share=late.late / late.events if late.events else 0.0,
            late_first_share=late.late_firsts / late.streams if late.streams else 0.0,
            late_calls_share=late.late_streams / late.streams if late.streams else 0.0,
            late_effects=late.effects({"ttft": self.latencies["ttft"], "tpot": self.latencies["tpot"], "itl": self.gaps["itl"]}),
            late_judgements=late.flipped(),
            read_lag_ms=tail(self.lag),
            client_queue_ms=tail(sorted(self.latencies["client_queue"])),
            client_queue_share=self.queued_ns / self.asked_ns if self.asked_ns else None,
            tap_cpu=cpu.tap,
            pool_cpu=cpu.pool,
            agents_cpu=self._agents_cpu(),
            cores=cores,
            stamps=tuple(self.stamps),
        )
        return judge(reading)

    def _agents_cpu(self) -> float | None:
        """Cores that programs took on average while any of them ran; None without any."""
        ran_ns = windows.total_ns(windows.at_least(self.program_spans, 1))
        return self.programs_cpu_s * 1e9 / ran_ns if ran_ns else None

    def _steady(self, span_s: float) -> SteadyRates:
        """Rates while at least 90 % of what was asked for was in flight, of rollouts and of calls; None where that never was."""
        concurrency = {number: self.asked_by.get(number, self.asked) for number in self.sessions}
        rollouts = [(each, windows.steady(each.rollouts, concurrency[number])) for number, each in self.sessions.items()]
        calls = [(each, windows.steady(each.calls, concurrency[number])) for number, each in self.sessions.items()]
        done = sum(
            windows.overlap_ns(span, steady) / (span[1] - span[0])
            for timeline, steady in rollouts
            for span in timeline.evaluable
            if span[0] < span[1]
        )
        window = _window(rollouts, span_s)
        return SteadyRates(
            asked=self.asked,
            calls_without_chunks=self.without_chunks,
            rollouts=SteadyRollouts(*window, rollouts_per_hour=done * 3600 / window[0]) if window else None,
            calls=SteadyCalls(*within) if (within := _window(calls, span_s)) else None,
        )

    def _split(self) -> Mapping[str, PartOfTime] | None:
        """Who had the time of the rollouts, `judge` and `roles` only where one was asked; None without any."""
        total = sum(map(sum, self.parts.values()))
        if not total:
            return None
        return {
            part: PartOfTime(share=sum(values) / total, mean_ms=sum(values) / len(values), p50_ms=percentile(values, 50))
            for part, values in ((part, self.parts[part]) for part in windows.PARTS)
            if part not in ("judge", "roles") or any(values)
        }


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    """The same counts in the same order, whichever was counted first."""
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def _window(steady: Sequence[tuple[Timeline, Sequence[Span]]], span_s: float) -> tuple[float, float | None, float] | None:
    """(seconds, their share of the span, output tokens per second) of the steady time of all sessions; None where there is none."""
    seconds = sum(windows.total_ns(spans) for _, spans in steady) / 1e9
    if not seconds:
        return None
    tokens = sum(timeline.tokens.within(spans) for timeline, spans in steady)
    return seconds, seconds / span_s if span_s else None, tokens / seconds


def in_flight(*sessions: Sequence[Span]) -> InFlight | None:
    """Peak and time-weighted mean of how many of the given spans overlap; None without any."""
    return windows.in_flight(*sessions) if any(sessions) else None
