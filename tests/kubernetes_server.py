"""A real Kubernetes API server for tests, with etcd, on 127.0.0.1. There is no scheduler, controller or kubelet: tests play their parts.

`.ci/kube-apiserver` builds the program, in minutes, and keeps it in the user's cache.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.clusters.kubernetes import Cluster
from pytest_agentbench.errors import AgentbenchError
from pytest_agentbench.lib.threads import daemon
from tests.base_image import cache_folder
from tests.node_workers import free_port

PROGRAM = "kube-apiserver-1.20.2"
START = 60.0  # seconds that etcd and the API server may take
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"

#: Token, user, number, groups.
TOKENS = "token-of-admin,admin,1,system:masters\ntoken-of-weak,weak,2\ntoken-of-session,session,3\n"

PODS, SECRETS, SERVICES = (f"/api/v1/namespaces/default/{each}" for each in ("pods", "secrets", "services"))
JOBS = "/apis/batch/v1/namespaces/default/jobs"
COLLECTED, OWNED = (JOBS, PODS, SERVICES, SECRETS), (PODS, SECRETS, SERVICES)  # what the collector looks at

#: The right of the user `weak`: to look at pods.
LOOK = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: tests
clusters:
- {{name: tests, cluster: {{server: "https://127.0.0.1:{port}", certificate-authority: "{folder}/certificates/apiserver.crt"}}}}
users:
- {{name: admin, user: {{token: token-of-admin}}}}
- {{name: weak, user: {{token: token-of-weak}}}}
- {{name: session, user: {{token: token-of-session}}}}
- {{name: expired, user: {{token: no-such-token}}}}
contexts:
- {{name: tests, context: {{cluster: tests, user: admin}}}}
- {{name: weak, context: {{cluster: tests, user: weak}}}}
- {{name: session, context: {{cluster: tests, user: session}}}}
- {{name: expired, context: {{cluster: tests, user: expired}}}}
"""


class KubernetesServer:
    """etcd and an API server in a folder. `kubeconfig` has the contexts `tests` (may do all), `weak` (may only look at pods), `session`
    (has the rights that a test gives it) and `expired` (has a token that is not valid).
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.kubeconfig = folder / "kubeconfig"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._client: Any = None

    def start(self) -> None:
        """Starts both, and waits until the API server is ready. Skips the test if a program is not there."""
        program = cache_folder() / PROGRAM
        if not program.exists():
            pytest.skip(f"NOT TESTED: Kubernetes; no {PROGRAM} in the user's cache; .ci/kube-apiserver builds it in minutes")
        if shutil.which("etcd") is None:
            pytest.skip("NOT TESTED: Kubernetes; etcd is not installed (Debian: etcd-server)")
        etcd, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        (self.folder / "tokens.csv").write_text(TOKENS)
        self.kubeconfig.write_text(KUBECONFIG.format(port=self.port, folder=self.folder))
        self._run("openssl", "genrsa", "-out", str(self.folder / "accounts.key"), "2048").wait(START)
        self._run(
            *("etcd", "--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync", "--listen-client-urls", etcd),
            *("--advertise-client-urls", etcd, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        )
        self._run(
            *(str(program), "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1"),
            *("--secure-port", str(self.port), "--cert-dir", str(self.folder / "certificates")),
            *("--token-auth-file", str(self.folder / "tokens.csv"), "--authorization-mode", "RBAC"),
            "--anonymous-auth=false",
            *("--service-account-issuer", "https://kubernetes", "--service-account-key-file", str(self.folder / "accounts.key")),
            *("--service-account-signing-key-file", str(self.folder / "accounts.key"), "--service-cluster-ip-range", "10.0.0.0/24"),
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,Priority",
        )
        self._wait()
        self.permit("weak", [LOOK])

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{Path(command[0]).name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, start_new_session=True)
        self._processes.append(process)
        return process

    def _wait(self) -> None:
        from kubernetes.client import ApiException

        deadline = time.monotonic() + START
        while True:
            try:
                self.cluster().objects("v1", "ConfigMap")
                self.request("GET", "/api/v1/namespaces/default")
                return
            except (AgentbenchError, ApiException):
                assert time.monotonic() < deadline, (self.folder / f"{PROGRAM}.log").read_text()[-3000:]
            time.sleep(0.2)

    def cluster(self, context: str = "tests", namespace: str = "default") -> Cluster:
        return Cluster(kubeconfig=str(self.kubeconfig), context=context, namespace=namespace)

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Sends a request as the administrator. `path` begins with /api or /apis. Returns the answer."""
        from kubernetes.config import new_client_from_config
        from kubernetes.dynamic import DynamicClient

        if self._client is None:
            self._client = DynamicClient(new_client_from_config(str(self.kubeconfig)), discoverer=lambda *_: None)
        kind = {"content_type": "application/merge-patch+json"} if method == "PATCH" else {}
        return json.loads(self._client.request(method, path, body=body, serialize=False, _request_timeout=30, **kind).data)

    def permit(self, user: str, rules: object) -> None:
        """Gives rights in the namespace `default` to a user."""
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user}
        subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
        self.request("POST", f"{ROLES}/roles", {"metadata": {"name": user}, "rules": rules})
        self.request("POST", f"{ROLES}/rolebindings", {"metadata": {"name": user}, "roleRef": role, "subjects": subjects})

    def event(self, kind: str, name: str, reason: str, message: str) -> None:
        """Creates an event of an object."""
        involved = {"kind": kind, "name": name, "namespace": "default"}
        body = {"metadata": {"name": f"{name}.{time.monotonic_ns():x}"}, "involvedObject": involved, "reason": reason, "message": message}
        self.request("POST", "/api/v1/namespaces/default/events", body)

    @staticmethod
    def container_status(name: str, **state: Any) -> dict[str, Any]:
        """Returns what a kubelet says of a container."""
        return {"name": name, "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            process.wait(START)


class Collector:
    """Plays the garbage collector: when an object is deleted with all that belongs to it, deletes this, and then lets the object go."""

    def __init__(self, server: KubernetesServer) -> None:
        self._server, self._stopped = server, threading.Event()
        self._thread = daemon(self._run, name="collector")

    def _run(self) -> None:
        while not self._stopped.wait(0.1):
            for path in COLLECTED:
                for each in self._server.request("GET", path)["items"]:
                    if "foregroundDeletion" in each["metadata"].get("finalizers", ()):
                        self._finish(f"{path}/{each['metadata']['name']}", each["metadata"])

    def _finish(self, path: str, metadata: dict[str, Any]) -> None:
        for owned in OWNED:
            for each in self._server.request("GET", owned)["items"]:
                if metadata["uid"] in [owner["uid"] for owner in each["metadata"].get("ownerReferences", ())]:
                    self._server.request("DELETE", f"{owned}/{each['metadata']['name']}", {"gracePeriodSeconds": 0})
        others = [each for each in metadata["finalizers"] if each != "foregroundDeletion"]
        self._server.request("PATCH", path, {"metadata": {"finalizers": others or None}})

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        self._thread.join()


@contextmanager
def kubernetes_server(folder: Path) -> Iterator[KubernetesServer]:
    server = KubernetesServer(folder)
    try:
        server.start()
        collector = Collector(server)
        yield server
        collector.stop()
    finally:
        server.stop()
