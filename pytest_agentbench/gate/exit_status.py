"""Decides the exit status of a session and its verdict, the word for that status. All reports use this verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS, RUN, overall

if TYPE_CHECKING:  # Sessions without suites need an exit status too, but should not import the records of runs
    from pytest_agentbench.runs.results import GateResult
    from pytest_agentbench.runs.run_file import Run

SKIPPED = "SKIPPED"  # status 0: this machine lacks something that the backend needs
IMPORTED = "IMPORTED"  # no exit status: the run was imported from another tool
NO_GATE = "NO GATE"  # status 0: no rule and no threshold was applied, so the scores are only reported

OK, FAILED, INTERRUPTED, INTERNAL_ERROR, USAGE_ERROR, NO_TESTS = range(6)  # defined by pytest
#: Exit statuses that pytest does not have. Its status 1 means a quality regression or any other test failure.
CANNOT_MEASURE, CANNOT_TELL = 6, 7


class Exit(NamedTuple):
    """The meaning of an exit status."""

    verdict: str
    text: str  # for headlines
    about: str  # one sentence for the documentation
    advice: str = ""  # what to do about it, for the documentation


#: Exit status -> its meaning.
EXITS = {
    OK: Exit(PASS, "all well", "Everything passed."),
    FAILED: Exit(
        FAIL,
        "a test or the gate failed",
        "The quality is worse than required: a test, a threshold or a gate rule failed. One such failure is enough, even if much could not "
        "be measured.",
        "Find the cause. Repeating the session until it passes hides the failure.",
    ),
    INTERRUPTED: Exit(
        "INTERRUPTED",
        "interrupted, or a file cannot be collected",
        "The session was interrupted, or a test file could not be collected.",
        "Resume the run, or correct the file.",
    ),
    INTERNAL_ERROR: Exit(
        "INTERNAL ERROR",
        "pytest, a plugin or a report failed",
        "An error in pytest, in a plugin, or while a report was written.",
        "Read the error at the end of the session.",
    ),
    USAGE_ERROR: Exit(
        "USAGE ERROR",
        "a wrong option or suite",
        "An option is wrong, the backend is unknown, or there is a mistake in a suite's `suite.yaml`, data or code.",
        "The message names the file or the option and what would be right.",
    ),
    NO_TESTS: Exit("NO TESTS", "no test was selected", "No test was selected.", "Correct the filter: it matches nothing."),
    CANNOT_MEASURE: Exit(
        "NOT MEASURED",
        "what failed could not be measured, so the quality is unknown",
        "All failures are failures to measure: the backend failed, rollouts are lost or `infra_error`, a scorer failed, or a worker died.",
        "Resume the run, or run it once more.",
    ),
    CANNOT_TELL: Exit(
        INCONCLUSIVE,
        "the gate cannot tell",
        "The gate has too few data for a verdict, and `--agentbench-inconclusive=fail` is set.",
        "Use more trials, or decide yourself.",
    ),
}

#: Verdict of a session with status 0 that is not PASS -> its meaning.
WITHOUT_FAILURE = {
    INCONCLUSIVE: Exit(INCONCLUSIVE, "", "Nothing failed, but the gate has too few data for a verdict.", "Use more trials."),
    NO_GATE: Exit(
        NO_GATE,
        "",
        "Nothing failed, but no rule and no threshold was applied: scores are reported, and not judged.",
        "Add a rule or a threshold to the suite.",
    ),
    SKIPPED: Exit(
        SKIPPED,
        "",
        "This machine lacks something that the backend needs, and the backend was not named on the command line.",
        "`agentbench doctor` says what is missing.",
    ),
}

#: All verdicts that a run can have.
VERDICTS = (*(each.verdict for each in EXITS.values()), NO_GATE, SKIPPED, IMPORTED)


class SessionEnd(NamedTuple):
    """The facts that decide the exit status, collected after the tests of a session."""

    status: int  # pytest's exit status
    only_unmeasured: bool  # whether all failed tests had nothing to judge, or were not collected because of an unusable suite
    failure: bool  # whether the backend, the tap or the pool failed, or nothing was measured of a suite that has thresholds
    gate: GateResult | None  # result of the gate, if it counts for the exit status
    mistake: bool = False  # whether a suite cannot be used


def deciding(run: Run) -> GateResult | None:
    """Returns the part of a gate result that counts for the exit status, or None.

    If the tests decide instead of the gate, only rules about this run itself count, such as `tsq.mean: 0.8`.
    """
    gate = run.gate
    if gate is None or gate.decides:
        return gate
    facts = tuple(rule for rule in gate.rules if rule.of == RUN)
    return replace(gate, verdict=overall(rule.verdict for rule in facts), rules=facts) if facts else None


def exit_status(ending: SessionEnd, inconclusive: str) -> int:
    """Returns the exit status of a session: 1 regression, 4 unusable suite, 6 not measured, 7 inconclusive, else pytest's.

    Status 7 is only used if `inconclusive` is `fail`. Interrupted sessions, internal errors and usage errors keep pytest's status.
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
    """Returns the exit status of a session that had an error while it was shut down. It is never a success."""
    return INTERNAL_ERROR if status in (OK, NO_TESTS) else status


def verdict(status: int, gate: GateResult | None, *, missing: bool, thresholds: bool) -> str:
    """Returns the verdict, which is a word for an exit status. Status 0 has several words, depending on the other arguments.

    Args:
        status: The exit status of the session.
        gate: The result of the gate, if it counts for the exit status.
        missing: Whether this machine lacks something that the backend needs.
        thresholds: Whether a test has compared a rollout with thresholds of its suite that hold for each scenario, such as `tsq: 0.5`.
    """
    if status == OK and missing:
        return SKIPPED
    if status == OK and gate and gate.verdict == INCONCLUSIVE:
        return INCONCLUSIVE
    if status == OK and not gate and not thresholds:
        return NO_GATE
    return EXITS[status].verdict if status in EXITS else FAIL
