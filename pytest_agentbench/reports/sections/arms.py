"""The section of an A/B session: the comparisons of its arms, and how their prefix caches were prepared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pytest_agentbench.gate.ab import BETTER, FASTER, SLOWER, UNDECIDED, WORSE
from pytest_agentbench.reports import gate_phrases, suite_phrases
from pytest_agentbench.reports.document import AnyBlock, Fact, Level, Note, Section, Table, Tone, heads, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.sections import side_by_side
from pytest_agentbench.reports.view import RunView, complete_comparisons
from pytest_agentbench.runs.results import ArmsCompared, MetricCompared
from pytest_agentbench.runs.run_file import Run

TONES: dict[str, Tone] = {BETTER: "good", FASTER: "good", WORSE: "bad", SLOWER: "bad"}
RATES = ("output_tokens_per_s", "rollouts_per_hour")  # columns of the table of arms


def section(view: RunView) -> Section | None:
    """Returns the most important comparisons, the results of each arm, and all comparisons.

    For a run without arms, the section contains only how the prefix cache was prepared.
    """
    run = view.run
    cache = Fact("cache", say(gate_phrases.cache, run))
    return of("A/B" if run.ab else "Prefix cache", [*(_blocks(run, run.ab) if run.ab else ()), cache])


def essentials(ab: ArmsCompared) -> list[MetricCompared]:
    """Returns the comparisons that show a difference, and in any case the first score of each suite."""
    comparisons = complete_comparisons(ab)
    firsts = {each.suite: each.metric for each in reversed(comparisons)}
    return [each for each in comparisons if each.finding in TONES or firsts[each.suite] == each.metric]


def is_timing(each: MetricCompared) -> bool:
    """Returns whether a comparison is about a timing, such as `ttft.p50`, and not about a score."""
    return "." in each.metric


def undecided_scores(comparisons: Iterable[MetricCompared]) -> list[tuple[str, list[MetricCompared]]]:
    """Returns the inconclusive comparisons of scores whose values differ, those of a suite with the same reason together.

    Each group is a pair (suite, comparisons).
    """
    groups: dict[tuple[str, str], list[MetricCompared]] = {}
    for each in comparisons:
        if each.finding == UNDECIDED and not is_timing(each) and each.base != each.new:
            groups.setdefault((each.suite, each.reason), []).append(each)
    return [(suite, found) for (suite, _), found in groups.items()]


def _blocks(run: Run, ab: ArmsCompared) -> Iterator[AnyBlock]:
    first, summary = Level.FIRST_PAGE, Level.SUMMARY
    comparisons, shown = complete_comparisons(ab), essentials(ab)
    yield Fact("A/B", say(gate_phrases.arms, ab), level=first)
    yield Fact("", say(gate_phrases.lost_arms, ab), "open", level=first)
    for each in shown:
        short = each if each.low is None else replace(each, reason="")  # An interval needs no reason.
        until = summary if each.finding in TONES else first  # The table of arms has the others.
        yield Fact(each.suite, say(gate_phrases.comparison, ab, short), TONES.get(each.finding, ""), level=first, until=until)
    others = [each for each in comparisons if each not in shown]
    timings = sum(each.finding == UNDECIDED and is_timing(each) for each in others)
    same = sum(each.finding != UNDECIDED or (not is_timing(each) and each.base == each.new) for each in others)
    for name, undecided in undecided_scores(others):
        yield Fact(name, say(gate_phrases.undecided, ab, undecided), "open", level=first, until=summary)
    yield Fact("others", say(gate_phrases.no_difference, same, timings), level=first, until=first, spare=1)
    for name, suite in run.suites.items():
        yield Fact(name, say(suite_phrases.rollouts, suite), level=first, until=first, spare=2)
    for arm in ab.arms:
        yield Fact(arm.name, say(gate_phrases.arm, arm))
        yield Fact("", say(gate_phrases.arm_failure, arm), "bad", level=Level.VERBOSE)
    for each in comparisons:
        # A terminal does not show a percentile without an interval.
        level = Level.VERBOSE if each.metric.endswith(".p90") and each.low is None else Level.FULL
        yield Fact(each.suite, say(gate_phrases.comparison, ab, each), TONES.get(each.finding, ""), level=level)
    yield from (Fact("not equal", warning, "open", level=first) for warning in ab.warnings)
    if comparisons:
        yield Note(gate_phrases.DIFFERENCES, level=Level.VERBOSE)
        if len(ab.arms) > 2:
            yield Note(gate_phrases.FAMILY_OF_ARMS, level=Level.VERBOSE)
    yield side_by_side.of_arms(ab)
    yield _rates(ab)


def _rates(ab: ArmsCompared) -> Table:
    """Returns a table with the calls, output tokens/s and rollouts/h of each arm. Rates exclude the time in which other arms ran."""
    columns = heads("arm", ("LLM calls", 0), ("failed", 0), ("seconds of its blocks", 1), ("output tokens/s", 1), ("rollouts/h", 1))
    rows = ((arm.name, arm.calls, arm.failed_calls, arm.busy_s, *(arm.metrics[each] for each in RATES)) for arm in ab.arms)
    return Table(columns, tuple(rows), level=Level.VERBOSE)
