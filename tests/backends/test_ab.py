"""The backend of A/B sessions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.ab import Arms
from pytest_agentbench.backends.backend import Backend, Tell
from pytest_agentbench.backends.embedded import Embedded, EmbeddedSpec
from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint, Json


def test_a_note_of_all_arms() -> None:
    """A note that all arms share is printed once. Other notes are joined."""
    notes = ["warm", "warm", "", "cold"]
    specs = [EmbeddedSpec(name=f"b{number}", kind="embedded", note=note) for number, note in enumerate(notes)]

    arms = Arms({spec.name: partial(Embedded, spec) for spec in specs})

    assert "warm; cold" == arms.note


class Server(Backend):
    """A backend that starts at once, with GPUs of these names. Without any (None) it does not start."""

    name, note, thresholds, description = "server", "", {}, {}

    def __init__(self, gpus: list[str] | None) -> None:
        self._gpus = gpus

    @property
    def facts(self) -> Json:
        return {"hardware": {"gpus": self._gpus, "driver": "1"}}

    def start(self, directory: Path) -> Endpoint:
        del directory
        if self._gpus is None:
            raise BackendError("not there")
        return Endpoint("http://127.0.0.1:9/v1", "m")

    def watch(self, tell: Tell) -> str | None:
        del tell
        return None

    def stop(self) -> None:
        """Does nothing."""


@pytest.mark.parametrize(
    ("gpus", "known"),
    [
        ([["H100"], ["H100"]], {"gpus": ["H100"], "driver": "1"}),
        ([[], None, []], {"gpus": [], "driver": "1"}),  # an arm that did not start does not count
        ([["H100"], ["H100", "H100"]], None),
        ([None, None], None),
    ],
)
def test_the_hardware_of_all_arms(gpus: list[list[str] | None], known: Any, tmp_path: Path) -> None:
    """The hardware is known if it was the same for all arms that started."""
    arms = Arms({str(number): partial(Server, each) for number, each in enumerate(gpus)})
    if any(each is not None for each in gpus):
        arms.start(tmp_path)
    arms.stop()

    assert known == arms.facts.get("hardware")
