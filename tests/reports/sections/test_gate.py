"""The section of the gate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pytest_agentbench.reports import gate_phrases, phrases
from pytest_agentbench.reports.document import Document, Fact, Finding, Level
from pytest_agentbench.reports.sections.gate import RULES, SHOWN, WORST, document_of
from pytest_agentbench.runs.results import InterimLook, RoundsResult, RuleResult
from pytest_agentbench.stats.decisions import Suspect
from tests.findings import facts, report, said, texts
from tests.made_runs import gate_result, rule_result, run_of
from tests.reports.test_gate_phrases import rule, run

ORDER = ("PASS", "INCONCLUSIVE", "FAIL")


def gate_of(*rules: RuleResult, level: Level = Level.FULL) -> Document:
    return report(run_of(gate=gate_result("FAIL", *rules)), level)


def under(found: Document, label: str) -> list[tuple[Callable[..., Any], Any]]:
    """Returns the phrase and the first value of each finding under a label."""
    return [(fact.content.phrase, fact.content.values[0]) for fact in facts(found, label) if isinstance(fact.content, Finding)]


def suspects(amount: int, *, claimed: bool = True) -> tuple[Suspect, ...]:
    """Returns scenarios with decreasing significance."""
    return tuple(Suspect(f"s-{number:02}", 1.0, 0.0, number / 1000, claimed=claimed) for number in range(amount))


def test_no_gate() -> None:
    """A run without a gate has no such section."""
    assert [] == [fact for label in ("gate", "rule") for fact in facts(report(run_of()), label)]


def test_the_worst_rule_first() -> None:
    """Rules are sorted by verdict, the worst first. Each has its tone, its reason and its notes."""
    rules = [rule_result(f"tsq.mean >= {verdict}", verdict, notes=("a note",) * (verdict == "FAIL")) for verdict in ORDER]
    found = gate_of(*rules)

    assert [("FAIL", "bad"), ("INCONCLUSIVE", "open"), ("PASS", "good")] == [
        (values[0].verdict, fact.tone) for fact, values in zip(facts(found, "rule"), said(found, gate_phrases.rule), strict=True)
    ]
    assert [rules[1]] == [each for (each,) in said(found, gate_phrases.reason)]
    assert 1 == texts(found).count("a note")


def test_levels() -> None:
    """The first page has the worst rules except for the one in the headline, a summary all in short, and higher levels their details."""
    rules = [rule_result("x", "PASS"), *(rule_result(f"y{number}", "FAIL") for number in range(RULES + 2))]

    headline, first, summary, full = (report(run_of(gate=gate_result("FAIL", *rules), verdict="FAIL"), level) for level in list(Level)[:4])

    assert [] == under(headline, "rule")
    assert [(gate_phrases.result, each) for each in rules[2 : RULES + 2]] == under(first, "rule")
    assert [(gate_phrases.result, each) for each in (*rules[1:], rules[0])] == under(summary, "rule")
    assert [(gate_phrases.rule, each) for each in (*rules[1:], rules[0])] == under(full, "rule")
    assert ([(1,)], []) == (said(first, phrases.more), said(summary, phrases.more))
    verdicts = [[phrase for phrase, _ in under(each, "gate")] for each in (headline, first, summary, full)]
    assert [[], [], [gate_phrases.gate], [gate_phrases.gate]] == verdicts


def test_which_scenarios_got_worse() -> None:
    """With at least five trials, significant scenarios are listed with p-values.

    With fewer trials, lower scores are listed without p-values.
    """
    many = rule("tsq.mean >= -0.05 vs baseline", run(n=30, wrong=12, trials=6), run(n=30, trials=6))
    few = rule("tsq.mean >= -0.05 vs baseline", run(n=30, wrong=3), run(n=30))
    claims, ranking = gate_of(many), gate_of(few)

    found = [suspect for _, suspect, _ in said(claims, gate_phrases.claim)]
    assert ([(0.9, 0.0)], [0.0011]) == (
        [(each.base, each.new) for each in found if each.scenario == "4"],
        sorted({round(each.p, 4) for each in found}),
    )
    assert (12, 0) == (len(said(claims, gate_phrases.claim)), len(said(claims, gate_phrases.change)))
    assert [] == said(ranking, gate_phrases.claim)
    assert ["2", "1", "0"] == [suspect.scenario for _, suspect, _ in said(ranking, gate_phrases.change)]
    assert [(pytest.approx(base), 0.0) for base in (0.7, 0.6, 0.5)] == [
        (suspect.base, suspect.new) for _, suspect, _ in said(ranking, gate_phrases.change)
    ]
    assert [True] == [fact.content == gate_phrases.NO_CLAIM for fact in facts(ranking, "")[-1:]]


def test_many_scenarios_that_got_worse() -> None:
    """The most significant scenarios over all rules are shown, and the others are counted."""
    rules = [rule_result(name, "FAIL", suspects=suspects(SHOWN)) for name in ("a.mean >= 0", "b.mean >= 0")]
    first, full = (report(run_of(gate=gate_result("FAIL", *rules), verdict="FAIL"), level) for level in (Level.FIRST_PAGE, Level.FULL))

    assert [(WORST, [(2 * SHOWN - WORST,)]), (SHOWN, [(SHOWN, phrases.IN_RUN_JSON)])] == [
        (len(said(each, gate_phrases.claim)), said(each, phrases.more)) for each in (first, full)
    ]
    assert ["s-00", "s-00", "s-01"] == [suspect.scenario for _, suspect, _ in said(first, gate_phrases.claim)]
    assert {""} == {suite for _, _, suite in said(full, gate_phrases.claim)}
    of_two = gate_of(rules[0], replace(rules[1], suite="bank"), level=Level.FULL)
    assert {"shop", "bank"} == {suite for _, _, suite in said(of_two, gate_phrases.claim)}  # the lines name the suites


def test_a_ranking_on_the_first_page() -> None:
    """Lower scores are on the first page only if the rule failed."""
    failed, held = (
        gate_of(rule_result("x", verdict, suspects=suspects(5, claimed=False)), level=Level.FIRST_PAGE) for verdict in ("FAIL", "PASS")
    )

    assert (WORST, 0) == (len(said(failed, gate_phrases.change)), len(said(held, gate_phrases.change)))
    assert (True, False) == tuple(any(fact.content == gate_phrases.NO_CLAIM for fact in facts(each, "")) for each in (failed, held))
    exact = gate_of(rule_result("x", "FAIL", suspects=suspects(5, claimed=False), unseen=0.5), level=Level.FIRST_PAGE)
    assert [gate_phrases.NO_TEST] == [
        fact.content for fact in facts(exact, "") if fact.content in (gate_phrases.NO_TEST, gate_phrases.NO_CLAIM)
    ]


def test_looks() -> None:
    """Interim looks have a section with their rules. Without looks there is none."""
    seen = rule_result("x", "PASS", confidence=0.9939)
    rounds = RoundsResult(most=5, ran=2, stands=True, saved=9, looks=(InterimLook(2, "PASS", stands=True, rules=(seen,)),))
    asked = gate_result("PASS", seen)
    found, without = report(run_of(gate=asked, rounds=rounds)), report(run_of(gate=asked))

    assert [(rounds, rounds.looks[0], seen)] == said(found, gate_phrases.interim_look)
    assert [(asked, rounds)] == said(found, gate_phrases.gate)
    assert ([], [(asked, None)]) == (said(without, gate_phrases.interim_look), said(without, gate_phrases.gate))


def test_a_gate_alone() -> None:
    """A report of a gate alone has no headline, and its section no title."""
    asked = gate_result("FAIL", rule_result("x", "FAIL"))
    alone = document_of(run_of(gate=asked))

    assert (None, [""]) == (alone.headline, [each.title for each in alone.sections])
    assert [(asked, None)] == said(alone, gate_phrases.gate)
    assert all(isinstance(each, Fact) for each in alone.blocks())
