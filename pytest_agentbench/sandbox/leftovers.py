"""Sandboxes that nobody ends any more: found by their labels, and removed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from pytest_agentbench.sandbox.engine import client, infra, remove
from pytest_agentbench.sandbox.ownership import OWNER, ROLLOUT, RUN, Labels, is_left


def reap() -> list[str]:
    """Removes those whose owner has ended or whose deadline is over; what they were, a sentence each. Raises InfraError."""
    return _remove(is_left)


def end_run(run: str) -> list[str]:
    """The same for those of a run that is over."""
    return _remove(lambda labels: labels.get(RUN) == run)


def _remove(condemned: Callable[[Labels], bool]) -> list[str]:
    removed = []
    with closing(client()) as engine, infra("what sandboxes have left cannot be removed"):
        for container in engine.containers.list(all=True, filters={"label": OWNER}, ignore_removed=True):
            if condemned(container.labels):
                remove(container)
                removed.append(
                    f"sandbox {container.short_id} of {container.labels.get(ROLLOUT)}, run {container.labels.get(RUN) or '(none)'}"
                )
    return removed
