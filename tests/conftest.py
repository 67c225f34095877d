"""Fixtures of the project's own tests."""

from __future__ import annotations

import pytest

from pytest_agentbench.reports.ci import DETECTED
from tests.project import Project


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a backend that finds a lamp and then answers; give it suites and run pytest in it.

    Its sessions do not know in which CI these tests run: what they print and write is no result of that job.
    """
    for variable in DETECTED:
        monkeypatch.delenv(variable, raising=False)
    return Project(pytester)
