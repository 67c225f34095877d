"""The section of the gate: each rule with its estimate, and the scenarios that got worse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_agentbench.reports import gate_phrases, phrases
from pytest_agentbench.reports.document import AnyBlock, Document, Fact, Level, Note, Section, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.view import RunView, ranking_of, suspects, tone, worst_first
from pytest_agentbench.runs.results import GateResult, RoundsResult, RuleResult

RULES = 6  # rules on the first page, the worst first
WORST = 3  # scenarios on the first page
SHOWN = 20  # scenarios that got worse, in the summary


def section(view: RunView) -> Section | None:
    """Returns the verdict, the rules, the interim looks after added trial rounds, and the scenarios with lower scores."""
    gate = view.run.gate
    return None if gate is None else _section(gate, view.run.rounds)


def document_of(gate: GateResult, rounds: RoundsResult | None) -> Document:
    """Returns a report that contains only the section of the gate."""
    section = _section(gate, rounds)
    return Document("Gate", None, (replace(section, title=""),) if section else ())


def _section(gate: GateResult, rounds: RoundsResult | None) -> Section | None:
    verdict = Fact("gate", say(gate_phrases.gate, gate, rounds), tone(gate.verdict), level=Level.FIRST_PAGE)
    return of("Gate", [verdict, *_rules(gate), *_claims(gate), *_ranking(gate), _interim_looks(rounds)])


def _rules(gate: GateResult) -> Iterator[AnyBlock]:
    for place, rule in enumerate(worst_first(gate.rules)):
        level = Level.FIRST_PAGE if place < RULES else Level.SUMMARY
        colour = tone(rule.verdict)
        if rule.verdict != "PASS":
            yield Fact("rule", say(gate_phrases.rule, rule), colour, level=Level.HEADLINE, until=Level.HEADLINE)
        yield Fact("rule", say(gate_phrases.result, rule), colour, level=level, until=Level.SUMMARY)
        yield Fact("rule", say(gate_phrases.rule, rule), colour)
        yield Fact("", say(gate_phrases.reason, rule), level=level)
        yield from _details(rule)
    yield Fact("", say(phrases.more, len(gate.rules) - RULES), level=Level.FIRST_PAGE, until=Level.FIRST_PAGE)


def _details(rule: RuleResult) -> Iterator[AnyBlock]:
    for phrase in (gate_phrases.power, gate_phrases.least_margin, gate_phrases.p_worse, gate_phrases.left_out_scenarios):
        yield Fact("", say(phrase, rule))
    yield from (Fact("", note) for note in rule.notes)


def _claims(gate: GateResult) -> Iterator[AnyBlock]:
    worse = suspects(gate.rules)
    for place, (rule, suspect) in enumerate(worse[:SHOWN]):
        yield Fact(
            "worse", say(gate_phrases.claim, rule, suspect, _suite(gate, rule)), level=Level.FIRST_PAGE if place < WORST else Level.SUMMARY
        )
    yield Fact("", say(phrases.more, len(worse) - WORST), level=Level.FIRST_PAGE, until=Level.FIRST_PAGE)
    yield Fact("", say(phrases.more, len(worse) - SHOWN, phrases.IN_RUN_JSON), level=Level.SUMMARY)
    if worse:
        yield Note(gate_phrases.BY_CHANCE, level=Level.VERBOSE)


def _suite(gate: GateResult, rule: RuleResult) -> str:
    """Returns the suite of a rule, or an empty string if all rules are about the same suite."""
    return rule.suite if len({each.suite for each in gate.rules}) > 1 else ""


def _ranking(gate: GateResult) -> Iterator[AnyBlock]:
    shown = 0
    for rule in gate.rules:
        for suspect in ranking_of(rule):
            is_first = rule.verdict == "FAIL" and shown < WORST
            shown += is_first
            yield Fact(
                "lower", say(gate_phrases.change, rule, suspect, _suite(gate, rule)), level=Level.FIRST_PAGE if is_first else Level.FULL
            )
    if any(ranking_of(rule) for rule in gate.rules):
        yield Fact("", gate_phrases.NO_CLAIM, level=Level.FIRST_PAGE if shown else Level.FULL)


def _interim_looks(rounds: RoundsResult | None) -> Section | None:
    if rounds is None:
        return None
    facts = [Fact("round", say(gate_phrases.interim_look, rounds, look, rule)) for look in rounds.looks for rule in look.rules]
    return of("Trial rounds", [*facts, Note(gate_phrases.LEVEL_OF_LOOKS, level=Level.VERBOSE)] if facts else [])
