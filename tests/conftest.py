"""Fixtures of the project's own tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.reports.ci import DETECTED
from tests.project import Project

#: Where the slow tests are: whole sessions that are killed, containers, commands of the docs, runs upon runs.
SLOW = (
    "robustness/",
    "containers/",
    "test_docs.py::test_snippets",
    *(f"acceptance/test_{name}.py" for name in ("ab", "bfcl", "diff", "gate", "gate_commands", "import", "rescore", "resume", "stacks")),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` leaves them out, so that it stays short; `make test-slow` runs them."""
    here = Path(__file__).parent
    for item in items:
        if f"{item.path.relative_to(here).as_posix()}::{item.name}".startswith(SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a backend that finds a lamp and then answers; give it suites and run pytest in it.

    Its sessions do not know in which CI these tests run: what they print and write is no result of that job, and pytest cuts its summary.
    """
    for variable in (*DETECTED, "CI", "BUILD_NUMBER"):
        monkeypatch.delenv(variable, raising=False)
    return Project(pytester)
