"""The serving side of a run: timings of all calls, collected rollout by rollout, as run.json stores them."""

from __future__ import annotations

import os
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_agentbench.metrics import timings, windows
from pytest_agentbench.metrics.goodput import Goodput
from pytest_agentbench.metrics.lateness import Lateness
from pytest_agentbench.metrics.stopwatch import Reading, busiest, judge
from pytest_agentbench.metrics.windows import Span, Timeline
from pytest_agentbench.records import Json, LLMCall, Rollout
from pytest_agentbench.stats.percentiles import LOW, Pool, adjusted, numbers, percentile, series, spread, tail

#: Latencies of which a call has one, in the order of reports.
LATENCIES: Mapping[str, Callable[[LLMCall], float | None]] = {
    "ttft": timings.ttft_ns,
    "first_event": timings.first_event_ns,
    "first_answer": timings.first_answer_ns,
    "tpot": timings.tpot_ns,
    "e2e": timings.e2e_ns,
    "client_queue": timings.client_queue_ns,
}


@dataclass
class Performance:
    """Timings of all calls of a run, those of all attempts; what failed counts in no rate and no latency.

    What is about a rollout (its duration, its steps, who had its time, its programs) is about its last attempt.
    It keeps some numbers a call and two an event, when it came and the tokens so far; gaps are pooled to the microsecond.
    """

    asked: int = 1  # rollouts in flight
    slo: Mapping[str, float] = field(default_factory=dict)  # objective -> milliseconds
    asked_by: Mapping[int, int] = field(default_factory=dict)  # session -> rollouts in flight, where it asked for another number
    latencies: defaultdict[str, array[float]] = field(default_factory=series)  # milliseconds
    itl: Pool = field(default_factory=Pool)
    lag: Pool = field(default_factory=Pool)
    call_rates: array[float] = field(default_factory=numbers)  # output tokens per second
    rollouts: array[float] = field(default_factory=numbers)  # milliseconds
    step_rates: array[float] = field(default_factory=numbers)  # LLM calls per minute of a rollout
    parts: defaultdict[str, array[float]] = field(default_factory=series)  # milliseconds that each part of a rollout took
    sessions: defaultdict[int, Timeline] = field(default_factory=lambda: defaultdict(Timeline))
    without_chunks: int = 0  # successful calls with tokens of which nobody knows when they came
    calls: int = 0
    failed: Counter[str] = field(default_factory=Counter)  # error kind -> calls
    held_ns: int = 0  # by the backend's rate limit
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached: int | None = None
    cached_of: int = 0
    token_sources: Counter[str] = field(default_factory=Counter)
    stamps: Counter[str] = field(default_factory=Counter)
    queued_ns: int = 0  # of successful calls whose agents said when they made them
    asked_ns: int = 0  # of the same calls, from there to the end of the answer
    programs_cpu_s: float = 0.0  # of command agents
    program_spans: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.goodput = Goodput(self.slo)
        self.lateness = Lateness(self.slo)

    def add(self, rollout: Rollout) -> None:
        self.rollouts.append(rollout.duration_s * 1e3)
        parts = windows.split(rollout)
        if rollout.evaluable:
            self.sessions[rollout.session].evaluable.append((rollout.started_ns, rollout.ended_ns))
            if own_s := rollout.duration_s - parts["judge"] / 1e9:  # what a judge takes is not the agent's
                self.step_rates.append(len(rollout.calls) * 60 / own_s)
        for part, duration in parts.items():
            self.parts[part].append(duration / 1e6)
        for program in rollout.programs:
            self.programs_cpu_s += program.cpu_s
            self.program_spans.append((program.started_ns, program.ended_ns))
        for attempt in rollout.attempts:
            timeline = self.sessions[attempt.session]
            timeline.rollouts.append((attempt.started_ns, attempt.ended_ns))
            for call in attempt.calls:
                self._add_call(call, timeline)

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
        for name, latency in LATENCIES.items():
            if (value := latency(call)) is not None:
                self.latencies[name].append(value / 1e6)
        self.itl.add(timings.itl_ns(call))
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
            self.cached = (self.cached or 0) + call.cached_tokens
            self.cached_of += call.prompt_tokens

    def summary(self) -> Json:
        """Rates are over the time of all sessions together, without the pauses between them."""
        timelines = self.sessions.values()
        span = sum(windows.duration_ns(each.rollouts) for each in timelines) / 1e9
        evaluable = sum(len(each.evaluable) for each in timelines)
        return {
            "calls": self.calls,
            "failed_calls": _most_first(self.failed),
            "span_s": span,
            **{f"{name}_ms": spread(self.latencies[name]) for name in LATENCIES},
            "itl_ms": spread(self.itl),
            "rollout_ms": spread(self.rollouts),
            "ttft_adjusted_ms": adjusted(self.latencies["ttft"], self.failed.total()),
            "held_s": self.held_ns / 1e9,
            "output_tokens": self.output_tokens,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens_per_s": self.output_tokens / span if span else None,
            "call_output_tokens_per_s": spread(self.call_rates, LOW),
            "rollouts_per_hour": evaluable * 3600 / span if span else None,
            "steps_per_minute": (self.calls - self.failed.total()) * 60 / span if span else None,
            "rollout_steps_per_minute": spread(self.step_rates, LOW),
            "steady": self._steady(span),
            "goodput": self.goodput.summary(span),
            "split": self._split(),
            "prefix_cache_hit_ratio": None if self.cached is None or not self.cached_of else self.cached / self.cached_of,
            "token_sources": _most_first(self.token_sources),
            "stamps": _most_first(self.stamps),
            "rollouts_in_flight": in_flight(*(each.rollouts for each in timelines)),
            "calls_in_flight": in_flight(*(each.calls for each in timelines)),
        }

    def stopwatch(self, cpu: Mapping[str, Sequence[tuple[int, int, float]]], session: int = 1) -> Json:
        """The stopwatch's judgement of itself; `cpu` has samples (start and end in nanoseconds, share of a core) of a session."""
        busy, late = windows.at_least(self.sessions[session].calls, 1), self.lateness
        reading = Reading(
            clean_share=late.clean / late.events if late.events else None,
            late_share=late.late / late.events if late.events else 0.0,
            late_first_share=late.late_firsts / late.streams if late.streams else 0.0,
            late_calls_share=late.late_streams / late.streams if late.streams else 0.0,
            late_effects=late.effects({"ttft": self.latencies["ttft"], "tpot": self.latencies["tpot"], "itl": self.itl}),
            late_judgements=late.flipped(),
            read_lag_ms=tail(self.lag),
            client_queue_ms=tail(sorted(self.latencies["client_queue"])),
            client_queue_share=self.queued_ns / self.asked_ns if self.asked_ns else None,
            tap_cpu=max((share for name in cpu if name.startswith("tap") if (share := busiest(cpu[name], busy)) is not None), default=None),
            pool_cpu=busiest(cpu.get("pool", ()), busy),
            agents_cpu=self._agents_cpu(),
            cores=os.cpu_count(),
            stamps=tuple(self.stamps),
        )
        return judge(reading)

    def _agents_cpu(self) -> float | None:
        """Cores that programs took on average while any of them ran; None without any."""
        ran_ns = windows.total_ns(windows.at_least(self.program_spans, 1))
        return self.programs_cpu_s * 1e9 / ran_ns if ran_ns else None

    def _steady(self, span_s: float) -> Json:
        """Rates while at least 90 % of what was asked for was in flight, of rollouts and of calls; None where that never was."""
        asked = {number: self.asked_by.get(number, self.asked) for number in self.sessions}
        rollouts = [(each, windows.steady(each.rollouts, asked[number])) for number, each in self.sessions.items()]
        calls = [(each, windows.steady(each.calls, asked[number])) for number, each in self.sessions.items()]
        done = sum(
            windows.overlap_ns(span, steady) / (span[1] - span[0])
            for timeline, steady in rollouts
            for span in timeline.evaluable
            if span[0] < span[1]
        )
        return {
            "asked": self.asked,
            "calls_without_chunks": self.without_chunks,
            "rollouts": self._within(rollouts, span_s, done),
            "calls": self._within(calls, span_s),
        }

    def _within(self, steady: Sequence[tuple[Timeline, Sequence[Span]]], span_s: float, done: float | None = None) -> Json | None:
        """Rates over the steady time of each session."""
        seconds = sum(windows.total_ns(spans) for _, spans in steady) / 1e9
        if not seconds:
            return None
        tokens = sum(timeline.tokens.within(spans) for timeline, spans in steady)
        return {
            "seconds": seconds,
            "share": seconds / span_s if span_s else None,
            "output_tokens_per_s": tokens / seconds,
            **({} if done is None else {"rollouts_per_hour": done * 3600 / seconds}),
        }

    def _split(self) -> Json | None:
        """Who had the time of the rollouts, `judge` only where one was asked; None without any."""
        total = sum(map(sum, self.parts.values()))
        if not total:
            return None
        return {
            part: {
                "share": sum(values) / total,
                "mean_ms": sum(values) / len(values),
                "p50_ms": percentile(values, 50),
            }
            for part, values in ((part, self.parts[part]) for part in windows.PARTS)
            if part != "judge" or any(values)
        }


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    """The same counts in the same order, whichever was counted first."""
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def in_flight(*sessions: Sequence[Span]) -> Json | None:
    """Peak and time-weighted mean of how many of the given spans overlap; None without any."""
    found = windows.in_flight(*sessions)
    return {"peak": found.peak, "mean": found.mean} if any(sessions) else None
