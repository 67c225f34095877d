"""The backend of a session: the one under test, or that of each arm under one roof."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_agentbench.suites.arms import BACKEND

if TYPE_CHECKING:
    from pytest_agentbench.backends.backend import Backend
    from pytest_agentbench.session.settings import Settings


def make_backend(config: pytest.Config, settings: Settings) -> Backend:
    """What the first hook that knows it makes; raises ConfigError for what none of them knows."""

    def make(name: str, changes: Sequence[tuple[str, Any]] = ()) -> Backend:
        changes = (*settings.backend_changes, *changes)
        backend: Backend = config.hook.pytest_agentbench_make_backend(config=config, name=name, changes=changes)
        return backend

    arms = {arm.name: functools.partial(make, arm.value) for arm in settings.ab if arm.kind == BACKEND}
    arms |= {arm.name: functools.partial(make, settings.backend, arm.backend_changes) for arm in settings.ab if arm.backend_changes}
    if not arms:
        return make(settings.backend)
    from pytest_agentbench.backends.ab import Arms

    return Arms(arms)
