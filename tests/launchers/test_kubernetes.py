"""Node workers in pods: the manifest, and sessions on a real API server whose pods are processes of this machine."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pytest_agentbench.clusters.manifests import CONTROLLER, OWNER, RUN
from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.launchers import make_launcher
from pytest_agentbench.launchers.launcher import LaunchState, WorkerTerms
from pytest_agentbench.runs.journal import read_journal
from tests.kubernetes_nodes import KubernetesNodes, kubernetes_nodes
from tests.kubernetes_server import JOBS, PODS, SECRETS, SERVICES, KubernetesServer
from tests.node_workers import Relay, free_port, lasting
from tests.project import FIND_THEN_ANSWER, ROOT, Project
from tests.robustness.conftest import start
from tests.robustness.processes import Background
from tests.waits import wait_for

__all__ = ["start"]

TERMS = WorkerTerms(
    "20261127-101500", "10.0.0.5:7100", "127.0.0.1:7100", "secret", Path("nodes.token"), ("--tls-ca", "sha256:ab"), 10, Path("x")
)
ALL_KEYS = {
    "image": "registry.example.com/bench@sha256:12",
    "nodes": 3,
    "namespace": "bench",
    "context": "ci",
    "requests": {"cpu": "4", "memory": "8Gi"},
    "limits": {"memory": "8Gi"},
    "node_selector": {"pool": "cpu"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "service_account": "bench",
    "env": {"A": "b"},
    "secrets": ["keys"],
    "image_pull_secrets": ["registry"],
    "controller": "service",
    "deadline": "2h",
    "ttl": "5m",
    "pod": {"priorityClassName": "batch"},
}


def manifests(**settings: Any) -> list[dict[str, Any]]:
    launcher = make_launcher("kubernetes", {"kubernetes": settings}, "backend 'vllm'")
    return [*yaml.safe_load_all(launcher.text(TERMS))]


def test_the_manifest_is_valid() -> None:
    """The newest schema of Kubernetes accepts all objects, with the fewest keys and with all. A misspelt field would be refused."""
    for objects in (manifests(image="x"), manifests(**ALL_KEYS)):
        for each in objects:
            kubernetes_validate.validate(each, "1.37", strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**objects[0], "spec": {**objects[0]["spec"], "completionsMode": "Indexed"}}, "1.37", strict=True)


def test_the_manifest() -> None:
    """Each pod runs a node worker with the token as a file. An evicted pod costs no retry, and a pod that is refused is not tried again."""
    job, secret, service = manifests(**ALL_KEYS)

    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    name = job["metadata"]["name"]
    assert name.startswith("agentbench-20261127-101500-")
    assert (
        f"agentbench worker --join {name}:7100 --token-file /run/agentbench/token --tls-ca sha256:ab --slots 4 --node $(NODE)"
        == " ".join(container["command"])
    )
    assert {"secretName": name, "defaultMode": 0o400} == pod["volumes"][0]["secret"]
    assert {"token": "(the session's token)"} == secret["stringData"]
    assert {CONTROLLER: name} == service["spec"]["selector"]
    assert {"cpu": "4", "memory": "8Gi"} == container["resources"]["requests"]
    assert "batch" == pod["priorityClassName"]
    assert (7200, 300, 3) == (job["spec"]["activeDeadlineSeconds"], job["spec"]["ttlSecondsAfterFinished"], job["spec"]["completions"])
    first, second = job["spec"]["podFailurePolicy"]["rules"]
    assert ("Ignore", "DisruptionTarget") == (first["action"], first["onPodConditions"][0]["type"])
    assert ("FailIndex", [3, 4]) == (second["action"], second["onExitCodes"]["values"])
    for each in (job, secret, service, job["spec"]["template"]):
        assert {RUN: "20261127-101500"}.items() <= each["metadata"]["labels"].items()
    assert "secret" not in [*secret["stringData"].values()]


def test_an_address_needs_no_service() -> None:
    """Without `controller: service` the pods get the address of the session, and nothing is limited or requested."""
    job, secret = manifests(image="x", slots=2)

    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert ["--join", "10.0.0.5:7100"] == container["command"][2:4]
    assert "2" == container["command"][container["command"].index("--slots") + 1]
    assert {} == container["resources"]
    assert "Secret" == secret["kind"]


@pytest.mark.parametrize(
    ("value", "settings", "message"),
    [
        ("kubernetes:3", {"image": "x"}, r"^--agentbench-nodes=kubernetes:3: must be kubernetes; its settings are `nodes: \{kubernetes: "),
        ("kubernetes", {}, r"^backend 'vllm': nodes\.kubernetes: the key 'image' is missing$"),
    ],
)
def test_wrong_settings(value: str, settings: dict[str, Any], message: str) -> None:
    """An argument is refused, and an image is needed."""
    with pytest.raises(ConfigError, match=message):
        make_launcher(value, {"kubernetes": settings}, "backend 'vllm'")


def test_a_service_needs_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`controller: service` is refused outside of a cluster, and a kubeconfig that is not there is a sentence."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    launcher = make_launcher("kubernetes", {"kubernetes": {"image": "x", "controller": "service"}}, "backend 'vllm'")
    with pytest.raises(ConfigError, match=r"^nodes\.kubernetes: there is no file .*none; write a kubeconfig there"):
        launcher.check()
    (tmp_path / "none").write_text(KUBECONFIG)
    with pytest.raises(ConfigError, match=r"controller is service, but this session does not run in a pod; use `controller: address`"):
        launcher.check()


KUBECONFIG = """
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""


