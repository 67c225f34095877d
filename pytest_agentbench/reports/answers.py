"""How often a suite's answers are right, and whether they know it, in words."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_agentbench.runs.results import SuiteResult


def lines(suite: SuiteResult) -> Iterator[tuple[str, str]]:
    """(`accuracy`, a line) and (`calibration`, a line) of each score that is about answers."""
    several = len(suite.answers) > 1
    for score, each in suite.answers.items():
        of = f"{score} " if several else ""
        low, high = each.accuracy_low, each.accuracy_high
        unjudged = suite.score_errors.get(score, 0)
        left = f"; {unjudged} without a score, for the scorer or its judge failed" if unjudged else ""
        by = f"{each.questions} questions, {each.judged} of {each.answers} answers by the judge{left}"
        yield "accuracy", f"{of}{each.accuracy:.3f} [{low:.3f}, {high:.3f}], 95 % interval by Wilson; {by}"
        if each.calibration_error is None or each.confidence is None:
            yield "calibration", f"{of}unknown: no answer says how sure it is"
            continue
        between = "" if each.calibration_low is None else f" [{each.calibration_low:.3f}, {each.calibration_high:.3f}]"
        sure = f"{each.confident} answers that are {each.confidence:.3f} sure in the mean, {each.bins} bin{'s' * (each.bins > 1)}"
        yield "calibration", f"{of}RMS error {each.calibration_error:.3f}{between} of {sure}"
