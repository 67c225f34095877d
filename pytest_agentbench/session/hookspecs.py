"""The extension points. They run in the controller: put them in the root conftest.py or in an installed plugin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_agentbench.backends.backend import Backend
    from pytest_agentbench.records import Rollout
    from pytest_agentbench.runs.run_file import Run


@pytest.hookspec(firstresult=True)
def pytest_agentbench_make_backend(config: pytest.Config, name: str, changes: Sequence[tuple[str, Any]]) -> Backend | None:
    """Returns the backend for what --agentbench-backend says, or None to leave it to others; the built-in one comes last.

    `changes` are what --agentbench-set and --agentbench-ab change of its YAML: (dotted path, value).
    """


@pytest.hookspec
def pytest_agentbench_rollout_finished(rollout: Rollout) -> None:
    """A rollout is in the journal. Called in a thread of the controller, so keep it short."""


@pytest.hookspec
def pytest_agentbench_update_environment(environment: dict[str, Any]) -> None:
    """Change the environment that run.json records: add what identifies your stack."""


@pytest.hookspec(firstresult=True)
def pytest_agentbench_redact(text: str) -> str | None:
    """Returns the text of a record without what must not be written; called after the built-in redaction."""


@pytest.hookspec
def pytest_agentbench_report(run: Run, directory: Path) -> Path | None:
    """Writes a report of one's own into the run directory and returns its path."""
