"""The start of a session that runs: a run directory of its own, or one that an earlier session left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_agentbench.runs.directory import new_directory
from pytest_agentbench.runs.prompt_hashes import prompt_hashes
from pytest_agentbench.runs.resume import find_resumable, take_up
from pytest_agentbench.runs.sessions import Session, append_session, folder_of, read_sessions
from pytest_agentbench.session.recorder import Ledger
from pytest_agentbench.suites.hashes import Contents, digest, suite_identity

if TYPE_CHECKING:
    from pytest_agentbench.session.controller import Controller


class Opened(NamedTuple):
    """A run that a session may write to."""

    directory: Path
    ledger: Ledger
    sessions: list[Session]  # of the run, this one last


def open_run(controller: Controller) -> Opened:
    """Raises ConfigError for a run that cannot be gone on with, and OSError where nothing can be written."""
    settings = controller.settings
    old = find_resumable(settings.resume, settings.reports) if settings.resume else None
    directory = old or new_directory(settings.reports, controller.started_at)
    ledger = Ledger(directory, controller.redacted, controller.tell_hooks)
    suites = {found.suite.name: found.suite for found in controller.found if found.suite}
    identities = {name: suite_identity(suite, prompt_hashes) for name, suite in suites.items()}
    earlier, number = read_sessions(directory), 1
    if old is not None:
        contents = Contents(suites, digest(controller.identity), prompt_hashes)
        ledger.stored = take_up(ledger.journal, contents, identities, controller.identity, earlier, settings.resume_rerun)
        recorded = [each.session for each in ledger.journal.index.entries.values()]  # the line of a session may be damaged
        number += max([*(each.number for each in earlier), *recorded], default=1)
    folder_of(directory, number).mkdir(exist_ok=True)
    started_at = controller.started_at.isoformat(timespec="seconds")
    now = Session(number, started_at, controller.command, controller.concurrency, controller.identity, identities)
    append_session(directory, now, controller.redacted)
    return Opened(directory, ledger, [*earlier, now])
