"""Node workers in actors of a real Ray cluster: a session has the same records as without them, whichever part of the cluster dies."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.launchers import make_launcher
from pytest_agentbench.launchers.launcher import Launcher, LaunchState, WorkerTerms
from pytest_agentbench.lib.process import lives, variable_of
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.nodes import read_launches, read_nodes
from tests.launchers.ray_cluster import VARIABLES, RayCluster
from tests.node_workers import lasting
from tests.project import FIND_THEN_ANSWER, Project
from tests.robustness.processes import Background
from tests.waits import wait_for

DRIVER = "pytest_agentbench.launchers.ray_driver"
ROLLOUTS = 40

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
    nodes = read_nodes(background.directory)
    assert {"w1": os.nice(0), "w2": os.nice(0), "w3": os.nice(0)} == {each.name: each.niceness for each in nodes}
    assert {"w1", "w2", "w3"} == {each.node for each in background.rollouts}
    cluster.has_no_actors()
    wait_for(lambda: not [pid for pid in background.seen if lives(pid)], "the end of all processes of the session")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_driver_dies(session: Callable[..., Background], cluster: RayCluster) -> None:
    """If the driver is killed, all actors and node workers end, and the session ends with a sentence after the time for node workers."""
    background = session("--agentbench-nodes-wait=3s")
    background.in_the_middle(3)

    os.kill(background.child(DRIVER), signal.SIGKILL)

    cluster.has_no_actors()
    assert 6 == background.ended(60), background.output
    assert "ray_driver` ended; Ray then ends its actors and their node workers" in background.output
    assert "no node worker has been there for 3 s" in background.output
    wait_for(lambda: not [pid for pid in background.seen if lives(pid)], "the end of all processes of the session")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_session_dies(session: Callable[..., Background], cluster: RayCluster) -> None:
    """If pytest is killed, no actor and no process of a node worker is left."""
    background = session()
    background.in_the_middle(3)

    background.process.kill()

    cluster.has_no_actors()
    wait_for(lambda: not [pid for pid in background.seen if lives(pid)], "the end of all processes of the session")


TERMS = WorkerTerms(
    "20261127-101500", "127.0.0.1:9", "127.0.0.1:9", "secret", Path("nodes.token"), ("--tls-ca", "ca.pem"), 10, Path("nodes")
)


def made(address: str = "10.0.0.5:6379", **settings: Any) -> Launcher:
    return make_launcher(f"ray:{address}", {"ray": settings}, "backend 'gpu-1'")


Launch = Callable[..., Iterator[LaunchState]]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Starts node workers for a session that does not exist, and yields the states of the launcher. They end with the test."""
    started: list[Launcher] = []

    def states(address: str, **settings: Any) -> Iterator[LaunchState]:
        launcher = made(address, **settings)
        started.append(launcher)
        launcher.check()
        launcher.start(replace(TERMS, trust=(), logs=tmp_path / "nodes"))
        while True:
            yield launcher.state()
            time.sleep(0.05)

    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    yield states
    for launcher in started:
        launcher.stop()


