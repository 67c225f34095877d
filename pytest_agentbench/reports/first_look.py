"""What to look at first: at most ten lines at the top of report.md, what decides first, then what is most frequent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from pytest_agentbench.metrics.stopwatch import OK
from pytest_agentbench.reports.gates import result_text, worst_first
from pytest_agentbench.reports.markup import code, prose
from pytest_agentbench.reports.tasks import failure_text, tasks_text
from pytest_agentbench.reports.triage import confusion_text, faulty_text, flips, kinds_text, tool_text
from pytest_agentbench.reports.words import PARTS, percent, statuses_text, stopwatch_text
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.runs.results import SuiteResult

MOST = 10  # lines
FLIPS = 3  # scenarios that a line names
GREAT = 0.5  # a share of the rollouts' time that is worth a line


class Notation(NamedTuple):
    """How words of others are written in a format."""

    prose: Callable[[str], str]  # a sentence with names of others in it
    code: Callable[[str], str]  # a name


MARKDOWN = Notation(prose, code)


def lines(run: Run, writing: Notation = MARKDOWN) -> list[str]:
    """The lines in a format, each a sentence without its full stop."""
    return [*islice(_lines(run, writing), MOST)]


def _lines(run: Run, writing: Notation) -> Iterator[str]:
    if run.gate:
        yield from (writing.prose(result_text(rule)) for rule in worst_first(run.gate.rules) if rule.verdict != "PASS")
    for name, suite in run.suites.items():
        about = f"{writing.prose(name)}: " if len(run.suites) > 1 else ""
        yield from (f"{about}{line}" for line in _of_suite(suite, writing))
    if failed := sum(run.performance.failed_calls.values()):
        yield f"{failed} of {run.performance.calls} LLM calls failed"
    if run.stopwatch.verdict != OK:
        yield f"timings: {writing.prose(stopwatch_text(run.stopwatch))}"
    for part, of_time in (run.performance.split or {}).items():
        if of_time.share >= GREAT:
            yield f"{percent(of_time.share)} of the rollouts' time went to {PARTS[part]}"


def _of_suite(suite: SuiteResult, writing: Notation) -> Iterator[str]:
    if unmeasured := {status: count for status, count in suite.rollouts.items() if status != "ok" and count}:
        yield f"not all rollouts ended well: {statuses_text(unmeasured)}"
    if (triage := suite.triage) and triage.faulty:
        yield f"{faulty_text(triage)}: {kinds_text(triage)}"
        if triage.confused:
            yield f"most confused: {confusion_text(triage.confused[0], writing.code)}"
        if triage.tools:
            yield f"the tool with the most mistakes: {tool_text(triage.tools[0], writing.code)}"
    if suite.tasks and suite.tasks.failures:
        yield tasks_text(suite.tasks)
        yield f"the most frequent way to fail: {writing.prose(failure_text(suite.tasks.failures[0]))}"
    if mixed := flips(suite.passes):
        some = f"{', '.join(map(writing.code, mixed[:FLIPS]))}{' and others' * (len(mixed) > FLIPS)}"
        yield f"trials of {len(mixed)} scenario{'s' * (len(mixed) > 1)} do not agree whether it passes: {some}"
