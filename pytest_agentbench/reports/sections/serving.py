"""The section of serving: latencies, throughput, goodput, and the quality of the timings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.performance import PartOfTime, PerformanceSummary, SlowCall
from pytest_agentbench.metrics.stopwatch import OK, SATURATED, Stopwatch, unusable_reason
from pytest_agentbench.metrics.timeline import part_names
from pytest_agentbench.reports import phrases, serving_phrases
from pytest_agentbench.reports.document import (
    AnyBlock,
    Code,
    Column,
    Fact,
    Level,
    Measure,
    Note,
    Section,
    Table,
    TableCell,
    Tone,
    heads,
    say,
)
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.phrases import brackets, percent
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.stats.quantiles import INFINITE, LatencySpread, Percentiles

COLUMNS = ("mean", "min", "p50", "p90", "p95", "p99", "max")
RATE_COLUMNS = ("mean", "max", "p50", "p10", "p5", "p1", "min")
RATES = {"call_output_tokens_per_s": "output tok/s of a call", "rollout_calls_per_minute": "LLM calls/min of a rollout"}
LATENCIES = ("ttft", "itl", "e2e")  # in summaries; the first page shows only the TTFT


def section(view: RunView) -> Section | None:
    """Returns latencies, throughput, goodput, the time of rollouts, and the verdict on the timings.

    In a run with arms, the section about these has the latencies and rates of each, so this one has only what concerns all of them.
    """
    run = view.run
    if run.ab:
        slowest = of("Slowest LLM calls", _slow_calls(run.performance.slowest_calls))
        return of("Serving", [*_timing(run), *_trouble(run), *_calls(run.performance), slowest])
    parts = (_measures, _timing, _trouble, _totals)
    return of("Serving", [*(block for part in parts for block in part(run)), *_tables(run.performance)])


def _measures(run: Run) -> Iterator[AnyBlock]:
    """Yields the main latencies and rates."""
    performance, first, summary = run.performance, Level.FIRST_PAGE, Level.SUMMARY
    if run.backend.is_recorded:
        yield Fact("timings", serving_phrases.RECORDED, level=first, until=summary)
        return
    yield Fact("speed", say(serving_phrases.speed, performance, run.stopwatch), level=first, until=first, spare=1)
    if performance.latency("e2e") and not serving_phrases.is_streamed(performance):
        yield Fact("no TTFT", serving_phrases.NO_TTFT, level=first, until=Level.FULL, spare=5)
    for name in LATENCIES:
        if spread := performance.latency(name):
            yield Fact(registry.title_of(name), _median(run.stopwatch, name, spread), level=summary, until=summary)
    if rate := performance.number("output_tokens_per_s"):
        throughput = Measure(rate, "output tokens/s", digits=1, about=serving_phrases.tokens_and_calls(performance))
        yield Fact("throughput", throughput, level=summary, until=summary)
    if per_hour := performance.number("rollouts_per_hour"):
        rollouts = Measure(per_hour, digits=0, about=serving_phrases.in_flight(performance))
        yield Fact(registry.title_of("rollouts_per_hour"), rollouts, level=summary, until=summary)
    if (hits := performance.number("prefix_cache_hit_ratio")) is not None:
        yield Fact("prefix cache", Measure(hits, "%", about=serving_phrases.CACHED), level=summary, until=summary)


def _median(stopwatch: Stopwatch, name: str, spread: LatencySpread) -> Measure:
    """Returns the median of a latency, with its p90. A timing that is not usable has no interval, but a remark."""
    low, high = spread.intervals.get("p50") or (None, None)
    median = Measure(spread.p50, "ms", "median", low, high, digits=1)
    if unusable_reason(stopwatch, f"{name}.p50"):
        return replace(median, low=None, high=None, about=serving_phrases.not_usable(stopwatch))
    p90 = None if unusable_reason(stopwatch, f"{name}.p90") else spread.p90
    return replace(median, about=serving_phrases.high_latency(p90))


def _trouble(run: Run) -> Iterator[AnyBlock]:
    performance, first = run.performance, Level.FIRST_PAGE
    if performance.goodput and not run.backend.is_recorded and not run.ab:
        yield Fact("goodput", say(serving_phrases.goodput, performance.goodput), level=first, spare=1)
    yield Fact("failed", say(serving_phrases.failed_calls, performance), "open", level=first, until=first)
    if run.stopwatch.verdict not in (OK, None) and not run.backend.is_recorded:
        yield Fact("timings", say(serving_phrases.timing_trouble, run.stopwatch), _tone(run.stopwatch), level=first, until=first)


def _timing(run: Run) -> Iterator[AnyBlock]:
    stopwatch = run.stopwatch
    if run.performance.calls:
        yield Fact(
            "timing quality", say(serving_phrases.timing_verdict, stopwatch), _tone(stopwatch), level=Level.SUMMARY, until=Level.SUMMARY
        )
        yield Fact("timing quality", say(serving_phrases.timing, stopwatch), _tone(stopwatch))
        yield from (Fact("", note) for note in stopwatch.notes)
        yield Fact("evidence", say(serving_phrases.timing_evidence, stopwatch), level=Level.VERBOSE)
        yield Fact("first event", say(serving_phrases.delayed_acknowledgements, stopwatch))


def _tone(stopwatch: Stopwatch) -> Tone:
    return "bad" if stopwatch.verdict == SATURATED else "" if stopwatch.verdict == OK else "open"


def _calls(performance: PerformanceSummary) -> Iterator[AnyBlock]:
    yield Fact("calls", say(serving_phrases.calls, performance))
    for kind, amount in performance.failed_calls.items():
        yield Fact("failed", say(serving_phrases.failed_kind, kind, amount), "open")


def _totals(run: Run) -> Iterator[AnyBlock]:
    performance = run.performance
    yield from _calls(performance)
    if performance.calls:
        yield Fact("throughput", say(serving_phrases.throughput, performance))
    if performance.window:
        yield Fact("window", say(serving_phrases.chosen_window, performance.window))
    else:
        yield Fact("steady", say(serving_phrases.steady, performance))
    if performance.split:
        yield Fact("time", say(serving_phrases.split, performance.split, serving_phrases.is_streamed(performance)), level=Level.SUMMARY)


def _tables(performance: PerformanceSummary) -> Iterator[AnyBlock | Section | None]:
    verbose = Level.VERBOSE
    yield from _latencies(performance.latencies)
    yield _latencies_with_intervals(performance)
    if not any(performance.latencies.values()):
        yield Note(serving_phrases.NO_LATENCIES, level=verbose)
    else:
        yield _rates(performance)
        yield Note(serving_phrases.DEFINITIONS, level=verbose)
        yield Note(serving_phrases.INTERVALS, level=verbose)
        yield Note(say(serving_phrases.few_values, performance))
    if (window := performance.window) and window.calls:
        with_intervals = Table(_columns("milliseconds", COLUMNS), tuple(_rows(window.latencies)), level=verbose)
        yield of("Calls sent in the window", [*_latencies(window.latencies), with_intervals])
    yield of("Where the time went", [_split(performance.split, serving_phrases.is_streamed(performance))] if performance.split else [])
    yield of("Slowest LLM calls", _slow_calls(performance.slowest_calls))


def _latencies(latencies: Mapping[str, LatencySpread | None]) -> Iterator[Table]:
    """Yields a table of latencies with only the interval of the median, so that each row fits into a line of a terminal."""
    columns = heads("ms", *((name, 1) for name in COLUMNS), "median, 95 %")
    rows = [
        (title, *(getattr(spread, name) for name in COLUMNS), say(brackets, spread.intervals.get("p50")))
        for title, spread in _known(latencies)
    ]
    yield Table(columns, tuple(rows), until=Level.FULL)


def _latencies_with_intervals(performance: PerformanceSummary) -> Table:
    rows = [*_rows(performance.latencies)]
    if adjusted := performance.ttft_adjusted_ms:
        values = (adjusted.p50, adjusted.p90, adjusted.p95, adjusted.p99)
        cells = [serving_phrases.NEVER if value == INFINITE else value for value in values]
        rows.append((serving_phrases.ADJUSTED, adjusted.n, None, None, *cells, serving_phrases.NEVER))
    return Table(_columns("milliseconds", COLUMNS), tuple(rows), level=Level.VERBOSE)


def _columns(title: str, names: tuple[str, ...]) -> tuple[Column, ...]:
    return heads(title, ("n", 0), *((name, 1) for name in names))


def _rows(latencies: Mapping[str, LatencySpread | None]) -> Iterator[tuple[TableCell, ...]]:
    for title, spread in _known(latencies):
        yield title, *_cells(spread, COLUMNS)


def _known(latencies: Mapping[str, LatencySpread | None]) -> Iterator[tuple[str, LatencySpread]]:
    for metric in registry.latencies().values():
        if spread := latencies.get(metric.key):
            yield metric.title, spread


def _cells(spread: Percentiles, columns: tuple[str, ...]) -> Iterator[TableCell]:
    yield spread.n
    for name in columns:
        value = getattr(spread, name)
        yield None if value is None else say(phrases.with_interval, value, spread.intervals.get(name))


def _rates(performance: PerformanceSummary) -> Table:
    rows = [(title, *_cells(spread, RATE_COLUMNS)) for name, title in RATES.items() if (spread := getattr(performance, name))]
    return Table(_columns("rates", RATE_COLUMNS), tuple(rows), level=Level.VERBOSE)


def _split(split: Mapping[str, PartOfTime], streamed: bool) -> Table:
    columns = heads("part", ("share", 1), ("mean ms", 1), ("median ms", 1))
    parts = [(title, split[part]) for part, title in part_names(streamed).items() if part in split]
    rows = tuple((title, say(percent, part.share), part.mean_ms, part.p50_ms) for title, part in parts)
    return Table(columns, rows, level=Level.VERBOSE)


CALL_COLUMNS = heads(
    *(("ms", 1), "rollout", "call", ("queue", 1), ("first token", 1), ("decoding", 1), ("prompt", 0), ("cached", 0), ("output", 0))
)


def call_cells(call: SlowCall) -> tuple[TableCell, ...]:
    """Returns the cells that describe a slow call in a table with CALL_COLUMNS."""
    times = (call.queue_ms, call.first_token_ms, call.decoding_ms)
    counts = (call.prompt_tokens, call.cached_tokens, call.output_tokens)
    return call.total_ms, Code(call.rollout, "scenario"), say(serving_phrases.call_place, call), *times, *counts


def _slow_calls(calls: tuple[SlowCall, ...]) -> Iterator[AnyBlock]:
    rows = tuple((*call_cells(call), call.error_kind or "") for call in calls)
    yield Table((*CALL_COLUMNS, *heads("failed")), rows, level=Level.VERBOSE)
    if calls:
        yield Note(serving_phrases.SLOW_CALLS, level=Level.VERBOSE)
