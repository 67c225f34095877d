"""Launchers are found by their names, built-in ones and those of installed packages, and get their settings from the backend's YAML."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.launchers import ENTRY_POINTS, LAUNCHERS, checked_launcher, launcher_name, make_launcher
from pytest_agentbench.launchers.launcher import Launcher, WorkerTerms

TERMS = WorkerTerms("20261127-101500", "gpu-1:7100", "127.0.0.1:7100", "secret", Path("nodes.token"), (), 10, Path("nodes"))


class CloudSettings(BaseModel, extra="forbid"):
    region: str = "here"


class Cloud(Launcher):
    """A launcher of another package."""

    settings_class: ClassVar[type[BaseModel]] = CloudSettings

    def __init__(self, argument: str, settings: CloudSettings) -> None:
        self.argument, self.settings = argument, settings
        self.runs = False

    def text(self, terms: WorkerTerms) -> str:
        return f"cloud run --region {self.settings.region} agentbench worker {' '.join(terms.options(2))}"

    def sentence(self, terms: WorkerTerms) -> str:
        return f"{self.argument} in the cloud, for {terms.concurrency} rollouts"

    def start(self, terms: WorkerTerms) -> None:
        self.runs = bool(terms.join)

    def stop(self) -> None:
        self.runs = False


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs the launcher `cloud`, and one that cannot be loaded."""
    entries = [
        importlib.metadata.EntryPoint("cloud", f"{__name__}:Cloud", ENTRY_POINTS),
        importlib.metadata.EntryPoint("broken", "no_such_package:Launcher", ENTRY_POINTS),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries if group == ENTRY_POINTS else [])


@pytest.mark.parametrize("name", LAUNCHERS)
def test_each_built_in_launcher_can_be_named(name: str) -> None:
    """A value has a name, and after a colon an argument."""
    assert name == launcher_name(name) == launcher_name(f"{name}:3")


def test_an_unknown_launcher() -> None:
    """A name that no launcher has is refused with the known names and the one that was probably meant."""
    with pytest.raises(ValueError, match=r"the name of a launcher \(local.*\), such as local:2 \(did you mean 'local'\?\)"):
        checked_launcher("locl:2")


@pytest.mark.parametrize("argument", ["", "0", "-1", "1025", "2.5", "x"])
def test_a_wrong_number_of_local_node_workers(argument: str) -> None:
    """The number of node workers on this machine is at least 1, and not a typing error."""
    with pytest.raises(ConfigError, match=rf"^--agentbench-nodes=local:{argument}: must be local:N, .* with N from 1 to 1024$"):
        make_launcher(f"local:{argument}", {}, "backend 'embedded'")


def test_local_node_workers_share_the_concurrency() -> None:
    """The sum of the slots is at least the concurrency, and the commands do not contain the token."""
    launcher = make_launcher("local:3", {}, "backend 'embedded'")

    assert "3 on this machine, each with 4 slots" == launcher.sentence(TERMS)
    lines = launcher.text(TERMS).splitlines()
    assert 3 == len(lines)
    assert lines[2].startswith("agentbench worker --join 127.0.0.1:7100 --token-file - --slots 4 --with-stdin --node local-3 ")
    assert "secret" not in launcher.text(TERMS)


@pytest.mark.usefixtures("cloud")
def test_a_launcher_of_another_package() -> None:
    """A package adds a launcher with an entry point. It gets its argument and its settings from the backend's YAML."""
    assert "cloud:7" == checked_launcher("cloud:7")
    launcher = make_launcher("cloud:7", {"cloud": {"region": "moon"}}, "backend 'vllm'")

    assert isinstance(launcher, Cloud)
    assert "7 in the cloud, for 10 rollouts" == launcher.sentence(TERMS)
    assert "cloud run --region moon agentbench worker --join gpu-1:7100 --token-file - --slots 2" == launcher.text(TERMS)


@pytest.mark.usefixtures("cloud")
def test_wrong_settings_of_a_launcher() -> None:
    """An unknown key is refused with the backend and the place in its YAML."""
    with pytest.raises(ConfigError, match=r"^backend 'vllm': nodes\.cloud: .*'regoin'"):
        make_launcher("cloud", {"cloud": {"regoin": "moon"}}, "backend 'vllm'")


@pytest.mark.usefixtures("cloud")
def test_a_launcher_that_cannot_be_loaded() -> None:
    """The error of a package's import is shown with the entry point."""
    with pytest.raises(
        ConfigError, match=f"^the launcher 'broken', an entry point of {ENTRY_POINTS}, cannot be loaded: ModuleNotFoundError: "
    ):
        make_launcher("broken", {}, "backend 'vllm'")
