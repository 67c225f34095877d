"""The confirmation of a search: the winner against the default settings, on scenarios that the search did not see.

Only a confirmation leads to the word "better". It needs both: the objective is shown to be smaller, and every rule about scores passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_agentbench.gate.ab import FASTER, SLOWER, ArmPair, answers, latency_question
from pytest_agentbench.gate.evidence import Evidence, RunFacts, Trial
from pytest_agentbench.gate.rules import SuiteRule, parse_rule
from pytest_agentbench.gate.verdict import RuleVerdict, judge_rules
from pytest_agentbench.optimize.ranking import ComparedSettings
from pytest_agentbench.records import Scale
from pytest_agentbench.runs.results import ArmFacts, MetricCompared
from pytest_agentbench.stats.decisions import FAIL, PASS

BASE, NEW = PAIR = ArmPair("base", "new")  # names of the arms: the default settings, and the others

CONFIRMED, REFUTED, OPEN = "better", "not better", "not shown to be better"


@dataclass(frozen=True)
class ConfirmationTerms:
    """What a confirmation judges: one objective about speed, and the accepted loss of the main score."""

    suite: str
    objective: str  # such as `rollout.p50`
    score: str  # main score of the suite
    scale: Scale  # scale of that score
    margin: float  # accepted loss of the score's mean, in its unit
    deterministic: bool = False  # whether the suite declares that its trials never differ


@dataclass(frozen=True)
class Confirmation:
    """The result of a confirmation: the comparison of speed, and the verdict on the rule about quality."""

    speed: MetricCompared
    quality: RuleVerdict

    @property
    def verdict(self) -> str:
        """`better` if the objective is smaller and quality passes, `not better` if one is shown to be worse."""
        if self.speed.finding == FASTER and self.quality.decision.verdict == PASS:
            return CONFIRMED
        return REFUTED if self.speed.finding == SLOWER or self.quality.decision.verdict == FAIL else OPEN


def confirm(compared: ComparedSettings, terms: ConfirmationTerms, facts: RunFacts, arms: ArmFacts, unusable: str = "") -> Confirmation:
    """Judges a confirmation: speed as an A/B session does, and quality as the gate does with the default settings as the baseline.

    Args:
        compared: The rollouts of the confirmation.
        terms: What is judged.
        facts: Facts about the session, for the gate.
        arms: Failures of the arms.
        unusable: Why the latencies cannot be compared, or an empty string.
    """
    metric, _, statistic = terms.objective.partition(".")
    trials = {NEW: compared.new, BASE: compared.base}
    question = latency_question(terms.suite, metric, int(statistic.removeprefix("p")), trials, dict.fromkeys(PAIR, unusable))
    [speed] = answers(question, [PAIR], arms)
    rule = parse_rule(f"{terms.score}.mean {terms.scale.sign} {_signed(terms)} vs baseline", [terms.score], {terms.score: terms.scale})
    run, base = (_evidence(each, terms, facts) for each in (compared.new, compared.base))
    suite_rule = SuiteRule(terms.suite, rule, terms.scale, any_part=True, deterministic=terms.deterministic)
    [quality] = judge_rules([suite_rule], run, {terms.suite: base})
    return Confirmation(speed, quality)


def _signed(terms: ConfirmationTerms) -> str:
    return f"{terms.margin if terms.scale.falling else -terms.margin:+g}"


def _evidence(trials: Sequence[Trial], terms: ConfirmationTerms, facts: RunFacts) -> Evidence:
    """Returns the rollouts of one arm as the evidence of a run of the suite."""
    own = [replace(trial, group=terms.suite) for trial in trials]
    scenarios = {terms.suite: len({trial.scenario for trial in own})}
    scales = {terms.suite: {terms.score: terms.scale}}
    return Evidence.of(replace(facts, scenarios=scenarios, scales=scales, quarantined={}, unsupported={}), own)
