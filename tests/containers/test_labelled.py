"""Leftovers of dead stacks in a Docker Engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.stack import registry
from pytest_agentbench.backends.stack.ownership import LABEL, leftovers, remove
from tests.containers.conftest import IMAGE

pytestmark = pytest.mark.slow

FOREVER = ["sh", "-c", "while true; do sleep 0.05; done"]


@pytest.fixture
def populated(engine: Any) -> Iterator[Any]:
    """Yields an engine with containers, networks and volumes of stack `dead`, of stack `living`, and of an unknown owner."""
    for stack, labels in (("dead", {LABEL: "dead"}), ("living", {LABEL: "living"}), ("foreign", {"pytest-agentbench": "dead"})):
        engine.containers.run(IMAGE, FOREVER, name=f"t-{stack}", labels=labels, network_mode="host", init=True, detach=True)
        engine.networks.create(f"t-{stack}", driver="bridge", internal=True, labels=labels)
        engine.volumes.create(f"t-{stack}", labels=labels)
    engine.containers.create(IMAGE, FOREVER, name="t-dead-too", labels={LABEL: "dead"})
    yield engine
    for container in _ours(engine.containers.list(all=True)):
        container.remove(force=True)
    for thing in (*_ours(engine.networks.list()), *_ours(engine.volumes.list())):
        thing.remove()


def _ours(things: list[Any]) -> list[Any]:
    return [thing for thing in things if thing.name.startswith("t-")]


def names(engine: Any) -> list[list[str]]:
    found = (engine.containers.list(all=True), engine.networks.list(), engine.volumes.list())
    return [sorted(thing.name for thing in _ours(things)) for things in found]


def test_only_leftovers_of_dead_stacks_are_removed(populated: Any) -> None:
    """Leftovers of a dead stack are found by label and removed, running or not. All other objects stay."""
    found = leftovers(lambda stack: stack == "living")
    remove(found, grace=10)

    expected = [("container", "t-dead"), ("container", "t-dead-too"), ("network", "t-dead"), ("volume", "t-dead")]
    assert expected == sorted((each.kind, each.name) for each in found)
    assert {"dead"} == {each.stack for each in found}
    assert [["t-foreign", "t-living"]] * 3 == names(populated)
    assert [] == leftovers(lambda stack: stack == "living")


def test_leftovers_that_were_already_removed(populated: Any) -> None:
    """If another process has removed the same leftovers, no error is raised."""
    found = leftovers(lambda stack: stack == "living")
    remove(found, grace=0)
    remove(found, grace=0)

    assert [["t-foreign", "t-living"]] * 3 == names(populated)


def test_a_stack_whose_stack_daemon_was_killed(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a stack daemon was killed, `agentbench cleanup` removes its containers, but ignores stacks of other users."""
    monkeypatch.setenv("AGENTBENCH_STACKS", str(tmp_path / "s"))
    home, elsewhere = registry.stacks_folder() / "dead", tmp_path / "of-somebody-else" / "dead"
    for name, stack in (("t-mine", home), ("t-theirs", elsewhere)):
        engine.containers.run(IMAGE, FOREVER, name=name, labels={LABEL: str(stack)}, network_mode="host", init=True, detach=True)
    reaped = registry.clean_up()
    left = names(engine)[0]
    engine.containers.get("t-theirs").remove(force=True)

    assert [(str(home), ["container t-mine"])] == reaped
    assert ["t-theirs"] == left
