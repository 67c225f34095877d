"""The hooks that other plugins can implement. They run in the controller: put them in the root conftest.py or in an installed plugin."""

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
    """Returns the backend for the value of --agentbench-backend, or None to leave it to other plugins. The built-in hook comes last.

    Args:
        config: The configuration of the session.
        name: The value of the option.
        changes: Changes to the backend's YAML from --agentbench-set and --agentbench-ab: (dotted path, value).
    """


@pytest.hookspec
def pytest_agentbench_rollout_finished(rollout: Rollout) -> None:
    """Called after a rollout was written to the journal. Runs in a thread of the controller, so keep it short."""


@pytest.hookspec
def pytest_agentbench_update_environment(environment: dict[str, Any]) -> None:
    """Changes the environment that run.json records, for example to add facts that identify your stack."""


@pytest.hookspec(firstresult=True)
def pytest_agentbench_redact(text: str) -> str | None:
    """Returns the text of a record without the parts that must not be written. Called after the built-in redaction.

    The text is a line of JSON, and the result has to be one, too. Tests read the redacted record.
    """


@pytest.hookspec
def pytest_agentbench_report(run: Run, directory: Path) -> Path | None:
    """Writes an additional report into the run directory and returns its path. Called after run.json and report.md were written.

    `run` has the content of run.json as frozen records, whose attributes are the keys.
    """
