"""The section of the setup: everything that is needed to repeat a run."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_agentbench.backends.session_probe import SessionProbe
from pytest_agentbench.records import Json
from pytest_agentbench.reports import phrases, routing_phrases
from pytest_agentbench.reports.document import AnyBlock, Code, Fact, Level, Note, Section, Tone, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.run_file import BackendUse, Run


def section(view: RunView) -> Section | None:
    """Returns backend, command, settings of the suites, machine and packages."""
    return of("Setup", _blocks(view.run))


def session_probes(backend: BackendUse) -> Iterator[tuple[str, SessionProbe]]:
    """Yields where the calls of the test sessions were answered that a boot made, for each arm. The arm is empty without arms."""
    arms: dict[str, Json] = backend.more.get("arms") or {"": {"boot": backend.boot and backend.boot.more, **backend.more}}
    for arm, facts in arms.items():
        if probe := facts.get("sessions") or (facts.get("boot") or {}).get("sessions"):
            yield arm, SessionProbe(**probe)


def _blocks(run: Run) -> Iterator[AnyBlock]:
    verbose, backend = Level.VERBOSE, run.backend
    yield Fact("backend", say(phrases.backend, run), level=Level.SUMMARY)
    yield Fact("", backend.note)
    yield Fact("run", Code(run.id), level=Level.SUMMARY, until=Level.SUMMARY)
    yield Fact("finished", run.finished_at, level=Level.SUMMARY)
    yield from (Fact("model", each, "open", level=Level.FIRST_PAGE) for each in backend.warnings)
    yield Fact("stack", say(phrases.boot, backend))
    if probes := dict(session_probes(backend)):
        is_good = all(probe.is_good for probe in probes.values())
        tone: Tone = "" if is_good else "open"
        sentence = say(routing_phrases.sessions_at_boot, probes)
        yield Fact("sessions at boot", sentence, tone, level=Level.FIRST_PAGE, spare=5 if is_good else -1)
        yield from (Fact("", f"{arm}: {probe.text()}") for arm, probe in probes.items() if arm)
    yield Fact("command", say(phrases.command, run.command), level=verbose)
    yield from (Fact(name, say(phrases.suite_setup, suite), level=verbose) for name, suite in run.suites.items())
    yield Fact("changed for this run", say(phrases.settings, run.settings.changes), level=verbose)
    if run.imported:
        yield Note(phrases.UNRECORDED, level=verbose)
    else:
        yield Fact("machine", say(phrases.machine, run.environment), level=verbose)
        yield Fact("packages", say(phrases.packages, run.environment), level=verbose)
    yield Note(phrases.DERIVED, level=verbose)
