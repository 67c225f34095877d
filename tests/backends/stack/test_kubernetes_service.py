"""Services that are objects of a Kubernetes cluster, with a real API server. The tests play scheduler, operator and kubelet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.stack import registry
from pytest_agentbench.backends.stack.instances import submissions
from pytest_agentbench.backends.stack.kubernetes_service import ending, why_not_ready
from pytest_agentbench.clusters.pods import Pod, pod_of
from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Json
from tests.backends.conftest import SERVICE, Boot, spec
from tests.clusters.test_kubernetes import CRDS, GRAPHS
from tests.kubernetes_server import PODS, KubernetesServer, kubernetes_server
from tests.node_workers import free_port
from tests.waits import wait_for

pytestmark = pytest.mark.timeout(180)

GRAPH_OBJECTS = "/apis/example.com/v1beta1/namespaces/default/graphs"

MANIFEST = """\
apiVersion: example.com/v1beta1
kind: Graph
metadata: {name: "{graph}"}
spec:
  components:
  - {name: frontend, podTemplate: {spec: {containers: [{name: main, image: x, command: [sh, -c, "serve ${PORT}"]}]}}}
"""


class Operator:
    """Plays what the API server lacks: creates a pod for a Graph, and lets go what is deleted. The test plays the rest."""

    def __init__(self, server: KubernetesServer) -> None:
        self._server, self._stopped = server, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(0.1):
            pods = {each["metadata"]["name"]: each["metadata"] for each in self._server.request("GET", PODS)["items"]}
            graphs = self._server.request("GET", GRAPH_OBJECTS)["items"]
            for each in graphs:
                self._reconcile(each, pods)
            owners = {f"{each['metadata']['name']}-0" for each in graphs}
            for name, metadata in pods.items():
                if "deletionTimestamp" in metadata or name not in owners:
                    self._server.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    def _reconcile(self, graph: Json, pods: Json) -> None:
        metadata, name = graph["metadata"], f"{graph['metadata']['name']}-0"
        if "deletionTimestamp" in metadata:
            self._server.request("PATCH", f"{GRAPH_OBJECTS}/{metadata['name']}", {"metadata": {"finalizers": None}})
        elif name not in pods:
            template = graph["spec"]["components"][0]["podTemplate"]
            body = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": name}}
            self._server.request("POST", PODS, body)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


@pytest.fixture(scope="module")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesServer]:
    with kubernetes_server(tmp_path_factory.mktemp("kubernetes")) as server:
        server.request("POST", CRDS, GRAPHS)
        wait_for(lambda: "graphs" in json.dumps(_resources(server)), "the kind Graph")
        operator = Operator(server)
        yield server
        operator.stop()


def _resources(server: KubernetesServer) -> Any:
    from kubernetes.client import ApiException

    try:
        return server.request("GET", "/apis/example.com/v1beta1")
    except ApiException:
        return {}


@pytest.fixture
def serving() -> Iterator[int]:
    """The port of the server that stands for the frontend in the cluster."""
    port = free_port()
    server = subprocess.Popen([sys.executable, str(SERVICE), "--port", str(port)])
    yield port
    server.kill()
    server.wait()


def stack(folder: Path, server: KubernetesServer | None, port: int, graph: str, **keys: Any) -> Any:
    """Returns a stack whose endpoint is a Graph."""
    (folder / "graph.yaml").write_text(MANIFEST)
    place = {"manifest": "graph.yaml", "url": f"http://127.0.0.1:{port}", "kubeconfig": str(server.kubeconfig) if server else ""}
    service = {"kubernetes": place, "ready": {"http": "/health"}, **keys}
    return spec(here=str(folder), settings={"graph": graph}, services={"engine": service})


def binding(server: KubernetesServer, pod: str) -> None:
    """Plays the scheduler."""
    body = {"metadata": {"name": pod}, "target": {"kind": "Node", "name": "gpu-1"}}
    server.request("POST", f"{PODS}/{pod}/binding", body)


def becomes_ready(server: KubernetesServer, graph: str) -> None:
    """Plays scheduler and kubelet for the pod of a graph, and the operator for the graph itself."""
    pod = f"{PODS}/{graph}-0"
    binding(server, f"{graph}-0")
    server.request("PATCH", f"{pod}/status", {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
    condition = {"type": "Ready", "status": "True", "reason": "all", "message": "all resources are ready"}
    server.request("PATCH", f"{GRAPH_OBJECTS}/{graph}", {"status": {"conditions": [condition]}})


@pytest.mark.slow
def test_a_custom_resource(api_server: KubernetesServer, boot: Boot, tmp_path: Path) -> None:
    """The boot waits for the pod to be scheduled, then until pod and resource are ready, and shows why. The stop deletes both."""
    port = free_port()
    held = boot(stack(tmp_path, api_server, port, "first"))
    api_server.event("Pod", "first-0", "FailedScheduling", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu")
    said: list[str] = []
    steps: list[tuple[str, Callable[[], object]]] = [
        ("first-0: FailedScheduling: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu", lambda: becomes_scheduled(api_server)),
        ("first-0: ContainerCreating", lambda: becomes_ready_without_graph(api_server)),
        ("Graph first: its status has no condition Ready or Available yet", lambda: graph_is(api_server, "False", "1 of 2 workers")),
        ("Graph first: Ready is False: 1 of 2 workers", lambda: graph_is(api_server, "True", "")),
    ]
    server: list[subprocess.Popen[bytes]] = []

    def on_progress(text: str) -> None:
        said.append(text)
        if steps and steps[0][0] in text:
            steps.pop(0)[1]()
            if not steps:
                server.append(subprocess.Popen([sys.executable, str(SERVICE), "--port", str(port)]))

    try:
        endpoint = held.ready(on_progress)
    finally:
        for process in server:
            process.kill()
            process.wait()

    assert [] == steps, said
    assert f"http://127.0.0.1:{port}/v1" == endpoint.url
    assert {"engine": {"id": "Graph first in namespace default", "hosts": ["gpu-1"]}} == held.boot["places"]
    assert 0 < held.boot["queue_s"] < held.boot["boot_s"]
    labels = {"agentbench.io/owner": held.home.name, "agentbench.io/service": "engine"}
    graph = api_server.request("GET", f"{GRAPH_OBJECTS}/first")
    assert labels == graph["metadata"]["labels"]
    assert ["sh", "-c", "serve ${PORT}"] == graph["spec"]["components"][0]["podTemplate"]["spec"]["containers"][0]["command"]
    held.stop()
    assert [] == api_server.request("GET", GRAPH_OBJECTS)["items"]
    log = (tmp_path / "logs" / "engine.log").read_text()
    assert "FailedScheduling" in log and "the log of container main of pod first-0" in log


def becomes_scheduled(server: KubernetesServer) -> None:
    binding(server, "first-0")
    creating = server.container_status("main", waiting={"reason": "ContainerCreating"})
    server.request("PATCH", f"{PODS}/first-0/status", {"status": {"containerStatuses": [creating]}})


def becomes_ready_without_graph(server: KubernetesServer) -> None:
    status = {"phase": "Running", "containerStatuses": None, "conditions": [{"type": "Ready", "status": "True"}]}
    server.request("PATCH", f"{PODS}/first-0/status", {"status": status})


def graph_is(server: KubernetesServer, ready: str, message: str) -> None:
    condition = {"type": "Ready", "status": ready, "message": message}
    server.request("PATCH", f"{GRAPH_OBJECTS}/first", {"status": {"conditions": [condition]}})


@pytest.mark.slow
def test_objects_that_disappear(api_server: KubernetesServer, boot: Boot, serving: int, tmp_path: Path) -> None:
    """If something else deletes the objects, the service has died."""
    held = boot(stack(tmp_path, api_server, serving, "second"))
    wait_for(lambda: "second-0" in json.dumps(api_server.request("GET", PODS)), "the pod")
    becomes_ready(api_server, "second")
    held.ready()
    api_server.request("DELETE", f"{GRAPH_OBJECTS}/second", {})

    assert held.death().startswith("engine ended with exit code -1: `kubectl create -f graph.yaml`")


@pytest.mark.slow
def test_a_killed_daemon(api_server: KubernetesServer, boot: Boot, serving: int, tmp_path: Path) -> None:
    """If the stack daemon is killed, too, what cleans up after it deletes the objects by their label."""
    held = boot(stack(tmp_path, api_server, serving, "third"))
    wait_for(lambda: "third-0" in json.dumps(api_server.request("GET", PODS)), "the pod")
    becomes_ready(api_server, "third")
    held.ready()
    os.kill(json.loads((held.home / "stack.json").read_text())["pid"], signal.SIGKILL)
    wait_for(held.death, "the death")

    assert "Graph third in namespace default" in registry.clean_up_one(held.home)
    assert [] == api_server.request("GET", GRAPH_OBJECTS)["items"]
    assert not held.home.exists()


@pytest.mark.slow
def test_refused_objects(api_server: KubernetesServer, boot: Boot, serving: int, tmp_path: Path) -> None:
    """The error names the object, the server and the reason. Nothing is left."""
    wanted = stack(tmp_path, api_server, serving, "fourth")
    (tmp_path / "graph.yaml").write_text(MANIFEST.replace("kind: Graph", "kind: Grph"))
    with pytest.raises(BackendError, match=r"has no kind Grph of example.com/v1beta1; install what defines it"):
        boot(wanted).ready()


def test_what_would_be_created(tmp_path: Path) -> None:
    """The manifest has its templates replaced, and the labels by which its objects are deleted."""
    texts = submissions(stack(tmp_path, None, 8000, "fifth"), tmp_path)

    assert ["engine"] == [*texts]
    assert "name: fifth\n" in texts["engine"]
    assert 2 == texts["engine"].count("agentbench.io/service: engine")


def pod(phase: str, *, ready: bool = False) -> Pod:
    conditions = [{"type": "Ready", "status": str(ready)}]
    body = {"metadata": {"name": "p"}, "spec": {"containers": [], "nodeName": "n"}, "status": {"phase": phase, "conditions": conditions}}
    return pod_of(body)


def an_object(kind: str, api_version: str, **status: Any) -> Json:
    return {"kind": kind, "apiVersion": api_version, "metadata": {"name": "x"}, "spec": {"replicas": 2}, "status": status}


@pytest.mark.parametrize(
    ("each", "pods", "problem"),
    [
        (an_object("Service", "v1"), [], ""),
        (an_object("Deployment", "apps/v1", readyReplicas=1), [pod("Running", ready=True)], "Deployment x: 1 of 2 pods are ready; event"),
        (an_object("Deployment", "apps/v1", readyReplicas=2), [pod("Running", ready=True)], ""),
        (an_object("Deployment", "apps/v1", readyReplicas=2), [pod("Running")], "p is not ready"),
        (an_object("Job", "batch/v1"), [], "Job x: it has no pod yet; event"),
        (an_object("Job", "batch/v1"), [pod("Running", ready=True), pod("Succeeded")], ""),
        (an_object("Ingress", "networking.k8s.io/v1"), [], ""),
        (an_object("Graph", "nvidia.com/v1"), [pod("Running", ready=True)], "Graph x: its status has no condition Ready or Available yet"),
    ],
)
def test_why_objects_are_not_ready(each: Json, pods: list[Pod], problem: str) -> None:
    """Each kind of object has its own sign that it is ready. The newest event of an object that is not ready is shown."""
    assert why_not_ready([each], pods, lambda _kind, _name: ["event"]).startswith(problem)
    assert bool(problem) == bool(why_not_ready([each], pods, lambda _kind, _name: []))


def test_the_end_of_objects() -> None:
    """Jobs and pods end. Objects that are gone have ended, and what is restarted by the cluster has not."""
    job = an_object("Job", "batch/v1")
    failed = an_object("Job", "batch/v1", conditions=[{"type": "Failed", "status": "True"}])
    single = an_object("Pod", "v1")

    assert [None, 1, -1] == [ending([job], [each], []) for each in (job, failed, None)]
    assert [None, 0, 1] == [ending([single], [single], [pod(phase)]) for phase in ("Running", "Succeeded", "Failed")]
    assert None is ending([an_object("Deployment", "apps/v1")], [an_object("Deployment", "apps/v1")], [pod("Failed")])
