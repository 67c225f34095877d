"""The section of the outcome: failures and interruptions, progress, and the tests that failed or could not be measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_agentbench.reports import phrases, serving_phrases
from pytest_agentbench.reports.document import AnyBlock, Code, Fact, Level, Listing, Note, Section, Table, heads, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.headline import COUNTED
from pytest_agentbench.reports.view import RunView, failed_tests, unmeasured
from pytest_agentbench.runs.journal import summarize_damage
from pytest_agentbench.runs.run_file import Failure, Run

SHOWN = 20  # tests in a table


def section(view: RunView) -> Section | None:
    """Returns failures, interruptions, failures at the end of the session, progress, and the tests that did not pass."""
    run = view.run
    return of("Outcome", [*_trouble(run), *_progress(run), *_tests(run)])


def _trouble(run: Run) -> Iterator[AnyBlock]:
    first, performance = Level.FIRST_PAGE, run.performance
    if failure := run.backend.failure:
        yield Fact("backend", say(phrases.backend_failure, run), "bad", level=first)
        if run.tests.errors:
            yield Listing(failure, level=Level.VERBOSE)
        elif log := failure.partition("\n")[2]:
            yield Listing(log, level=first, spare=1)
    yield Fact("tests", say(phrases.tests, run), "bad", level=Level.SUMMARY if run.exit_status in COUNTED else first)
    yield Fact("resumed", say(phrases.sessions, run), level=first)
    yield from (Fact("damaged", each, "open", level=first) for each in summarize_damage(run.damaged))
    yield Fact("interrupted", say(phrases.interruptions, run), "open", level=first)
    yield Fact("restarted", say(phrases.restarts, run.backend), "open", level=first)
    yield Fact("unmeasured", say(phrases.unknown_suites, run), "bad", level=first)
    if (window := performance.window) and not window.seconds:
        yield Fact("window", say(serving_phrases.chosen_window, window), "open", level=first)
    yield Fact("not run", say(phrases.not_run, run), "open", level=Level.SUMMARY)
    yield from (Fact("lost", each, "bad", level=Level.SUMMARY) for each in run.losses)


def _progress(run: Run) -> Iterator[AnyBlock]:
    yield Fact("rollouts", say(phrases.progress, run))
    yield Fact("pytest", say(phrases.exit_status, run))
    if len(run.sessions) > 1:
        yield Note(phrases.SESSION_RATES, level=Level.VERBOSE)


def _tests(run: Run) -> Iterator[AnyBlock | Section | None]:
    yield of("Failed tests, the lowest scores first", _table(failed_tests(run)))
    for status, tests in unmeasured(run).items():
        yield of(f"Not measured: {status}", _table(tests))


def _table(tests: Sequence[Failure]) -> Iterator[AnyBlock]:
    rows = tuple((Code(each.id), Code(phrases.joined_lines(each.message))) for each in tests[:SHOWN])
    yield Table(heads("test", "message"), rows, level=Level.SUMMARY)
    yield Note(say(phrases.more, len(tests) - SHOWN), level=Level.SUMMARY)
