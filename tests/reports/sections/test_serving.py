"""The section of serving."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_agentbench.metrics.performance import GoodputSummary
from pytest_agentbench.metrics.stopwatch import SATURATED, Stopwatch
from pytest_agentbench.records import Chunk, LLMCall, Rollout
from pytest_agentbench.reports import serving_phrases
from pytest_agentbench.reports.document import Level, Note
from pytest_agentbench.reports.sections.serving import LATENCIES, call_cells
from pytest_agentbench.runs.run_file import Run
from tests.findings import facts, measure, part, report, said, tables, texts, values_of
from tests.made_runs import run_of
from tests.tables.shop import ALL, LOST

GOOD = LLMCall(0, 0, 40_000_000, (Chunk(10_000_000, "content"), Chunk(30_000_000, "content")), called_ns=0, completion_tokens=2)
CUT = LLMCall(0, 0, 40_000_000, error_kind="cut")
TIMED = run_of(Rollout("shop", "s", "default", 1, "ok", ended_ns=50_000_000, calls=(*[GOOD] * 9, CUT)))


def rows(run: Run, first: str) -> dict[str, tuple[Any, ...]]:
    """Returns the rows of the only table in files whose first column has this title."""
    [table] = tables(report(run, Level.VERBOSE), first)
    return {row[0]: row[1:] for row in values_of(table)}


def test_latencies() -> None:
    """Percentiles have intervals, or a dash if there are too few values. A row counts failed calls as infinite."""
    latencies = rows(TIMED, "milliseconds")

    median, none = (10.0, (10.0, 10.0)), (None, None, None)
    assert (9, (10.0, None), (10.0, None), median, *none, (10.0, None)) == latencies["TTFT"]
    assert (10, None, None, 10.0, serving_phrases.NEVER, None, None, serving_phrases.NEVER) == latencies[serving_phrases.ADJUSTED]
    assert (9, (50.0, None), (50.0, None), (50.0, (50.0, 50.0)), *none, (50.0, None)) == rows(TIMED, "rates")["output tok/s of a call"]
    assert [(TIMED.performance,)] == said(report(TIMED, Level.VERBOSE), serving_phrases.few_values)


def test_latencies_of_a_terminal() -> None:
    """The table of a terminal has only the interval of the median. Files have all intervals."""
    [table] = tables(report(TIMED, Level.FULL), "ms")

    [ttft] = [row for row in values_of(table) if row[0] == "TTFT"]
    assert ("TTFT", 10.0, 10.0, 10.0, None, None, None, 10.0, (10.0, 10.0)) == ttft
    assert ([], []) == (
        tables(report(TIMED, Level.FULL), "milliseconds"),
        [each for each in tables(report(TIMED, Level.VERBOSE), "ms") if each.columns == table.columns],
    )


def test_measures_by_level() -> None:
    """The first page has one line about the speed. A summary has all latencies, with more details."""
    first, summary = report(TIMED, Level.FIRST_PAGE), report(TIMED, Level.SUMMARY)
    titles = {name: {"ttft": "TTFT", "itl": "ITL", "e2e": "E2E"}[name] for name in LATENCIES}

    assert set() == {title for title in titles.values() if facts(first, title)}
    assert [(TIMED.performance, TIMED.stopwatch)] == said(first, serving_phrases.speed)
    assert {"TTFT", "ITL", "E2E"} == {title for title in titles.values() if facts(summary, title)}
    spread = TIMED.performance.latency("ttft")
    assert spread is not None
    found = measure(summary, "TTFT")
    assert (10.0, "ms", "median", 10.0, 10.0, serving_phrases.high_latency(spread.p90)) == (
        *(found.value, found.unit, found.statistic, found.low, found.high, found.about),
    )
    throughput = measure(summary, "throughput")
    assert throughput.value == TIMED.performance.number("output_tokens_per_s")
    assert serving_phrases.tokens_and_calls(TIMED.performance) == throughput.about


def test_unusable_timings_have_no_interval() -> None:
    """A latency that is not usable has a remark instead of its interval. A p90 that is not usable is left out."""
    saturated = replace(TIMED, stopwatch=Stopwatch(verdict=SATURATED))
    timing = measure(report(saturated, Level.SUMMARY), "TTFT")
    assert (10.0, None, None, "not usable: client-saturated") == (timing.value, timing.low, timing.high, timing.about)
    assert "TTFT 10.0 ms (median, not usable)" in serving_phrases.speed(saturated.performance, saturated.stopwatch)
    late = report(replace(TIMED, stopwatch=Stopwatch(verdict="warn", unusable=("itl.p50", "ttft.p90"))), Level.SUMMARY)
    itl, ttft, e2e = (measure(late, title) for title in ("ITL", "TTFT", "E2E"))
    assert (None, "not usable: events were read too late") == (itl.low, itl.about)
    assert (10.0, "", 40.0) == (ttft.low, ttft.about, e2e.low)


def test_delayed_acknowledgements() -> None:
    """A line says in how many calls other clients could get the first event later. Without such calls there is none."""
    timed = replace(TIMED, stopwatch=replace(TIMED.stopwatch, delayed_ack_share=0.25))

    assert [(timed.stopwatch,)] == said(report(timed, Level.FULL), serving_phrases.delayed_acknowledgements)
    assert facts(report(timed, Level.FULL), "first event")
    assert [] == facts(report(TIMED, Level.FULL), "first event")


def test_a_recording_has_no_speed() -> None:
    """For answers from a recording, the summary says that it shows no timings, and has neither latencies, rates nor cache hits."""
    recorded = replace(TIMED, backend=replace(TIMED.backend, kind="recorded"))
    for level in (Level.FIRST_PAGE, Level.SUMMARY):
        shown = report(recorded, level)
        assert serving_phrases.RECORDED in texts(shown)
        assert [] == [title for title in ("TTFT", "ITL", "E2E", "throughput", "rollouts/h", "prefix cache") if facts(shown, title)]


def test_the_split_of_the_time() -> None:
    """Each part has its share, its mean and its median."""
    assert [*rows(TIMED, "part")["decoding"]] == pytest.approx([0.6, 30.0, 30.0])
    assert [(TIMED.performance.split, True)] == said(report(TIMED, Level.FULL), serving_phrases.split)


def test_failed_calls() -> None:
    """The first page counts failed calls. With -v and in files, each kind has a fact."""
    performance = TIMED.performance
    whole = run_of(Rollout("shop", "s", "default", 1, "ok", ended_ns=50_000_000, calls=(GOOD,)))

    assert [(performance,)] == said(report(TIMED, Level.FIRST_PAGE), serving_phrases.failed_calls)
    assert [("cut", 1)] == said(report(TIMED, Level.VERBOSE), serving_phrases.failed_kind)
    assert [] == facts(report(whole, Level.FIRST_PAGE), "failed") + facts(report(whole, Level.FULL), "failed")


def test_a_run_without_calls() -> None:
    """Without calls, a note replaces the table of latencies."""
    quiet = report(run_of(Rollout("shop", "s", "default", 1, "ok")), Level.VERBOSE)

    assert serving_phrases.NO_LATENCIES in [each.content for each in quiet.blocks() if isinstance(each, Note)]
    assert ([], []) == (tables(quiet, "milliseconds"), tables(quiet, "rates"))
    assert serving_phrases.NO_LATENCIES not in [each.content for each in report(TIMED, Level.VERBOSE).blocks() if isinstance(each, Note)]


@pytest.mark.parametrize(("verdict", "tone", "first"), [("ok", "", 0), ("warn", "open", 1), (SATURATED, "bad", 1), (None, "open", 0)])
def test_timings(verdict: str | None, tone: str, first: int) -> None:
    """The verdict on the timings has a tone, figures in files, and a line on the first page if it is not ok."""
    watch = Stopwatch(verdict=verdict, clean_share=1.0, notes=("a note",))
    run = replace(TIMED, stopwatch=watch)

    [fact] = facts(report(run, Level.FULL), "timing quality")
    assert tone == fact.tone
    assert [(watch,)] == said(report(run, Level.FULL), serving_phrases.timing)
    assert [(watch,)] * first == said(report(run, Level.FIRST_PAGE), serving_phrases.timing_trouble)
    assert ([], [(watch,)]) == tuple(said(report(run, level), serving_phrases.timing_evidence) for level in (Level.FULL, Level.VERBOSE))
    assert "a note" in texts(report(run, Level.FULL))


def test_goodput() -> None:
    """With objectives, goodput is on the first page."""
    found = GoodputSummary({"ttft": 500.0}, 9, 1, 0, {"ttft": 0}, 0.9, 1.5)
    run = replace(TIMED, performance=replace(TIMED.performance, goodput=found))

    assert [(found,)] == said(report(run, Level.FIRST_PAGE), serving_phrases.goodput)
    assert [] == said(report(TIMED), serving_phrases.goodput)


def test_slow_calls() -> None:
    """Files have a table of slow calls with times, position, tokens and failure, and a note on the command that explains them."""
    run = run_of(*ALL)
    section = part(report(run, Level.VERBOSE), "Serving", "Slowest LLM calls")
    [table] = tables(report(run, Level.VERBOSE), "ms")

    assert section is not None and table in section.blocks
    assert [
        (700.0, "shop[shop-1]", 0.0, 400.0, 300.0, 100, 60, 2, ""),
        (300.0, "shop[shop-0]", 0.0, 200.0, 100.0, 100, 60, 1, ""),
        (200.0, "shop[shop-0]", 0.0, 100.0, 100.0, 100, 60, 3, ""),
        (100.0, "shop[shop-1]", 0.0, None, None, 100, 60, 0, "server_error"),
    ] == [(*row[:2], *row[3:]) for row in values_of(table)]
    assert [(1, 1, 2), (2, 2, 1), (1, 2, 1), (1, 1, 1)] == [(row[2].number, row[2].of, row[2].attempt) for row in values_of(table)]
    assert [call_cells(each) for each in run.performance.slowest_calls] == [row[:-1] for row in table.rows]
    assert [serving_phrases.SLOW_CALLS] == [each.content for each in section.blocks if isinstance(each, Note)]
    assert part(report(run_of(LOST)), "Serving", "Slowest LLM calls") is None


def test_the_place_of_a_call() -> None:
    """A call has the number of its attempt, except in the first."""
    slow = run_of(*ALL).performance.slowest_calls

    assert ["1 of 1, attempt 2", "2 of 2", "1 of 2", "1 of 1"] == [serving_phrases.call_place(each) for each in slow]
