"""The backend of A/B sessions."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.ab import Arms
from pytest_agentbench.backends.backend import Backend, Tell
from pytest_agentbench.backends.embedded import Embedded, EmbeddedSpec
from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint, Json
from tests.waits import wait_for


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


def test_each_arm_knows_the_metrics_of_the_run(tmp_path: Path) -> None:
    """Each arm gets the address of the run's metrics before it starts, for example for its Prometheus."""
    arms = Arms({"a": partial(Server, []), "b": partial(Server, [])})
    arms.run_metrics = "127.0.0.1:9464"
    arms.start(tmp_path)
    arms.stop()

    assert ["127.0.0.1:9464"] * 2 == [each.run_metrics for each in arms.backends.values()]


class SlowStack(Server):
    """A backend that boots until `go` is set, and notes how many of its class boot at the same time."""

    waits = True
    lock = threading.Lock()

    def __init__(self, booting: list[int], go: threading.Event) -> None:
        super().__init__([])
        self._booting, self._go = booting, go

    def start(self, directory: Path) -> Endpoint:
        with self.lock:
            self._booting.append(self._booting[-1] + 1)
        self._go.wait(30)
        with self.lock:
            self._booting.append(self._booting[-1] - 1)
        return super().start(directory)


@pytest.mark.parametrize("at_once", [1, 3])
def test_few_stacks_boot_at_once(tmp_path: Path, at_once: int) -> None:
    """Of twelve stacks, no more boot at the same time than `at_once`, and in the end all are up. A server that runs waits for none."""
    booting, go = [0], threading.Event()
    arms = Arms({"running": partial(Server, []), **{str(number): partial(SlowStack, booting, go) for number in range(12)}}, at_once)
    starting = threading.Thread(target=arms.start, args=(tmp_path,))
    starting.start()
    wait_for(lambda: booting[-1] == at_once and "running" in arms.load_s, "the first boots")
    go.set()
    starting.join(30)
    arms.stop()

    assert (at_once, 0, 24) == (max(booting), booting[-1], len(booting) - 1)
    assert 13 == len(arms.load_s)


def test_a_stop_during_boots(tmp_path: Path) -> None:
    """Stacks whose turn has not come when the session ends do not boot any more."""
    booting, go = [0], threading.Event()
    arms = Arms({str(number): partial(SlowStack, booting, go) for number in range(4)}, 1)
    starting = threading.Thread(target=arms.start, args=(tmp_path,))
    starting.start()
    wait_for(lambda: booting[-1] == 1, "the first boot")
    arms.stop()
    go.set()
    starting.join(30)

    assert [0, 1, 0] == booting
