"""Sessions whose node workers boot a backend each: `placement: per-node`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.project import FIND_THEN_ANSWER, Project
from tests.robustness.processes import Background
from tests.waits import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

NODES = ("--agentbench-nodes=local:2", "--agentbench-concurrency=4", "scenarios/shop")
ENGINE = "pytest_agentbench.engine"


def test_each_node_has_its_own_engine(project: Project) -> None:
    """The scores are those of a shared backend, and each node worker has started an engine."""
    project.suite(scenarios=8)
    project.backend()
    assert 0 == project.run("scenarios/shop").ret
    shared = {each.scenario: each.scores["tsq"] for each in project.rollouts}
    project.backend(placement="per-node")

    result = project.run(*NODES)

    assert 0 == result.ret, result.stdout.str()
    assert shared == {each.scenario: each.scores["tsq"] for each in project.rollouts}
    assert 2 == len([*Path(project.directory).glob("nodes/local-*/w*/engine.log")])
    assert all(each.node for each in project.rollouts)


def test_the_engine_of_a_node_dies(project: Project, start: Callable[..., Background]) -> None:
    """Each node worker runs an engine. If one dies, its rollouts run again, and the node worker joins again with another one."""
    project.suite(scenarios=12)
    project.backend([{**rule, "ttft_ms": 300} for rule in FIND_THEN_ANSWER], placement="per-node")
    background = start(*NODES)
    background.in_the_middle(finished=2)
    engines = background.children(ENGINE)
    assert 2 == len(engines)

    os.kill(engines[0], signal.SIGKILL)

    wait_for(lambda: "its backend died" in background.output, "the message about the node worker", 60)
    assert 0 == background.ended(90), background.output
    assert {"ok": 12} == {"ok": sum(each.status == "ok" for each in background.rollouts)}
