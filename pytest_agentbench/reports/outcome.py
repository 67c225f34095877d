"""What CI has to know of a run first: its verdict, what a gate says, which tests failed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from pytest_agentbench.gate.exit_status import EXITS
from pytest_agentbench.reports.gates import claims_of, worst_first
from pytest_agentbench.reports.words import mean_text, score_of
from pytest_agentbench.runs.contents import Failure, Run
from pytest_agentbench.runs.verdicts import EarlierRuns, RuleResult
from pytest_agentbench.stats.multiple import Suspect


class RuleOutcome(NamedTuple):
    """A rule of the gate, and what became of it."""

    suite: str
    text: str
    verdict: str  # PASS | FAIL | INCONCLUSIVE
    found: str  # the number, its interval, why


def headline(run: Run) -> str:
    """`FAIL, exit status 1: a test or the gate failed; gate PASS`: the verdict, and the gate's where that is another one.

    With it how often this was tried before, where not every try passed: of many tries one passes by luck.
    """
    status, gate = run.exit_status, run.gate
    why = f", exit status {status}: {EXITS[status].text if status in EXITS else 'see pytest'}" if status else ""
    other = f"; gate {gate.verdict}" if gate and gate.verdict != run.verdict else ""
    return f"{run.verdict}{why}{other}{tries_text(run.earlier)}"


def tries_text(earlier: EarlierRuns | None) -> str:
    """`; the 3rd run of this setup, 2 before it were not PASS`; empty where there is nothing to tell."""
    if not earlier or not earlier.not_passed:
        return ""
    number, failed = earlier.runs + 1, len(earlier.not_passed)
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"; the {number}{ending} run of this setup, {failed} before it {'were' if failed > 1 else 'was'} not PASS"


def means(run: Run) -> Iterator[str]:
    """`banking tsq 0.612 [0.571, 0.653]`: the first score of each suite."""
    for name, suite in run.suites.items():
        yield f"{name} {suite.main_score} {mean_text(suite.main_mean)}"


def rules(run: Run) -> list[RuleOutcome]:
    """The worst first: what failed, what is open, what holds."""
    return [*map(_told, worst_first(run.gate.rules if run.gate else ()))]


def _told(rule: RuleResult) -> RuleOutcome:
    interval = "" if rule.low is None or rule.high is None else f" [{rule.low:.4g}, {rule.high:.4g}]"
    found = "; ".join(filter(None, (f"{_value(rule.estimate)}{interval}", rule.reason)))
    return RuleOutcome(rule.suite, rule.rule, rule.verdict, found)


def _value(value: float | None) -> str:
    return "nothing measured" if value is None else f"{value:.4g}"


def suspects(run: Run) -> list[tuple[str, Suspect]]:
    """(suite and score, scenario that got worse since the baseline), the surest first; equal ones by name. One in ten did by chance."""
    rules = run.gate.rules if run.gate else ()
    found = [(f"{rule.suite} {score_of(rule)}", each) for rule in rules for each in claims_of(rule)]
    return sorted(found, key=lambda each: (each[1].p, each[0], each[1].scenario))


def failed_tests(run: Run) -> list[Failure]:
    """Tests that failed: those without a score first, then the worst score first; equal ones by id."""
    mains = {suite.main_score: suite.scales[suite.main_score] for suite in run.suites.values()}
    failed = [each for each in run.tests.failures if each.outcome == "failed"]

    def place(test: Failure) -> tuple[float, str]:
        losses = (mains[name].loss(value) for name, value in test.properties.items() if name in mains)
        return -max(losses, default=math.inf), test.id

    return sorted(failed, key=place)


def unmeasured(run: Run) -> dict[str, list[Failure]]:
    """Tests that are errors, by the status of their rollout: `infra_error`, `cancelled`, or `error` where there is none."""
    groups: dict[str, list[Failure]] = {}
    for each in run.tests.failures:
        if each.outcome == "error":
            status = each.properties.get("status")
            groups.setdefault(status if status in ("infra_error", "cancelled") else "error", []).append(each)
    return groups
