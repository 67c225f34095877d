"""Computes `performance` of run.json: serving metrics, goodput, slowest calls, rates while concurrency was reached, a chosen window."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_agentbench.errors import unknown_name
from pytest_agentbench.metrics import registry, timeline
from pytest_agentbench.metrics.slice_metrics import Tokens, call_verdicts, goodput_per_s, output_tokens_per_s, ratio, rollouts_per_hour
from pytest_agentbench.metrics.terms import BAD, GOOD, UNKNOWN, Objective, Terms, misses
from pytest_agentbench.metrics.timeline import InFlight, Span
from pytest_agentbench.records import OPEN, Json, RolloutKey
from pytest_agentbench.stats.quantiles import AdjustedSpread, LatencySpread, RateSpread, adjusted, percentile, rate_spread

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Frame, Slice
    from pytest_agentbench.stats.series import Floats


FIVE = 5


@dataclass(frozen=True)
class SlowCall:
    """An LLM call of an agent with the parts of its duration."""

    rollout: str  # rollout, such as `banking[banking-001]`
    attempt: int  # number of the attempt, counted from 1
    number: int  # number of the call in its attempt, counted from 1
    of: int  # number of calls in its attempt
    total_ms: float  # milliseconds from the agent's call (or from the receipt at the tap if that is unknown) to the end
    queue_ms: float | None  # milliseconds until it was sent, including delays by a rate limit; null if it was not sent
    first_token_ms: float | None  # TTFT in milliseconds; null if there was no token, or if the call failed
    decoding_ms: float | None  # milliseconds from the first token to the end; null if `first_token_ms` is null
    prompt_tokens: int | None  # prompt tokens; null if the server does not report them
    cached_tokens: int | None  # prompt tokens from the prefix cache; null if the server does not report them
    output_tokens: int  # output tokens
    error_kind: str | None  # [kind of failure](metrics.md#failed-calls); null if the call succeeded


def slowest(part: Slice, most: int = FIVE) -> list[tuple[int, SlowCall]]:
    """Returns (index in `part.calls`, call) of the slowest calls of a slice, the slowest first. Equally slow calls keep their order."""
    whole = part.calls["whole_ms"]
    places = [int(place) for place in (-whole).argsort(kind="stable")[:most] if whole[place] > 0]
    from pytest_agentbench.metrics.columns import python_value

    columns = {name: part.calls[name] for name in _COLUMNS}
    return [(place, _slow_call({name: python_value(values[place]) for name, values in columns.items()})) for place in places]


_COLUMNS = (
    *("suite", "scenario", "variant", "trial", "attempt", "number", "of", "whole_ms", "until_sent_ms", "ttft_ms", "e2e_ms"),
    *("prompt_tokens", "cached_tokens", "output_tokens", "error_kind"),
)


def _slow_call(row: Json) -> SlowCall:
    first, whole = row["ttft_ms"], row["e2e_ms"]
    prompt, cached = (None if row[name] is None else int(row[name]) for name in ("prompt_tokens", "cached_tokens"))
    return SlowCall(
        rollout=str(RolloutKey(row["suite"], row["scenario"], row["variant"], row["trial"])),
        attempt=row["attempt"],
        number=row["number"],
        of=row["of"],
        total_ms=row["whole_ms"],
        queue_ms=row["until_sent_ms"],
        first_token_ms=first,
        decoding_ms=None if first is None or whole is None else whole - first,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=row["output_tokens"],
        error_kind=row["error_kind"],
    )


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
