"""Sandboxes that nobody ends any more: found by their labels, and removed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from pytest_agentbench.errors import InfraError
from pytest_agentbench.sandbox.engine import client, infra, remove
from pytest_agentbench.sandbox.ownership import OWNER, ROLLOUT, RUN, DockerLabels, is_left


def reap() -> list[str]:
    """Removes those whose owner has ended or whose deadline is over; what they were, a sentence each, none where no engine answers.

    Raises InfraError where an engine answers and some cannot be found or removed; the others are removed all the same.
    """
    return _remove(is_left)


def end_run(run: str) -> list[str]:
    """The same for those of a run that is over."""
    return _remove(lambda labels: labels.get(RUN) == run)


def _remove(condemned: Callable[[DockerLabels], bool]) -> list[str]:
    try:
        engine = client()
    except InfraError:
        return []  # where no engine answers there is no sandbox of ours
    removed, faults = [], []
    with closing(engine), infra("what sandboxes have left cannot be found"):
        for container in engine.containers.list(all=True, filters={"label": OWNER}, ignore_removed=True):
            if condemned(container.labels):
                what = f"sandbox {container.short_id} of {container.labels.get(ROLLOUT)}, run {container.labels.get(RUN) or '(none)'}"
                try:
                    with infra(f"{what} cannot be removed"):
                        remove(container)
                    removed.append(what)
                except InfraError as error:
                    faults.append(str(error))
    if faults:
        raise InfraError("; ".join([*faults, *(f"{what} is removed" for what in removed)]))
    return removed