@pytest.fixture
def nodes(api_server: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesNodes]:
    """Machines of the API server, to which commands of this test are directed by KUBECONFIG."""
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    with kubernetes_nodes(api_server, tmp_path / "machines") as nodes:
        yield nodes


@pytest.fixture
def relay(api_server: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    """A relay to the API server, to which KUBECONFIG leads. When it is closed, the API server does not answer."""
    relay = Relay(api_server.port)
    text = api_server.kubeconfig.read_text().replace(str(api_server.port), str(relay.port))
    (tmp_path / "kubeconfig").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    yield relay
    relay.close()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_what_the_user_is_told(api_server: KubernetesServer, relay: Relay, tmp_path: Path) -> None:
    """Events of the Job, pods that wait and pods that failed are sentences, each failure once. A server that is away decides nothing."""
    launcher = make_launcher("kubernetes", {"kubernetes": {"image": "x", "nodes": 2}}, "backend 'vllm'")
    assert LaunchState() == launcher.state()
    launcher.start(replace(TERMS, logs=tmp_path / "logs"))
    (job,) = api_server.request("GET", JOBS)["items"]
    name = job["metadata"]["name"]

    assert LaunchState(f"job {name}", "not all of 2 pods run: not created yet") == launcher.state()
    api_server.event("Job", name, "FailedCreate", "exceeded quota: small")
    assert "not all of 2 pods run: FailedCreate: exceeded quota: small" == launcher.state().waiting

    template = job["spec"]["template"]
    for pod in ("p-0", "p-1"):
        api_server.request("POST", PODS, {"metadata": {"name": pod, "labels": template["metadata"]["labels"]}, "spec": template["spec"]})
    failed = api_server.container_status("worker", terminated={"exitCode": 4})
    api_server.request("PATCH", f"{PODS}/p-1/status", {"status": {"phase": "Failed", "containerStatuses": [failed]}})
    problem = "pod p-1 failed: container worker ended with exit status 4 (no reason)"
    expected = LaunchState(f"job {name}", "not all of 2 pods run: Pending", problem)
    assert [expected, replace(expected, problem="")] == [launcher.state(), launcher.state()]

    relay.close()
    away = launcher.state()
    assert "not all of 2 pods run: Pending" == away.waiting
    assert f"https://127.0.0.1:{relay.port} cannot be asked to " in away.problem
    with pytest.raises(BackendError, match="cannot be asked to"):
        launcher.stop()
    api_server.cluster().delete(f"{RUN}={TERMS.session}")
    assert [] == left(api_server)


@pytest.mark.slow
@pytest.mark.usefixtures("relay")
def test_a_session_in_a_pod(api_server: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `controller: service`, a Service leads to the session's own pod, and its name is the address that node workers get.

    The rights in docs/machines/scale.md are enough for all of it.
    """
    (role,) = re.findall(r"# role\.yaml\n(.*?)```", (ROOT / "docs" / "machines/scale.md").read_text(), re.DOTALL)
    api_server.permit("session", yaml.safe_load(role)["rules"])
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("POD_NAME", "controller")
    session = {"metadata": {"name": "controller"}, "spec": {"containers": [{"name": "pytest", "image": "x"}]}}
    api_server.request("POST", PODS, session)
    launcher = make_launcher("kubernetes", {"kubernetes": {"image": "x", "controller": "service", "context": "session"}}, "backend 'vllm'")

    launcher.check()
    launcher.start(replace(TERMS, logs=tmp_path / "logs"))

    (job,) = api_server.request("GET", JOBS)["items"]
    service = api_server.request("GET", f"{SERVICES}/{job['metadata']['name']}")
    labels = api_server.request("GET", f"{PODS}/controller")["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert 7100 == service["spec"]["ports"][0]["port"]
    assert job["metadata"]["uid"] == service["metadata"]["ownerReferences"][0]["uid"]
    assert "not all of 1 pods run: not created yet" == launcher.state().waiting
    assert "" == launcher.state().problem
    launcher.stop()
    assert ["controller"] == left(api_server)
    api_server.request("DELETE", f"{PODS}/controller", {"gracePeriodSeconds": 0})


def shop(project: Project, ttft_ms: float = 50) -> None:
    """Creates a suite, and a backend whose node workers are two pods."""
    project.suite(scenarios=8)
    rules = [{"ttft_ms": ttft_ms, **rule} for rule in FIND_THEN_ANSWER]
    project.backend(rules, nodes={"kubernetes": {"image": "x", "nodes": 2, "env": {"FROM_THE_YAML": "yes"}}})


def placed(start: Callable[..., Background]) -> Background:
    return start(
        "scenarios/shop",
        "--agentbench-nodes=kubernetes",
        f"--agentbench-nodes-listen=127.0.0.1:{free_port()}",
        "--agentbench-concurrency=4",
    )


def left(server: KubernetesServer) -> list[str]:
    """Returns the names of all Jobs, Secrets and pods."""
    return [each["metadata"]["name"] for path in (JOBS, SECRETS, PODS) for each in server.request("GET", path)["items"]]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_session(project: Project, api_server: KubernetesServer, nodes: KubernetesNodes, start: Callable[..., Background]) -> None:
    """Pods make the same records as a local session. The terminal shows why they wait, the logs are kept, and nothing is left."""
    shop(project, ttft_ms=1000)  # The session looks at the pods every two seconds.
    project.run("-p", "no:cacheprovider", "--agentbench-reports=elsewhere", "--agentbench-concurrency=4", "scenarios/shop")
    before = lasting([*read_journal(next((project.root / "elsewhere").glob("2*")))])

    session = placed(start)
    wait_for(lambda: "not all of 2 pods run: Unschedulable: 0/2 nodes are available" in session.output, "the reason of waiting", 60)
    nodes.has_room.set()

    assert 0 == session.ended(120), session.output
    assert before == lasting(session.rollouts)
    assert {"node-0", "node-1"} == {each["node"] for each in project.run_json["nodes"]}
    assert "have their machines after" in session.output
    assert project.run_json["launches"][0]["queue_s"] > 0
    assert [] == left(api_server)
    logs = sorted((project.directory / "nodes").glob("agentbench-*.log"))
    assert 2 == len(logs)
    assert all("agentbench worker: " in log.read_text() for log in logs)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_deleted_pod(project: Project, api_server: KubernetesServer, nodes: KubernetesNodes, start: Callable[..., Background]) -> None:
    """A pod that is deleted gives its rollouts back at SIGTERM. They run on the other."""
    shop(project, ttft_ms=300)
    nodes.has_room.set()
    session = placed(start)
    session.in_the_middle()
    deleted = min(nodes.processes)
    api_server.request("DELETE", f"{PODS}/{deleted}")

    assert 0 == session.ended(120), session.output
    assert 3 == nodes.processes[deleted].wait(30)
    assert 8 == len(session.rollouts)
    assert [] == left(api_server)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_killed_session(project: Project, api_server: KubernetesServer, nodes: KubernetesNodes, start: Callable[..., Background]) -> None:
    """The pods of a killed session end with status 3. What is left has its labels, and belongs to the Job, which the cluster deletes."""
    shop(project, ttft_ms=300)
    nodes.has_room.set()
    session = placed(start)
    session.in_the_middle()
    os.kill(session.process.pid, signal.SIGKILL)

    assert [3, 3] == [process.wait(60) for process in nodes.processes.values()]
    (job,) = api_server.request("GET", JOBS)["items"]
    (secret,) = api_server.request("GET", SECRETS)["items"]
    assert session.directory.name == job["metadata"]["labels"][RUN]
    assert job["metadata"]["uid"] == secret["metadata"]["ownerReferences"][0]["uid"]
    deleted = api_server.cluster().delete(f"{OWNER}={job['metadata']['labels'][OWNER]}")
    assert f"Job {job['metadata']['name']}" in deleted
    assert [] == left(api_server)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("relay")
def test_a_refused_token(project: Project, api_server: KubernetesServer, start: Callable[..., Background]) -> None:
    """A session whose token the API server refuses ends with this reason, and leaves nothing."""
    shop(project)
    project.backend(nodes={"kubernetes": {"image": "x", "context": "expired"}})
    session = placed(start)

    assert session.ended(60) != 0, session.output
    assert "no node workers can be started: https://127.0.0.1:" in session.output
    assert "refuses the token or certificate of context expired" in session.output
    assert [] == left(api_server)
