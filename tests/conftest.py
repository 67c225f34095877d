"""Fixtures of the project's own tests."""

from __future__ import annotations

import pytest

from tests.project import Project


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    """A project with a backend that finds a lamp and then answers; give it suites and run pytest in it."""
    return Project(pytester)