def until(states: Iterator[LaunchState], condition: Callable[[LaunchState], object]) -> LaunchState:
    """Returns the first state that meets a condition."""
    return wait_for(lambda: state if condition(state := next(states)) else None, "a state of the launcher", 60)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_wrong_token(launch: Launch, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster with a token refuses a driver with another one. The sentence comes within the time limit, and says what is wrong."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "f" * 64)
    with pytest.raises(BackendError, match=r"did not answer within 8 s; .*Authentication token is missing or incorrect"):
        until(launch(cluster.address, timeout="8s"), lambda state: state.id)

    assert not cluster.actors


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_another_version(launch: Launch, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the cluster runs another version of Ray, the sentence names both versions of Ray and of Python."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", cluster.token)
    own = cluster.command("versions 2.55.1")
    try:
        with pytest.raises(BackendError, match=rf"Ray: 2\.55\.1 Python: 3\..* Ray: {own} Python: 3\..*; start pytest with the versions of"):
            until(launch(cluster.address), lambda state: state.id)
    finally:
        assert "2.55.1" == cluster.command(f"versions {own}")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_nodes_without_the_resources(launch: Launch, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only nodes with the reserved resources count. If there is none, the sentence says what the nodes have."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", cluster.token)
    with pytest.raises(BackendError, match=r"has no node with CPU 1, GPU 2, tpu 3; its nodes have CPU 2; CPU 2; CPU 2"):
        until(launch(cluster.address, num_cpus=1, num_gpus=2, resources={"tpu": 3}), lambda state: state.id)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_node_that_joins_later(launch: Launch, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing node is waited for, and gets its node worker when it joins."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", cluster.token)
    wanted = len(cluster.raylets) + 1
    states = launch(cluster.address, nodes=wanted, num_cpus=1)

    until(states, lambda state: f"{wanted - 1} of {wanted} nodes with CPU 1 are there" in state.waiting)
    cluster.raylets.append(cluster.command("add"))
    until(states, lambda state: not state.waiting)
    assert wanted == len(cluster.actors)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_runtime_env(launch: Launch, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`runtime_env` ships files and variables to node workers, but none of Ray's own. A nice value above 0 is a problem."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", cluster.token)
    (folder := tmp_path / "project").mkdir()
    (folder / "a-file").touch()
    environment = {"working_dir": str(folder), "env_vars": {"RAY_worker_niceness": "5", "SHIPPED": "yes", "OMP_NUM_THREADS": "7"}}

    states = launch(cluster.address, nodes=1, runtime_env=environment, logs=str(tmp_path / "logs"))

    assert "RAY_worker_niceness=0" in until(states, lambda state: state.problem).problem
    (worker,) = cluster.processes(" worker ")
    assert Path(f"/proc/{worker}/cwd/a-file").exists()
    shown = [variable_of(worker, name) for name in ("SHIPPED", "OMP_NUM_THREADS", "RAY_worker_niceness", "RAY_AUTH_TOKEN")]
    assert ["yes", "7", "", ""] == shown
    assert [tmp_path / "logs" / socket.gethostname() / "worker.log"] == [*(tmp_path / "logs").glob("*/*.log")]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_actor_and_a_raylet_die(session: Callable[..., Background], known: dict[str, Any], cluster: RayCluster) -> None:
    """If an actor is killed, its rollouts run elsewhere. If a raylet is killed, they go on, and its actor ends with the session."""
    background = session()
    background.in_the_middle(3)

    raylet = cluster.raylets[-1]
    os.kill(next(pid for pid in cluster.actors if variable_of(pid, "RAY_RAYLET_PID") != str(raylet)), signal.SIGKILL)
    background.has_recorded(10)
    os.kill(raylet, signal.SIGKILL)

    has_the_same_records(background, known)
    assert any(each.earlier_attempts for each in background.rollouts)
    cluster.has_no_actors()
    wait_for(lambda: not [pid for pid in background.seen if lives(pid)], "the end of all processes of the session")
    (launch,) = read_launches(background.directory)
    assert any(each.startswith("the actor of node worker ") for each in launch.problems), launch
    cluster.raylets[-1] = cluster.command("add")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_head_dies(session: Callable[..., Background], known: dict[str, Any], cluster: RayCluster) -> None:
    """If the head of the cluster is killed, all rollouts go on, and no process of the session is left at its end."""
    background = session()
    background.in_the_middle(3)

    os.kill(cluster.head, signal.SIGKILL)

    has_the_same_records(background, known)
    assert {1} == {each.attempt for each in background.rollouts}
    cluster.has_no_actors()
    wait_for(lambda: not [pid for pid in background.seen if lives(pid)], "the end of all processes of the session")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_an_address_without_a_cluster(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed port, and a port of something else, end in time with a sentence."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "f" * 64)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(
            BackendError, match=f"^the Ray cluster at {address} did not answer within 3 s; .*Ray replaces a loopback address"
        ):
            until(launch(address, timeout=3), lambda state: state.id)
    with pytest.raises(BackendError, match=f"^the Ray cluster at {address} cannot be used: .*Connection refused$"):
        until(launch(address), lambda state: state.id)


@pytest.mark.parametrize("address", ["ray://head:10001", "http://head:8265", "head"])
def test_other_addresses_are_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address of Ray Client is refused, also in RAY_ADDRESS, and the sentence says where pytest has to run."""
    with pytest.raises(ConfigError, match=f"the address of the cluster is {address}.*; start pytest on a node of the Ray cluster"):
        made(address)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=f"the address of the cluster is {address}"):
        made("")
    monkeypatch.delenv("RAY_ADDRESS")
    assert "one on each node of the Ray cluster of this machine, together with 10 slots or more" == made("").sentence(TERMS)


def test_the_text_of_a_launch() -> None:
    """The header and the dry run say where node workers start, with which slots and resources, and without the token."""
    assert "one on each node of the Ray cluster at 10.0.0.5:6379, together with 10 slots or more" == made().sentence(TERMS)
    assert "one on 4 nodes of the Ray cluster at 10.0.0.5:6379, each with 3 slots" == made(nodes=4).sentence(TERMS)
    assert made(nodes=1, slots=1).sentence(TERMS).startswith("one on 1 node of the Ray cluster at 10.0.0.5:6379, each with 1 slot")
    text = made(nodes=4, num_gpus=1, resources={"fast": 0.5}).text(TERMS)
    assert "it reserves GPU 1, fast 0.5 and starts\nagentbench worker --join 127.0.0.1:9 --token-file - --tls-ca ca.pem --slots 3 " in text
    assert "--slots CONCURRENCY/NODES " in made().text(TERMS)
    assert "secret" not in text


def test_wrong_settings() -> None:
    """Wrong settings are refused with the backend and the key."""
    with pytest.raises(ConfigError, match=r"^backend 'gpu-1': nodes\.ray: nodes: must be greater than or equal to 1"):
        made(nodes=0)


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """If Ray is not installed, the sentence has the command that installs it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'pytest-agentbench\[ray\]'"):
        made().check()
