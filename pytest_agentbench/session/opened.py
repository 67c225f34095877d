"""The record of a session that runs."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from pytest_agentbench.lib.error_texts import Losses
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.runs.contents import Environment
from pytest_agentbench.runs.sessions import Session
from pytest_agentbench.session.hooks import Hooks
from pytest_agentbench.session.processes import Services
from pytest_agentbench.session.recorder import Ledger
from pytest_agentbench.session.rounds import Rounds
from pytest_agentbench.session.setup import Setup


@dataclass(frozen=True)
class OpenSession:
    """What a session was asked to do, and the parts that do it. The parts change while it runs, the record does not."""

    setup: Setup
    directory: Path  # of the run
    sessions: tuple[Session, ...]  # of the run, this one last
    ledger: Ledger
    services: Services
    rounds: Rounds | None  # None where the number of trials is fixed
    redactor: Redactor
    hooks: Hooks
    losses: Losses
    environment: Future[Environment]  # what this session runs on

    @property
    def number(self) -> int:
        """Which of the run's sessions this is, counted from 1."""
        return self.sessions[-1].number
