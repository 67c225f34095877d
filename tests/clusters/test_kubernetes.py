"""The client of Kubernetes, against a real API server. The tests play scheduler, kubelet and garbage collector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.clusters.kubernetes import Cluster
from pytest_agentbench.clusters.manifests import OWNER, RUN
from pytest_agentbench.errors import BackendError, ConfigError
from tests.kubernetes_server import JOBS, PODS, KubernetesServer
from tests.node_workers import free_port
from tests.waits import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

#: A kind of objects that is not built in, as operators define them.
GRAPHS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "graphs.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "graphs", "singular": "graph", "kind": "Graph"},
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def job(name: str) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "worker", "image": "x"}]}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template}}


def pod(name: str, node: str = "") -> dict[str, Any]:
    spec = {"containers": [{"name": "worker", "image": "x"}], **({"nodeName": node} if node else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def cluster(api_server: KubernetesServer) -> Cluster:
    return api_server.cluster()


def test_create_and_delete_by_label(cluster: Cluster, api_server: KubernetesServer) -> None:
    """Objects have the labels, their pods as well. Deletion removes all of one run with what belongs to it, and nothing of another."""
    mine, other = {RUN: "r1", OWNER: "me"}, {RUN: "r2", OWNER: "me"}
    created, _ = cluster.apply([job("first"), {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"}}], mine)
    cluster.apply([job("second")], other)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "first", "uid": created["metadata"]["uid"]}
    owned = pod("first-0")
    owned["metadata"]["ownerReferences"] = [owner]
    api_server.request("POST", PODS, owned)

    assert mine == {name: cluster.get("batch/v1", "Job", "first")["metadata"]["labels"][name] for name in mine}
    assert mine.items() <= cluster.get("batch/v1", "Job", "first")["spec"]["template"]["metadata"]["labels"].items()
    assert ["first"] == [each["metadata"]["name"] for each in cluster.objects("batch/v1", "Job", f"{RUN}=r1")]

    assert ["Job first", "Secret token"] == cluster.delete(f"{RUN}=r1")
    assert "first-0" not in [each["metadata"]["name"] for each in cluster.objects("v1", "Pod")]
    assert ["second"] == [each["metadata"]["name"] for each in cluster.objects("batch/v1", "Job")]
    assert [] == cluster.delete(f"{RUN}=r1")
    assert ["Job second"] == cluster.delete(f"{OWNER}=me")


def test_deletion_that_does_not_end(cluster: Cluster, api_server: KubernetesServer) -> None:
    """An object that something else holds stays. The error names it after the time limit."""
    held = job("stays")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    cluster.apply([held], {RUN: "stays"})

    with pytest.raises(BackendError, match=r"still there 0 s after their deletion: Job stays; see `kubectl describe`"):
        cluster.delete(f"{RUN}=stays", limit=0.4)
    api_server.request("PATCH", f"{JOBS}/stays", {"metadata": {"finalizers": None}})


def test_kinds_of_an_operator(cluster: Cluster, api_server: KubernetesServer) -> None:
    """A kind is found as soon as its definition is there. Before, the error names it, and deletion skips it."""
    graph = {"apiVersion": "example.com/v1beta1", "kind": "Graph", "metadata": {"name": "g"}, "spec": {"workers": 3}}
    with pytest.raises(BackendError, match=r"has no kind Graph of example\.com/v1beta1; install what defines it"):
        cluster.apply([graph], {RUN: "g"})
    kinds = [("example.com/v1beta1", "Graph")]
    assert [] == cluster.delete(f"{RUN}=g", kinds)

    api_server.request("POST", CRDS, GRAPHS)
    wait_for(lambda: "Established" in str(api_server.request("GET", f"{CRDS}/graphs.example.com")["status"]), "the definition")
    wait_for(lambda: _creates(cluster, graph), "the kind")

    assert {"workers": 3} == cluster.get(*kinds[0], "g")["spec"]
    api_server.request("DELETE", "/apis/example.com/v1beta1/namespaces/default/graphs/g")
    with pytest.raises(BackendError, match=r"^CustomResourceDefinition graphs\.example\.com is in no namespace; create it before"):
        cluster.apply([GRAPHS], {RUN: "g"})


def _creates(cluster: Cluster, body: dict[str, Any]) -> bool:
    try:
        cluster.apply([body], {RUN: "g"})
    except BackendError:
        return False
    return True


def test_why_pods_wait(cluster: Cluster, api_server: KubernetesServer) -> None:
    """A pod's wait is explained by its scheduler, its containers, or its newest event. A failed one has its exit status."""
    names = ["p-event", "p-failed", "p-image", "p-runs", "p-schedule"]
    cluster.apply([pod(name) for name in names], {RUN: "pods"})
    for name, status in {
        "p-failed": {
            "phase": "Failed",
            "containerStatuses": [api_server.container_status("worker", terminated={"exitCode": 137, "reason": "OOMKilled"})],
        },
        "p-image": {"containerStatuses": [api_server.container_status("worker", waiting={"reason": "ImagePullBackOff"})]},
        "p-runs": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        "p-schedule": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]},
    }.items():
        api_server.request("PATCH", f"{PODS}/{name}/status", {"status": status})
    api_server.event("Pod", "p-event", "FailedMount", 'secret "x" not found')

    found = {pod.name: pod for pod in cluster.pods(f"{RUN}=pods")}

    assert names == [*found]
    assert {
        "p-event": 'FailedMount: secret "x" not found',
        "p-failed": "",
        "p-image": "ImagePullBackOff",
        "p-runs": "",
        "p-schedule": "Unschedulable: 0/3 nodes",
    } == {name: pod.waiting for name, pod in found.items()}
    assert "container worker ended with exit status 137 (OOMKilled)" == found["p-failed"].failure
    assert found["p-runs"].is_ready
    cluster.delete(f"{RUN}=pods")


