"""Node workers in actors of a real Ray cluster: a session has the same records as without them, whichever part of the cluster dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.launchers import make_launcher
from pytest_agentbench.launchers.launcher import Launcher, LaunchState, WorkerTerms
from pytest_agentbench.lib.process import lives
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.nodes import LaunchRecord, read_nodes
from tests.launchers.ray_cluster import RayCluster
from tests.node_workers import lasting
from tests.project import FIND_THEN_ANSWER, Project
from tests.robustness.processes import Background
from tests.waits import wait_for

DRIVER = "pytest_agentbench.launchers.ray_driver"
ROLLOUTS = 60

SESSION = ("--agentbench-nodes-listen=127.0.0.1:0", "--agentbench-concurrency=6", "--agentbench-retries=0", "scenarios/shop")

#: An agent whose answer is what Ray has added to its environment.
AGENT = """
import os

async def run(scenario, llm, tools):
    reply = await llm.chat([*scenario.messages], tools.schemas)
    for call in reply.tool_calls:
        await tools.call(call.name, call.arguments, 1)
    return " ".join(sorted(name for name in os.environ if name.startswith("RAY_") or name in ("OMP_NUM_THREADS", "PYTHONBREAKPOINT")))
"""

of_a_cluster = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], RayCluster]]:
    """Returns a function that returns the cluster, which is started when it is needed, and anew if a test has damaged it."""
    with ExitStack() as stack:
        running: list[RayCluster] = []

        def cluster() -> RayCluster:
            if not running or not all(map(lives, (running[-1].head, *running[-1].raylets))):
                running.append(RayCluster(tmp_path_factory.mktemp("ray")))
                stack.callback(running[-1].close)
            return running[-1]

        yield cluster


@pytest.fixture
def cluster(clusters: Callable[[], RayCluster]) -> RayCluster:
    return clusters()


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """The records of a session without node workers, once it has run."""
    return {}


@pytest.fixture
def shop(project: Project, known: dict[str, Any]) -> Project:
    """Creates a suite, and runs it once without node workers."""
    project.write("scenarios/shop/agent.py", AGENT)
    project.suite(scenarios=ROLLOUTS, agent={"kind": "./agent.py:run"})
    project.backend([{"ttft_ms": 400, **rule} for rule in FIND_THEN_ANSWER])
    if not known:
        project.run("-p", "no:cacheprovider", "--agentbench-reports=elsewhere", "--agentbench-concurrency=12", "scenarios/shop")
        known.update(lasting([*read_journal(next((project.root / "elsewhere").glob("2*")))]))
        assert ROLLOUTS == len(known)
    return project


@pytest.fixture
def session(shop: Project, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Background]]:
    """Starts a session on the cluster in the background, with the cluster's token. Its processes are killed at the end of the test."""
    started: list[Background] = []
    for name, value in cluster.variables.items():
        monkeypatch.setenv(name, value)

    def session(*options: str) -> Background:
        started.append(Background(shop, f"--agentbench-nodes=ray:{cluster.address}", *SESSION, *options))
        return started[-1]

    yield session
    for background in started:
        background.clean_up()


def has_the_same_records(background: Background, known: dict[str, Any]) -> None:
    """Waits for the end of a session whose tests all pass. Each rollout has one record, that of a session without node workers."""
    assert 0 == background.ended(120), background.output
    records = background.rollouts
    assert dict.fromkeys(known, 1) == Counter(str(each.key) for each in records)
    assert known == lasting(records)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_same_records(session: Callable[..., Background], known: dict[str, Any], cluster: RayCluster) -> None:
    """Each node of the cluster runs rollouts, agents see no variable of Ray, and at the end no process of the session is left."""
    background = session()
    background.in_the_middle(1)
    assert 3 == len(cluster.actors)

    has_the_same_records(background, known)
    assert {""} == {each.answer for each in background.rollouts}
    assert {1} == {each.attempt for each in background.rollouts}
    assert {"w1", "w2", "w3"} == {each.node for each in background.rollouts}
    cluster.has_no_actors()
    assert not [pid for pid in background.seen if lives(pid)]
