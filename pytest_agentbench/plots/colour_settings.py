"""Settings that colours tell apart: of the agent, of the backend, and how many rollouts were in flight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_agentbench.records import Json
from pytest_agentbench.runs.contents import Run
from pytest_agentbench.suites.arms import CONCURRENCY, OF_AGENT, OF_BACKEND

RunSuite = tuple[str, str]  # run, and a suite of it under one variant


def settings_of(runs: Mapping[str, Run]) -> dict[RunSuite, Json]:
    """Each suite of each run -> its settings by their paths, as --agentbench-set has them: `agent.temperature`, `concurrency`."""
    return {(name, group): dict(_settings(run, group)) for name, run in runs.items() for group in run.suites}


def _settings(run: Run, group: str) -> Iterator[tuple[str, Any]]:
    suite, arm = run.suites[group], run.arm_of(group)
    yield CONCURRENCY, run.concurrency_of(group)
    for path, value in _flat(run.backend.described(suite.variant)):
        yield f"{OF_BACKEND}{path}", value
    for path, value in _flat(suite.agent):
        yield f"{OF_AGENT}{path}", value
    for path, value in arm.backend_changes if arm else ():
        yield f"{OF_BACKEND}{path}", value


def _flat(settings: Json, above: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of everything that is no mapping."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, (*above, str(name)))
        else:
            yield ".".join((*above, str(name))), value


def chosen_setting(settings: Mapping[RunSuite, Json], name: str) -> dict[RunSuite, Any] | None:
    """The values of one setting, by its path or without `agent.`; None where no run has it."""
    found = {key: of_suite.get(name, of_suite.get(f"{OF_AGENT}{name}")) for key, of_suite in settings.items()}
    return None if all(value is None for value in found.values()) else found
