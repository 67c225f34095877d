"""The section of the gate: each rule with its estimate, and the scenarios that got worse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_agentbench.gate.needed import needed
from pytest_agentbench.reports import gate_phrases, phrases
from pytest_agentbench.reports.document import AnyBlock, Document, Fact, Level, Note, Section, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.headline import deciding_rules
from pytest_agentbench.reports.view import RunView, ranking_of, suspects, tone, worst_first
from pytest_agentbench.runs.results import GateResult, RoundsResult, RuleResult
from pytest_agentbench.runs.run_file import Run

RULES = 3  # further rules on the first page, the worst first; the one that decided is in the headline
WORST = 3  # scenarios on the first page
SHOWN = 20  # scenarios that got worse, in the summary


def section(view: RunView) -> Section | None:
    """Returns the verdict, the rules, the interim looks after added trial rounds, and the scenarios with lower scores."""
    return None if view.run.gate is None else _section(view.run, view.run.gate)


def document_of(run: Run) -> Document:
    """Returns a report that contains only the section of the gate."""
    section = _section(run, run.gate) if run.gate else None
    return Document("Gate", None, (replace(section, title=""),) if section else ())


def _section(run: Run, gate: GateResult) -> Section | None:
    verdict = Fact("gate", say(gate_phrases.gate, gate, run.rounds), tone(gate.verdict), level=Level.SUMMARY)
    return of("Gate", [verdict, *_first_page(run, gate), *_rules(run, gate), *_claims(gate), *_ranking(gate), _interim_looks(run.rounds)])


def _first_page(run: Run, gate: GateResult) -> Iterator[AnyBlock]:
    """Yields why the rule in the headline was not decided and what it needs, then other rules that did not pass."""
    first, until = Level.FIRST_PAGE, Level.FIRST_PAGE
    spare = 2 if run.ab else 0  # The comparison of arms is what such a run is for.
    decisive = deciding_rules(run)[:1]
    for rule in decisive if not run.backend.is_recorded else ():  # The headline says that answers come from a recording.
        yield Fact("why", say(gate_phrases.reason, rule), tone(rule.verdict), level=first, until=until, spare=spare)
        yield Fact("needed", say(gate_phrases.needs, needed(rule, run)), tone(rule.verdict), level=first, until=until, spare=spare)
    others = [rule for rule in worst_first(gate.rules) if rule not in decisive and (rule.verdict != "PASS" or not decisive)]
    for rule in others[:RULES]:
        yield Fact("rule", say(gate_phrases.result, rule), tone(rule.verdict), level=first, until=until, spare=1)
        if rule.reason not in {each.reason for each in decisive}:
            yield Fact("", say(gate_phrases.reason, rule), level=first, until=until)
    yield Fact("", say(phrases.more, len(others) - RULES), level=first, until=until)
    yield Fact("gate", say(gate_phrases.circumstances, gate, run.rounds), level=first, until=until, spare=1)


def _rules(run: Run, gate: GateResult) -> Iterator[AnyBlock]:
    for rule in worst_first(gate.rules):
        colour = tone(rule.verdict)
        yield Fact("rule", say(gate_phrases.result, rule), colour, level=Level.SUMMARY, until=Level.SUMMARY)
        yield Fact("rule", say(gate_phrases.rule, rule), colour)
        yield Fact("", say(gate_phrases.reason, rule), level=Level.SUMMARY)
        yield Fact("", say(gate_phrases.needs, needed(rule, run)), level=Level.SUMMARY)
        yield from _details(rule)


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
    if ranked := [rule for rule in gate.rules if ranking_of(rule)]:
        is_exact = all(rule.unseen is not None for rule in ranked)
        yield Fact("", gate_phrases.NO_TEST if is_exact else gate_phrases.NO_CLAIM, level=Level.FIRST_PAGE if shown else Level.FULL)


def _interim_looks(rounds: RoundsResult | None) -> Section | None:
    if rounds is None:
        return None
    facts = [Fact("round", say(gate_phrases.interim_look, rounds, look, rule)) for look in rounds.looks for rule in look.rules]
    return of("Trial rounds", [*facts, Note(gate_phrases.LEVEL_OF_LOOKS, level=Level.VERBOSE)] if facts else [])
