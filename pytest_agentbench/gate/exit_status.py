"""How a session ends: its exit status, and its verdict, which is the word for that status. Whatever reports say follows from here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS, RUN, overall

if TYPE_CHECKING:  # a session without suites, which has an exit status too, does without the records of runs
    from pytest_agentbench.runs.results import GateResult
    from pytest_agentbench.runs.run_file import Run

SKIPPED = "SKIPPED"  # status 0, for this machine lacks what the backend needs
IMPORTED = "IMPORTED"  # no session of ours, and so no status
NO_GATE = "NO GATE"  # status 0, and neither a rule nor a threshold was applied: the scores are only reported

OK, FAILED, INTERRUPTED, INTERNAL_ERROR, USAGE_ERROR, NO_TESTS = range(6)  # pytest's own
#: Exit statuses beside pytest's own; 1 is a quality regression, and whatever else fails a test.
CANNOT_MEASURE, CANNOT_TELL = 6, 7


class Exit(NamedTuple):
    """What an exit status says."""

    verdict: str
    text: str


#: Exit status -> what it says. docs/ci.md has what to do about each.
EXITS = {
    OK: Exit(PASS, "all well"),
    FAILED: Exit(FAIL, "a test or the gate failed"),
    INTERRUPTED: Exit("INTERRUPTED", "interrupted, or a file cannot be collected"),
    INTERNAL_ERROR: Exit("INTERNAL ERROR", "pytest, a plugin or a report failed"),
    USAGE_ERROR: Exit("USAGE ERROR", "a wrong option or suite"),
    NO_TESTS: Exit("NO TESTS", "no test was selected"),
    CANNOT_MEASURE: Exit("NOT MEASURED", "what failed could not be measured, so it says nothing of quality"),
    CANNOT_TELL: Exit(INCONCLUSIVE, "the gate cannot tell"),
}

#: Every verdict of a run.
VERDICTS = (*(each.verdict for each in EXITS.values()), NO_GATE, SKIPPED, IMPORTED)


class SessionEnd(NamedTuple):
    """What is known when the tests of a session are over."""

    status: int  # pytest's
    only_unmeasured: bool  # no test failed but those that had nothing to judge, and those that a wrong suite kept from being collected
    failure: bool  # the backend, the tap or the pool failed, or nothing was measured of a suite that has thresholds
    gate: GateResult | None  # of a gate that decides
    mistake: bool = False  # a suite cannot be used


def deciding(run: Run) -> GateResult | None:
    """What a gate says that has a say in the exit status: where the tests decide, what is a fact about this run, as `tsq.mean: 0.8`."""
    gate = run.gate
    if gate is None or gate.decides:
        return gate
    facts = tuple(rule for rule in gate.rules if rule.of == RUN)
    return replace(gate, verdict=overall(rule.verdict for rule in facts), rules=facts) if facts else None


def exit_status(ending: SessionEnd, inconclusive: str) -> int:
    """The exit status of a session: 1 a regression, 4 a wrong suite, 6 not measured, 7 not told (`inconclusive` is `fail`), else pytest's.

    Sessions that pytest or its user has broken off keep their status.
    """
    status, gate = ending.status, ending.gate
    if status not in (OK, FAILED, NO_TESTS):
        return status
    if (gate and gate.verdict == FAIL) or (status == FAILED and not ending.only_unmeasured):
        return FAILED
    if ending.mistake:
        return USAGE_ERROR
    if ending.failure or status == FAILED or (gate and gate.unmeasured):
        return CANNOT_MEASURE
    return CANNOT_TELL if gate and gate.verdict == INCONCLUSIVE and inconclusive == "fail" else status


def with_shutdown_errors(status: int) -> int:
    """The same where something could not be done at the end: never green."""
    return INTERNAL_ERROR if status in (OK, NO_TESTS) else status


def verdict(status: int, gate: GateResult | None, *, missing: bool, thresholds: bool) -> str:
    """Returns the word for an exit status. Only status 0 has several.

    Args:
        status: The exit status of the session.
        gate: The result of the gate, if it has a say in the exit status.
        missing: Whether this machine lacks something that the backend needs.
        thresholds: Whether a test that reads thresholds has judged a rollout of a suite that has a threshold for each scenario.
    """
    if status == OK and missing:
        return SKIPPED
    if status == OK and gate and gate.verdict == INCONCLUSIVE:
        return INCONCLUSIVE
    if status == OK and not gate and not thresholds:
        return NO_GATE
    return EXITS[status].verdict if status in EXITS else FAIL
