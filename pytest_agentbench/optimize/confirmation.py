"""The confirmation of a search: the winner against the default settings, on scenarios that the search did not see.

Only a confirmation leads to the word "better". It needs both: the objective is shown to be smaller, and every rule about scores passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pytest_agentbench.gate.ab import FASTER, SLOWER, ArmPair, ArmQuestion, answers, latency_question
from pytest_agentbench.gate.evidence import Evidence, RunFacts, Trial
from pytest_agentbench.gate.rules import SuiteRule, parse_rule
from pytest_agentbench.gate.verdict import RuleVerdict, judge_rules
from pytest_agentbench.optimize.ranking import ComparedSettings
from pytest_agentbench.optimize.spending import SPENDING, spent
from pytest_agentbench.records import Scale
from pytest_agentbench.runs.results import ArmFacts, MetricCompared
from pytest_agentbench.stats.decisions import FAIL, PASS, Decision
from pytest_agentbench.stats.latency import compare_interleaved

BASE, NEW = PAIR = ArmPair("base", "new")  # names of the arms: the default settings, and the others

LESS, MORE = "less", "more"  # findings about tokens and costs

CONFIRMED, REFUTED, OPEN = "better", "not better", "not shown to be better"


@dataclass(frozen=True)
class ConfirmationTerms:
    """The terms of a confirmation: one objective, and the accepted loss of the main score."""

    suite: str
    objective: str  # such as `rollout.p50` or `cost`
    score: str  # main score of the suite
    scale: Scale  # scale of that score
    margin: float  # accepted loss of the score's mean, in its unit
    deterministic: bool = False  # whether the suite declares that its trials never differ


@dataclass(frozen=True)
class Confirmation:
    """The result of a confirmation: the comparison of the objective, and the verdict on the rule about quality."""

    speed: MetricCompared
    quality: RuleVerdict

    @property
    def verdict(self) -> str:
        """`better` if the objective is smaller and quality passes, `not better` if one is shown to be worse."""
        if self.speed.finding in (FASTER, LESS) and self.quality.decision.verdict == PASS:
            return CONFIRMED
        return REFUTED if self.speed.finding in (SLOWER, MORE) or self.quality.decision.verdict == FAIL else OPEN


def confirm(compared: ComparedSettings, terms: ConfirmationTerms, facts: RunFacts, arms: ArmFacts, unusable: str = "") -> Confirmation:
    """Judges a confirmation: the objective as an A/B session does, and quality as the gate does with the default settings as the baseline.

    Args:
        compared: The rollouts of the confirmation.
        terms: What is judged.
        facts: Facts about the session, for the gate.
        arms: Failures of the arms.
        unusable: Why the objective cannot be compared, or an empty string.
    """
    [speed] = answers(_question(compared, terms, unusable), [PAIR], arms)
    rule = parse_rule(f"{terms.score}.mean {terms.scale.sign} {_signed(terms)} vs baseline", [terms.score], {terms.score: terms.scale})
    run, base = (_evidence(each, terms, facts) for each in (compared.new, compared.base))
    suite_rule = SuiteRule(terms.suite, rule, terms.scale, any_part=True, deterministic=terms.deterministic)
    [quality] = judge_rules([suite_rule], run, {terms.suite: base})
    return Confirmation(speed, quality)


def _question(compared: ComparedSettings, terms: ConfirmationTerms, unusable: str) -> ArmQuestion:
    """Returns the question how the objective compares between the arms. For tokens and costs it is about the mean."""
    trials, reasons = {NEW: compared.new, BASE: compared.base}, dict.fromkeys(PAIR, unusable)
    metric, _, statistic = terms.objective.partition(".")
    if terms.objective not in SPENDING:
        return latency_question(terms.suite, metric, int(statistic.removeprefix("p")), trials, reasons)
    amounts = {arm: spent(each, terms.objective) for arm, each in trials.items()}

    def compare_pair(pair: ArmPair, confidence: float) -> Decision:
        return compare_interleaved(amounts[pair.new], amounts[pair.base], None, confidence=confidence)

    known = {arm: [value for timing in each for value in timing.values] for arm, each in amounts.items()}
    means = {arm: fmean(values) if values else None for arm, values in known.items()}
    return ArmQuestion(terms.suite, terms.objective, means, compare_pair, (LESS, MORE), reasons)


def _signed(terms: ConfirmationTerms) -> str:
    return f"{terms.margin if terms.scale.falling else -terms.margin:+g}"


def _evidence(trials: Sequence[Trial], terms: ConfirmationTerms, facts: RunFacts) -> Evidence:
    """Returns the rollouts of one arm as the evidence of a run of the suite."""
    own = [replace(trial, group=terms.suite) for trial in trials]
    scenarios = {terms.suite: len({trial.scenario for trial in own})}
    scales = {terms.suite: {terms.score: terms.scale}}
    return Evidence.of(replace(facts, scenarios=scenarios, scales=scales, quarantined={}, unsupported={}), own)
