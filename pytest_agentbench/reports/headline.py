"""The headline of a run: its verdict, and the number that decided it."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_agentbench.gate.exit_status import CANNOT_MEASURE, CANNOT_TELL, EXITS, FAILED, NO_GATE, deciding
from pytest_agentbench.records.rollout import scenario_thresholds
from pytest_agentbench.reports import gate_phrases, phrases
from pytest_agentbench.reports.phrases import NAMED, count, percent
from pytest_agentbench.runs.results import Mean, RuleResult, SuiteResult
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS

COUNTED = (FAILED, CANNOT_MEASURE)  # exit statuses for which the headline has the numbers of tests

#: Status of a rollout -> its verb phrase in a headline.
ENDINGS = {
    "limit": "ended at a limit",
    "agent_error": "ended as agent_error",
    "infra_error": "ended as infra_error",
    "cancelled": "were cancelled",
}

#: Verdict of a session -> verdict of the rules that can have decided it.
DECIDED_BY = {PASS: PASS, FAIL: FAIL, INCONCLUSIVE: INCONCLUSIVE}


def headline(run: Run) -> str:
    """`FAIL, exit status 1: banking tsq.mean 0.412 [0.371, 0.453], required >= 0.8 (suite)`: the result of a run in one line.

    The mean of each suite follows, unless a rule about it is already in the line, and the shares of rollouts that did not end as `ok`.
    """
    status = f", exit status {run.exit_status}" if run.exit_status else ""
    deciders = "; ".join(_deciders(run))
    verdict = f"{run.verdict}{status}" + (f"{':' if status or run.verdict in DECIDED_BY else ','} {deciders}" if deciders else "")
    return "; ".join((verdict, *_notes(run), *_means(run), *_shares(run)))


def deciding_rules(run: Run) -> list[RuleResult]:
    """Returns the rules that decided the verdict of a run, the first of which is in its headline. Empty if the tests decided."""
    gate = deciding(run)
    if gate is None or gate.verdict != DECIDED_BY.get(run.verdict):
        return []
    return [rule for rule in gate.rules if rule.verdict == gate.verdict]


def _deciders(run: Run) -> Iterator[str]:
    """Yields what decided the verdict: the first of the rules, and the tests that did not pass."""
    tests, rules = run.tests, deciding_rules(run)
    if rules:
        yield gate_phrases.measured_and_required(rules[0], _mean_of(run, rules[0])) + (f", {_others(rules)}" if len(rules) > 1 else "")
    total = tests.failed + tests.errors + tests.passed
    if run.exit_status in COUNTED and tests.failed:
        yield f"{tests.failed:,} of {count(total, 'test')} failed"
    unknown = ", so the quality is unknown" if run.exit_status == CANNOT_MEASURE else ""
    if run.exit_status in COUNTED and tests.errors:
        yield f"{tests.errors:,} of {count(total, 'test')} could not be measured{unknown}"
    elif not rules and not tests.failed and (reason := _reason(run, total)):
        yield reason


def _others(rules: list[RuleResult]) -> str:
    return f"and {count(len(rules) - 1, 'more rule')}"


def _mean_of(run: Run, rule: RuleResult) -> Mean | None:
    """Returns the mean that a rule judges without its interval, which readers need nevertheless. None for other rules."""
    suite = run.suites.get(rule.suite)
    return suite.main_mean if suite and rule.estimate is not None and rule.low is None and _is_about_mean(rule, suite) else None


def _is_about_mean(rule: RuleResult, suite: SuiteResult) -> bool:
    return rule.kind == "score" and not rule.vs_baseline and rule.rule.split()[0] == f"{suite.main_score}.mean"


def _reason(run: Run, tests: int) -> str:
    """Returns the reason of a verdict that neither a rule nor a failed test decided."""
    if status := run.exit_status:
        return EXITS[status].text if status in EXITS else "see pytest"
    if run.verdict == INCONCLUSIVE:
        return EXITS[CANNOT_TELL].text
    if run.verdict == PASS and tests:
        return f"{count(tests, 'test')} passed"
    if run.verdict != NO_GATE:
        return ""
    if run.gate:
        return f"the gate does not decide (its verdict is {run.gate.verdict})"
    return "no test applies a threshold" if any(map(_has_scenario_threshold, run.suites.values())) else "no rule or threshold was applied"


def _notes(run: Run) -> Iterator[str]:
    if run.backend.is_recorded:
        yield "answers from a recording, no model was called"
    gate_result = run.gate
    if gate_result and run.verdict not in (gate_result.verdict, NO_GATE):
        yield f"gate {gate_result.verdict}"
    if run.verdict in (PASS, INCONCLUSIVE):
        covered = {each.suite for each in gate_result.rules} if gate_result else set()
        without_rule = [group for group, suite in run.suites.items() if group not in covered and not _has_scenario_threshold(suite)]
        left = len(without_rule) - NAMED
        yield from (f"no rule for {', '.join(without_rule[:NAMED])}{f' and {left} more' if left > 0 else ''}",) if without_rule else ()
    if tries := phrases.earlier_runs(run.earlier):
        yield tries


def _has_scenario_threshold(suite: SuiteResult) -> bool:
    return bool(scenario_thresholds(suite.thresholds))


def _means(run: Run) -> Iterator[str]:
    """Yields the main scores of the first suites, except for one that the deciding rule is about. Yields none for an A/B session."""
    rules = deciding_rules(run)[:1]
    suites = [] if run.ab else [*run.suites.items()]
    for group, suite in suites[:NAMED]:
        if not any(rule.suite == group and rule.estimate is not None and _is_about_mean(rule, suite) for rule in rules):
            yield f"{group} {suite.main_score} {phrases.mean(suite.main_mean)}"
    if left := suites[NAMED:]:
        yield f"and {count(len(left), 'more suite')}"


def _shares(run: Run) -> Iterator[str]:
    """Yields for the headline which share of rollouts ended with each status other than `ok`, and which share was not run."""
    total = sum(sum(suite.rollouts.values()) for suite in run.suites.values())
    for status, words in ENDINGS.items():
        if amount := sum(suite.rollouts.get(status, 0) for suite in run.suites.values()):
            yield f"{_share(amount, total, 'rollout')} {words}"
    if run.plan.not_run:
        planned = run.plan.rollouts
        yield f"{_share(run.plan.not_run, planned, 'planned rollout')} {'were' if planned > 1 else 'was'} not run"


def _share(amount: int, total: int, noun: str) -> str:
    return f"{amount:,} of {count(total, noun)} ({percent(amount / total).replace('.0 %', ' %')})"
