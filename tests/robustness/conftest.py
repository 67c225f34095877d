"""Fixtures for tests of failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.project import Project
from tests.robustness.processes import Background


@pytest.fixture
def start(project: Project) -> Iterator[Callable[..., Background]]:
    """Starts pytest in the background with these arguments. Processes that are left at the end of the test are killed."""
    started: list[Background] = []

    def start(*arguments: str) -> Background:
        started.append(Background(project, *arguments))
        return started[-1]

    yield start
    for background in started:
        background.clean_up()
