"""Block switches with a backend that has no arms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pytest_agentbench import Backend, Endpoint, Sources, Target, Tell
from pytest_agentbench.rollouts.protocol import Turn
from pytest_agentbench.runs.results import ArmFacts
from pytest_agentbench.session.arm_switcher import ArmSwitcher
from pytest_agentbench.suites.arms import CARRY

ENDPOINT = Endpoint("http://127.0.0.1:8000/v1", "m", "lab")


class LabMachine(Backend):
    """A backend from a hook: it has the members that docs/reference/hooks.md requires, and no arms."""

    def __init__(self) -> None:
        self.name, self.note = "lab", ""
        self.thresholds: Mapping[str, Mapping[str, float]] = {}
        self.description = {"name": "lab", "kind": "lab"}

    def start(self, directory: Path) -> Endpoint:
        del directory
        return ENDPOINT

    def metrics(self) -> Sources:
        return Sources((Target("engine", 0, "http://127.0.0.1:8000/metrics"),))

    def watch(self, tell: Tell) -> str | None:
        del tell
        return None

    def stop(self) -> None:
        """Does nothing, because nothing was started."""


def test_a_backend_that_knows_of_no_arms() -> None:
    """A backend without arms keeps its endpoint, has the same metrics for every arm, and can fail only as a whole."""
    backend = LabMachine()
    turns = ArmSwitcher(backend, CARRY)

    told, swapped = turns.begin(ENDPOINT, "", 3)

    assert (Turn(ENDPOINT, salt=""), False) == (told, swapped)
    assert backend.metrics() == backend.sources("any")
    assert ((), {}, False) == (backend.unused("any"), backend.failures, backend.in_sequence)
    assert ArmFacts("the machine is gone") == turns.facts("the machine is gone")
