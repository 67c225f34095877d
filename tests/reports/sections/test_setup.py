"""The section of the setup."""

from __future__ import annotations

from dataclasses import replace

from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.document import Code, Level, Note, plain, spans
from pytest_agentbench.runs.run_file import Imported
from tests.amounts import amounts
from tests.findings import facts, report, said, texts
from tests.made_runs import run_of

RUN = run_of()


def test_facts_by_level() -> None:
    """Files have the backend, command, settings, machine and packages. A summary has the backend and the time."""
    summary, files = report(RUN, Level.SUMMARY), report(RUN, Level.VERBOSE)

    assert [(RUN,)] == said(summary, phrases.backend) == said(files, phrases.backend)
    assert [RUN.finished_at] * 2 == [fact.content for each in (summary, files) for fact in facts(each, "finished")]
    assert [(("pytest", "-q"),)] == said(files, phrases.command)
    assert [(RUN.suites["shop"],)] == said(files, phrases.suite_setup)
    assert ([(RUN.environment,)], [(RUN.environment,)]) == (said(files, phrases.machine), said(files, phrases.packages))
    assert [] == said(summary, phrases.command)


def test_texts_of_facts() -> None:
    """The texts contain backend, model, concurrency, versions and packages, or say that they are unknown."""
    unknown = run_of(settings=replace(RUN.settings, concurrency=None), backend=replace(RUN.backend, served_model=None))
    assert ["embedded", "m"] == [each.text for each in spans(phrases.backend(RUN)) if isinstance(each, Code)]
    assert ["8"] == amounts(phrases.backend(RUN))
    assert ["embedded"] == [each.text for each in spans(phrases.backend(unknown)) if isinstance(each, Code)]
    assert ([], 2) == (amounts(phrases.backend(unknown)), plain(phrases.backend(unknown)).count("unknown"))
    assert all(each in phrases.machine(RUN.environment) for each in ("Python 3.11", "x", "2 CPUs", phrases.commit(None)))
    assert "pytest 9" == phrases.packages(RUN.environment)
    assert "unknown" == phrases.packages(replace(RUN.environment, packages={}))


def test_changed_settings() -> None:
    """Settings changed on the command line are listed, or `none`."""
    changed = run_of(settings=replace(RUN.settings, changes={"agent.seed": 1}))

    assert [({"agent.seed": 1},)] == said(report(changed, Level.VERBOSE), phrases.settings)
    assert [({},)] == said(report(RUN, Level.VERBOSE), phrases.settings)


def test_notes_of_a_backend() -> None:
    """The note and the warnings of a backend are facts."""
    noted = run_of(backend=replace(RUN.backend, note="a baseline", warnings=("another model",)))

    assert "a baseline" in texts(report(noted, Level.FULL))
    [warning] = facts(report(noted, Level.FIRST_PAGE), "model")
    assert "open" == warning.tone
    assert ([], []) == ([text for text in texts(report(RUN, Level.FULL)) if text == "a baseline"], facts(report(RUN), "model"))


def test_sessions_at_boot() -> None:
    """The first page has a warning about test sessions before anything else that may be left out, and otherwise if there is room."""
    rows = []
    for calls in ({"a": 18}, {"a": 9, "b": 9}):
        probe = {"sessions": 6, "stayed": 6, "unknown": 0, "calls": calls, "replicas": 2}
        probed = run_of(backend=replace(RUN.backend, more={"sessions": probe}))
        rows += facts(report(probed, Level.FIRST_PAGE), "sessions at boot")

    warning, good = rows
    assert ("open", "") == (warning.tone, good.tone)
    assert warning.spare < 0 < good.spare
    assert [] == facts(report(RUN, Level.FIRST_PAGE), "sessions at boot")


def test_an_imported_run() -> None:
    """For an imported run, a note says that the machine is not recorded."""
    imported = report(run_of(imported=Imported("Harbor", "jobs/1", "2026-01-01", "", (), {}, ())), Level.VERBOSE)

    assert phrases.UNRECORDED in [each.content for each in imported.blocks() if isinstance(each, Note)]
    assert ([], []) == (said(imported, phrases.machine), said(imported, phrases.packages))
