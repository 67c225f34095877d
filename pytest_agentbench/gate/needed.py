"""Estimates what an INCONCLUSIVE rule needs: how many more trials or scenarios, and how long they take at the speed of the run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pytest_agentbench.gate.verdict import ENOUGH
from pytest_agentbench.records import MOST_TRIALS
from pytest_agentbench.runs.results import RuleResult
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.stats.decisions import INCONCLUSIVE, POPULATION
from pytest_agentbench.stats.power import trials_that_narrow

MOST_SCENARIOS = 100_000  # scenarios; a suite that needs more is not worth a number


@dataclass(frozen=True)
class Needed:
    """What a rule needs for a verdict, if the value that was measured does not change. At least one of the numbers is not 0."""

    trials: int = 0  # further trials of each scenario
    total: int = 0  # trials of each scenario with these; 0 if no further ones are needed, or if no number is enough
    scenarios: int = 0  # further scenarios
    rollouts: int = 0  # further rollouts: all of these together; 0: no number is enough
    minutes: float | None = None  # duration of these rollouts at the speed of the run; None if the speed is unknown
    baseline: bool = False  # whether the baseline has too few trials, so that no number of trials of the run is enough


def needed(rule: RuleResult, run: Run) -> Needed | None:
    """Returns what an INCONCLUSIVE rule needs, or None if more rollouts would not help or if that is not known."""
    suite = run.suites.get(rule.suite)
    scenarios = len(suite.scenarios) if suite else 0
    if rule.verdict != INCONCLUSIVE or suite is None or not scenarios or run.backend.is_recorded:
        return None
    trials = max(1, suite.trials)
    if missing := _unmeasured_scenarios(rule, scenarios, suite.dataset.size):
        return _with_time(run, Needed(scenarios=missing, rollouts=missing * trials))
    factor = _factor(rule)
    if factor is None:
        return None
    if rule.of == POPULATION:
        more = math.ceil(rule.n * factor - 1e-9) - rule.n
        return _with_time(run, Needed(scenarios=more, rollouts=more * trials if more <= MOST_SCENARIOS else 0))
    base = trials * rule.trials[1] / rule.trials[0] if rule.vs_baseline and rule.trials[0] else 0.0
    total = trials_that_narrow(factor, trials, base)
    if total is None:
        return Needed(trials=MOST_TRIALS, baseline=True)
    more, enough = total - trials, total <= MOST_TRIALS
    return _with_time(run, Needed(trials=more, total=total * enough, rollouts=more * scenarios * enough))


def _unmeasured_scenarios(rule: RuleResult, measured: int, size: int) -> int:
    """Returns how many scenarios a rule about the scores of this run lacks, if only a part of the suite was measured."""
    enough = math.ceil(ENOUGH * size)
    return enough - measured if rule.reason and not rule.vs_baseline and rule.n and measured < enough else 0


def _factor(rule: RuleResult) -> float | None:
    """Returns how many times more information makes the interval so narrow that it no longer contains the threshold."""
    factors = []
    if rule.estimate is not None and rule.low is not None and rule.high is not None and not rule.reason:
        distance = abs(rule.estimate - rule.threshold)
        end = rule.low if rule.estimate > rule.threshold else rule.high
        factors.append((abs(rule.estimate - end) / distance) ** 2 if distance else math.inf)
    if rule.vs_baseline and rule.floor and rule.threshold and abs(rule.threshold) < rule.floor:
        factors.append(rule.floor / abs(rule.threshold))
    factor = max(factors, default=0.0)
    return factor if factor > 1 else None


def _with_time(run: Run, value: Needed) -> Needed:
    per_hour = run.performance.number("rollouts_per_hour")
    return replace(value, minutes=value.rollouts / per_hour * 60 if per_hour and value.rollouts else None)
