"""The section of the outcome: disturbances of the run, and tests that did not pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_agentbench.records import Rollout
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Level, Listing, Section, Table
from pytest_agentbench.reports.sections.outcome import SHOWN
from pytest_agentbench.runs.run_file import Failure, OutcomeCounts, Run
from tests.findings import facts, part, report, said, values_of
from tests.made_runs import run_of

QUIET = run_of()


def failure(number: int, outcome: str = "failed", message: str = "assert 0.1 >= 0.5", **properties: object) -> Failure:
    return Failure(f"t::test[{number:02}]", "/repository/scenarios/shop/test_shop.py", 7, outcome, message, properties)


def run_with(*tests: Failure) -> Run:
    counts = {name: sum(each.outcome == outcome for each in tests) for name, outcome in (("failed", "failed"), ("errors", "error"))}
    return run_of(tests=OutcomeCounts(failures=tests, **counts))


def test_progress() -> None:
    """Progress and exit status are shown with -v; rollouts that were not run are in the headline, and in a summary."""
    full = report(QUIET, Level.FULL)

    assert ([(QUIET,)], [(QUIET,)]) == (said(full, phrases.progress), said(full, phrases.exit_status))
    assert (3, 2, 1, 0) == (QUIET.plan.rollouts, QUIET.plan.finished, QUIET.plan.not_run, QUIET.exit_status)
    assert [(QUIET,)] == said(report(QUIET, Level.SUMMARY), phrases.not_run)


def test_a_backend_that_failed() -> None:
    """A backend failure has a fact and a listing of its log on the first page. If a test shows the log, it is only in files."""
    failed = run_of(backend=replace(QUIET.backend, failure="the engine died\nlog 1\nlog 2"))
    shown = replace(failed, tests=OutcomeCounts(errors=1))

    [fact] = facts(report(failed, Level.FIRST_PAGE), "backend")
    assert "bad" == fact.tone
    assert [(failed,)] == said(report(failed), phrases.backend_failure)
    assert ["log 1\nlog 2"] == listings(failed, Level.FIRST_PAGE)
    assert ([], ["the engine died\nlog 1\nlog 2"]) == (listings(shown, Level.FULL), listings(shown, Level.VERBOSE))
    assert ([], []) == (said(report(QUIET), phrases.backend_failure), listings(QUIET, Level.VERBOSE))


def listings(run: Run, level: Level) -> list[str]:
    return [each.text for each in report(run, level).blocks() if isinstance(each, Listing)]


def table(section: Section | None) -> list[tuple[Any, ...]]:
    assert section is not None
    [found] = [each for each in section.blocks if isinstance(each, Table)]
    return values_of(found)


def test_failed_tests() -> None:
    """Tests without a score come first, then the lowest scores. At most twenty are listed, and the others are counted."""
    tests = [failure(number, tsq=number / 100) for number in range(SHOWN + 1, 0, -1)]
    run = run_with(*tests, failure(99))
    found = report(run, Level.SUMMARY)

    rows = table(part(found, "Outcome", "Failed tests, the lowest scores first"))
    assert [99, *range(1, SHOWN)] == [int(test[-3:-1]) for test, _ in rows]
    assert [(2,)] == said(found, phrases.more)
    assert [(run,)] == said(report(run, Level.FIRST_PAGE), phrases.tests)
    assert part(report(QUIET), "Outcome", "Failed tests, the lowest scores first") is None


def test_tests_that_could_not_be_measured() -> None:
    """Unmeasured tests have a table for each status of their rollouts."""
    run = run_with(failure(1, "error", status="infra_error"), failure(2, "error", status="ok"), failure(3, "error", status="infra_error"))
    lost, other = (part(report(run, Level.SUMMARY), "Outcome", f"Not measured: {status}") for status in ("infra_error", "error"))

    assert ([1, 3], [2]) == tuple([int(test[-3:-1]) for test, _ in table(each)] for each in (lost, other))


def test_undisturbed_runs() -> None:
    """Only a disturbed run has facts about disturbances."""
    quiet = run_of(Rollout("shop", "s", "default", 1, "ok"))
    disturbed = run_of(losses=("a file is gone",), damaged=("line 3",), backend=replace(QUIET.backend, restarts={"engine": 1}))

    for label, tone in (("lost", "bad"), ("damaged", "open"), ("restarted", "open")):
        assert ([], [tone]) == tuple([fact.tone for fact in facts(report(each), label)] for each in (quiet, disturbed))
    for label in ("resumed", "interrupted", "unmeasured", "window", "tests"):
        assert [] == facts(report(quiet), label)
    assert [(QUIET,)] == said(report(QUIET), phrases.unknown_suites)