def test_logs_that_cannot_be_read(cluster: Cluster, api_server: KubernetesServer, tmp_path: Path) -> None:
    """If a node does not answer, its logs cannot be read. Each is a sentence, and not an error. A pod without a node has no log."""
    cluster.apply([pod("silent", node="nowhere"), pod("waiting")], {RUN: "logs"})
    problems = cluster.save_logs(f"{RUN}=logs", tmp_path)

    assert 1 == len(problems)
    assert "refuses to get the log of container worker of pod silent" in problems[0]
    assert [] == list(tmp_path.iterdir())
    api_server.request("DELETE", f"{PODS}/silent", {"gracePeriodSeconds": 0})
    cluster.delete(f"{RUN}=logs")


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (
            "expired",
            r"^https://127\.0\.0\.1:\d+ refuses the token or certificate of context expired of .*: Unauthorized; it may have expired",
        ),
        (
            "weak",
            r'^context weak of .* may not create jobs in .* of https://.*: jobs\.batch is forbidden: User "weak" .*; grant it the ver',
        ),
    ],
)
def test_refused(api_server: KubernetesServer, context: str, message: str) -> None:
    """A token that is not valid and missing rights are different sentences. The latter names verb and resource."""
    with pytest.raises(BackendError, match=message):
        api_server.cluster(context).apply([job("refused")], {})


def test_refused_manifests(api_server: KubernetesServer, cluster: Cluster) -> None:
    """An object that exists, one with a wrong field, a namespace that does not exist, and a server that does not answer."""
    cluster.apply([pod("twice")], {RUN: "twice"})
    with pytest.raises(BackendError, match=r'refuses to create Pod twice in namespace default: pods "twice" already exists$'):
        cluster.apply([pod("twice")], {})
    cluster.delete(f"{RUN}=twice")
    with pytest.raises(BackendError, match=r"refuses to create Pod Wrong_Name in namespace default: .*lowercase"):
        cluster.apply([pod("Wrong_Name")], {})
    with pytest.raises(BackendError, match=r'cannot create Pod x in namespace nowhere: namespaces "nowhere" not found; create the namesp'):
        api_server.cluster(namespace="nowhere").apply([pod("x")], {})
    text = api_server.kubeconfig.read_text().replace(str(api_server.port), str(free_port()))
    (away := api_server.folder / "away").write_text(text)
    with pytest.raises(BackendError, match=r"cannot be asked to get the kinds of v1: \w+: .*; it is the server of context tests of .*away"):
        Cluster(kubeconfig=str(away)).pods("a=b")


def test_configuration(api_server: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file comes from KUBECONFIG or ~/.kube/config. Each error names it, and what would work."""
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    assert "default" == Cluster().namespace
    with pytest.raises(ConfigError, match=r"^gpu\.yaml: .*has no context 'test'; its contexts are expired, session, tests, weak$"):
        Cluster(context="test", where="gpu.yaml")

    (wrong := tmp_path / "wrong").write_text("kind: Config")
    with pytest.raises(ConfigError, match=r"^kubernetes: .*wrong cannot be used: .*`kubectl get pods` has to work with it$"):
        Cluster(kubeconfig=str(wrong))
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"there is no file .*/\.kube/config; write a kubeconfig there, or name one with"):
        Cluster()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConfigError, match=r"the pod's service account cannot be used: "):
        Cluster()
