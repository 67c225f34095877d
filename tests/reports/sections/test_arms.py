"""The section of the arms of an A/B session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.records import UNDECLARED
from pytest_agentbench.reports import gate_phrases
from pytest_agentbench.reports.ci import commands
from pytest_agentbench.reports.document import Document, Finding, Level, Note
from pytest_agentbench.runs.results import ArmFacts, ArmsCompared, MetricCompared
from tests.amounts import amounts
from tests.findings import facts, part, report, said, values_of
from tests.findings import tables as tables_of
from tests.gate.test_ab import both, rollout
from tests.gate.test_ab import compared as two_arms
from tests.gate.test_ab_arms import compared as three_arms
from tests.gate.test_ab_arms import of_metric
from tests.made_runs import run_of


def arms(ab: ArmsCompared, level: Level = Level.VERBOSE) -> Document:
    return report(run_of(ab=ab), level)


def compared_in(found: Document) -> list[MetricCompared]:
    """Returns the comparisons in a report."""
    return [each for _, each in said(found, gate_phrases.comparison)]


def notes(found: Document) -> list[object]:
    return [each.content for each in found.blocks() if isinstance(each, Note)]


def test_two_arms() -> None:
    """A comparison has both values, the difference with its interval and n, and the finding."""
    ab = two_arms(*both(-0.3, 2.0), facts=ArmFacts(load_s={"old": 12.34}))
    texts = {each.metric: gate_phrases.comparison(ab, each) for each in ab.comparisons}
    metrics = {each.metric: each for each in ab.comparisons}

    for name, finding in (("tsq", "new is worse"), ("ttft.p50", "new is slower")):
        assert texts[name].endswith(f": {finding}")
        assert "60" == amounts(texts[name])[-1]
        assert 6 == len(amounts(texts[name].removeprefix(name).replace("x", "")))  # both values, the estimate, its interval, n
    assert f": inconclusive, {metrics['ttft.p90'].reason}" in texts["ttft.p90"]
    few = "p90 needs 100 rollouts of each arm, but there are 60; run more trials (--agentbench-trials)"
    assert few == metrics["ttft.p90"].reason
    assert [(ab,)] == said(arms(ab), gate_phrases.arms)
    assert "new (y) against old (x), interleaved" == gate_phrases.arms(ab)
    assert "12.3 s" == amounts(gate_phrases.arm(ab.arms[0]))[-1]


def test_comparisons_by_level() -> None:
    """The first page has the shown differences, -v all comparisons with an interval, and files all."""
    ab = two_arms(*both(-0.3, 2.0))
    first, full, verbose = (compared_in(arms(ab, level)) for level in (Level.FIRST_PAGE, Level.FULL, Level.VERBOSE))

    assert {"worse", "slower"} == {each.finding for each in first}
    assert "tsq" == first[0].metric
    assert "tpot.p50" in [each.metric for each in full]
    assert not any(each.metric.endswith(".p90") for each in full)
    assert list(ab.comparisons) == verbose
    left = [each for each in verbose if each not in first]
    undecided = sum(each.finding == "inconclusive" for each in left)
    assert [(len(left) - undecided, undecided)] == said(arms(ab, Level.FIRST_PAGE), gate_phrases.no_difference)
    assert ["bad"] == [fact.tone for fact in facts(arms(ab, Level.FULL), "shop") if is_about(fact.content, "tsq")]
    assert ["good"] == [fact.tone for fact in facts(arms(two_arms(*both(0.3, 0.5)), Level.FULL), "shop") if is_about(fact.content, "tsq")]


def is_about(content: object, metric: str) -> bool:
    return isinstance(content, Finding) and content.phrase == gate_phrases.comparison and content.values[1].metric == metric


def test_an_inconclusive_score_is_not_counted_as_no_difference() -> None:
    """A score that fell in every scenario but is inconclusive has a line of its own on the first page: its values, why, what to do."""
    ab = two_arms(*(rollout(arm, number, float(arm == "old"), 10.0) for arm in ("old", "new") for number in range(5)), scale=UNDECLARED)
    polite = next(each for each in ab.comparisons if each.metric == "tsq")
    assert polite.finding == "inconclusive"
    ab = replace(ab, comparisons=(replace(polite, metric="main", finding="no difference shown"), polite, *ab.comparisons[1:]))
    first = arms(ab, Level.FIRST_PAGE)

    assert [(ab, [polite])] == said(first, gate_phrases.undecided)
    text = gate_phrases.undecided(ab, [polite])
    assert text.startswith("tsq 1.000 -> 0.000: inconclusive, 5 scenarios were measured, but a score without limits needs 80; run more, or")
    assert text.endswith("declare the range if it has one, as in `@scorer(range=(0, 1))` from pytest_agentbench")
    assert [(0, 8)] == said(first, gate_phrases.no_difference)
    assert "10 timings are inconclusive, report.md says why" == gate_phrases.no_difference(0, 10)


def test_a_session_without_arms() -> None:
    """A run without arms has no such section."""
    assert part(report(run_of()), "A/B") is None
    assert part(report(run_of(ab=two_arms(*both()))), "A/B") is not None


def test_the_goodput_of_each_arm() -> None:
    """With objectives, an arm has its rate and share of good calls."""
    with_objectives, without = three_arms({"c": 2.0}, {}, slo={"ttft": 20.0}).arms[0], three_arms({}, {}).arms[0]

    assert "100.0 %" in amounts(gate_phrases.arm(with_objectives))
    assert "100.0 %" not in amounts(gate_phrases.arm(without))


@pytest.mark.parametrize(("dead", "alive"), [("b", "c"), ("c", "b")])
def test_a_lost_arm_does_not_affect_the_others(dead: str, alive: str) -> None:
    """A failed arm has a reason, and its comparisons are not shown."""
    ab = three_arms({alive: 2.0}, {}, ArmFacts(failures={dead: f"arm {dead}: it is gone"}))

    for level in (Level.FIRST_PAGE, Level.FULL, Level.VERBOSE):
        assert {alive} == {each.new_arm for each in compared_in(arms(ab, level))}
        assert [(ab,)] == said(arms(ab, level), gate_phrases.lost_arms)
    assert gate_phrases.lost_arms(ab).endswith(f": arm {dead}: it is gone")
    assert [dead] == [arm.name for (arm,) in said(arms(ab), gate_phrases.arm_failure)]
    assert ["open"] == [fact.tone for fact in facts(arms(ab), "") if fact.content == Finding(gate_phrases.lost_arms, (ab,))]


def test_without_the_first_arm_nothing_is_compared() -> None:
    """If no arms are left to compare, a fact gives the reason. Otherwise it says that the failed arms are left out."""
    nothing = three_arms({}, {}, ArmFacts(failures={"a": "arm a: it is gone"}))
    some = three_arms({}, {}, ArmFacts(failures={"b": "arm a: it is gone"}))

    assert [[], []] == [compared_in(arms(nothing, level)) for level in (Level.FULL, Level.VERBOSE)]
    assert gate_phrases.lost_arms(nothing) != gate_phrases.lost_arms(some)
    assert (True, "") == (gate_phrases.lost_arms(nothing).endswith(": arm a: it is gone"), gate_phrases.lost_arms(three_arms({}, {})))
    assert (False, True) == tuple(gate_phrases.DIFFERENCES in notes(arms(each)) for each in (nothing, some))


def test_three_arms() -> None:
    """With three arms, each value has the name of its arm, and files explain the correction for several comparisons."""
    ab = three_arms({"c": 2.0}, {})
    texts = {arm: gate_phrases.comparison(ab, each) for arm, each in of_metric(ab, "ttft.p50").items()}

    assert texts["c"].startswith("ttft.p50     a ")
    assert " -> c " in texts["c"]
    assert texts["c"].endswith(": c is slower")
    assert texts["b"].endswith(": no difference shown")
    assert "b (y), c (z) against a (x), interleaved" == gate_phrases.arms(ab)
    assert (True, False) == (gate_phrases.FAMILY_OF_ARMS in notes(arms(ab)), gate_phrases.FAMILY_OF_ARMS in notes(arms(two_arms(*both()))))


def test_the_comment_on_a_merge_request() -> None:
    """A comment has the shown differences, and a table of all arms. An annotation warns of each arm that is slower or worse."""
    ab = three_arms({"c": 2.0}, {"b": 0.3})
    shown = compared_in(arms(ab, Level.SUMMARY))
    warnings = [line for line in commands(run_of(ab=ab), Path()) if line.startswith("::warning title=shop")]

    assert [(ab,)] == said(arms(ab, Level.SUMMARY), gate_phrases.arms)
    assert [("b", "worse")] == [(each.new_arm, each.finding) for each in shown if each.metric == "tsq"]
    assert {("c", "slower")} == {(each.new_arm, each.finding) for each in shown if each.metric != "tsq"}
    assert len(warnings) == sum(each.finding in ("worse", "slower") for each in shown)
    assert any("shop%3A b is worse than a" in line for line in warnings)
    assert any("shop%3A c is slower than a" in line for line in warnings)


def test_rates() -> None:
    """Files have a table with a column for each arm, then the calls of each arm, and its rates over the time of its blocks."""
    ab = two_arms(*both(0.0, 2.0))
    side_by_side, table = tables_of(arms(ab), "arm")

    assert ["arm", *(arm.name for arm in ab.arms)] == [column.title for column in side_by_side.columns]

    assert [(arm.name, arm.calls, arm.failed_calls, arm.busy_s) for arm in ab.arms] == [row[:4] for row in values_of(table)]
    assert [60, 60] == [row[1] for row in values_of(table)]
    assert [(arm.metrics["output_tokens_per_s"], arm.metrics["rollouts_per_hour"]) for arm in ab.arms] == [
        row[4:] for row in values_of(table)
    ]


def test_warnings_about_unequal_conditions() -> None:
    """Each warning is a fact with the tone open."""
    ab = two_arms(*both(), facts=ArmFacts(in_sequence=True))

    [warning] = facts(arms(ab, Level.FIRST_PAGE), "not equal")
    assert ("open", ab.warnings[0]) == (warning.tone, warning.content)
