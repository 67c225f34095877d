"""The section `What to look at first`: at most ten lines. Rules that did not pass come first, then the mistakes of each suite."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from pytest_agentbench.metrics.stopwatch import OK
from pytest_agentbench.reports import gate_phrases, phrases, serving_phrases, suite_phrases
from pytest_agentbench.reports.document import Bullets, Finding, Level, Section, plain, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.headline import deciding_rules
from pytest_agentbench.reports.view import RunView, by_function, failed_tests, worst_first
from pytest_agentbench.runs.results import SuiteResult
from pytest_agentbench.runs.run_file import Run

MOST = 10  # lines
MOST_TESTS = 3  # functions of tests that get a line
GREAT = 0.5  # A part of the rollouts' time gets a line if its share is at least this.


def section(view: RunView) -> Section | None:
    """Returns the lines that point to the most important findings."""
    items = tuple(islice((each for each in _findings(view.run) if plain(each.words)), MOST))
    return of("What to look at first", [Bullets(items, level=Level.SUMMARY)])


def _findings(run: Run) -> Iterator[Finding]:
    if run.gate:
        in_headline = deciding_rules(run)[:1]
        others = (rule for rule in worst_first(run.gate.rules) if rule.verdict != "PASS" and rule not in in_headline)
        yield from (say(gate_phrases.result, rule) for rule in others)
    yield from (say(phrases.failures_of_test, tests) for tests in islice(by_function(failed_tests(run)), MOST_TESTS))
    for name, suite in run.suites.items():
        for each in _of_suite(suite):
            yield say(phrases.about_suite, name, each) if len(run.suites) > 1 and plain(each.words) else each
    yield say(serving_phrases.failed_of_all, run.performance)
    if run.stopwatch.verdict != OK:
        yield say(serving_phrases.timing_of_run, run.stopwatch)
    all_failed = run.performance.calls and run.performance.calls == sum(run.performance.failed_calls.values())
    for part, of_time in (run.performance.split or {}).items():
        if of_time.share >= GREAT and not all_failed:
            yield say(serving_phrases.time_of, part, of_time, serving_phrases.is_streamed(run.performance))


def _of_suite(suite: SuiteResult) -> Iterator[Finding]:
    yield say(suite_phrases.ended_badly, suite)
    if (triage := suite.triage) and triage.faulty:
        yield from (say(suite_phrases.faulty, triage), say(suite_phrases.most_confused, triage), say(suite_phrases.worst_tool, triage))
    if suite.tasks and suite.tasks.failures:
        yield from (say(suite_phrases.tasks, suite.tasks), say(suite_phrases.commonest_failure, suite.tasks))
    yield say(suite_phrases.flips, suite.passes)
