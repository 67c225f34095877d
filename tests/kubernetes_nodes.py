"""Machines for the API server of tests: a thread plays Job controller, scheduler and kubelet, and runs the pods' commands here."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.lib.threads import daemon
from tests import certificates
from tests.kubernetes_server import JOBS, PODS, SECRETS, KubernetesServer

NODES = "/api/v1/nodes"
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}

#: Runs a command in its own view of /run, to which files of a Secret were copied, as the process itself, so that it gets all signals.
MOUNTED = 'mount -t tmpfs tmpfs /run && mkdir -p "$1" && cp -p "$0"/* "$1" && shift && exec "$@"'


class KubernetesNodes:
    """Two machines, node-0 and node-1. Pods wait as unschedulable until `has_room` is set. Pods of a Job are made once."""

    def __init__(self, server: KubernetesServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.has_room = threading.Event()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}  # name of a pod -> its process
        self._made: set[str] = set()
        self._stopped = threading.Event()
        self._logs = _LogServer(folder)
        for number in range(2):
            self._add_node(f"node-{number}")
        self._thread = daemon(self._run, name="kubernetes nodes")

    def _add_node(self, name: str) -> None:
        self.server.request("POST", NODES, {"metadata": {"name": name}})
        endpoint = {"kubeletEndpoint": {"Port": self._logs.port}}
        status = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "daemonEndpoints": endpoint}
        self.server.request("PATCH", f"{NODES}/{name}/status", {"status": status})

    def _run(self) -> None:
        while not self._stopped.wait(0.1):
            for job in self.server.request("GET", JOBS)["items"]:
                if job["metadata"]["uid"] not in self._made and "deletionTimestamp" not in job["metadata"]:
                    self._made.add(job["metadata"]["uid"])
                    self._make_pods(job)
            for pod in self.server.request("GET", PODS)["items"]:
                self._look(pod, pod["metadata"]["name"])

    def _make_pods(self, job: dict[str, Any]) -> None:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
        for index in range(job["spec"]["parallelism"]):
            template = job["spec"]["template"]
            metadata = {"name": f"{owner['name']}-{index}", "labels": template["metadata"]["labels"], "ownerReferences": [owner]}
            self.server.request("POST", PODS, {"metadata": metadata, "spec": template["spec"]})
            self._set(metadata["name"], {"phase": "Pending", "conditions": [UNSCHEDULABLE]})

    def _look(self, pod: dict[str, Any], name: str) -> None:
        process = self.processes.get(name)
        if process is None and self.has_room.is_set() and "deletionTimestamp" not in pod["metadata"]:
            node = f"node-{name[-1]}"
            self.server.request("POST", f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}})
            self.processes[name] = self._start(pod["spec"], name, node)
            self._set_container(name, "Running", running={})
        elif process is not None and "deletionTimestamp" in pod["metadata"]:
            process.send_signal(signal.SIGTERM)
            process.wait(pod["spec"]["terminationGracePeriodSeconds"])
            self.server.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        elif process is not None and (status := process.poll()) is not None and pod["status"]["phase"] == "Running":
            self._set_container(
                name, "Failed" if status else "Succeeded", terminated={"exitCode": status, "reason": "Error" * bool(status)}
            )

    def _start(self, spec: dict[str, Any], name: str, node: str) -> subprocess.Popen[bytes]:
        (container,) = spec["containers"]
        (mount,) = container["volumeMounts"]
        (volume,) = [each["secret"] for each in spec["volumes"] if each["name"] == mount["name"]]
        (files := self.folder / f"{name}-files").mkdir(parents=True)
        for key, value in self._secret(volume["secretName"]).items():
            (files / key).write_bytes(value)
            (files / key).chmod(volume["defaultMode"])
        env = {each["name"]: node if each.get("valueFrom") else each["value"] for each in container["env"]}
        for each in container.get("envFrom", ()):
            env.update({key: value.decode() for key, value in self._secret(each["secretRef"]["name"]).items()})
        command = [text.replace("$(NODE)", env["NODE"]) for text in container["command"]]
        alone = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)), "sh", "-c", MOUNTED]
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*alone, str(files), mount["mountPath"], *command],
                stdout=log,
                stderr=log,
                env={"PATH": path, "HOME": str(self.folder), **env},
                start_new_session=True,
            )

    def _secret(self, name: str) -> dict[str, bytes]:
        return {key: base64.b64decode(value) for key, value in self.server.request("GET", f"{SECRETS}/{name}")["data"].items()}

    def _set_container(self, name: str, phase: str, **state: Any) -> None:
        self._set(name, {"phase": phase, "containerStatuses": [self.server.container_status("worker", **state)]})

    def _set(self, pod: str, status: dict[str, Any]) -> None:
        self.server.request("PATCH", f"{PODS}/{pod}/status", {"status": status})

    def stop(self) -> None:
        """Ends all processes, and removes the machines."""
        self._stopped.set()
        self._thread.join()
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        for number in range(2):
            self.server.request("DELETE", f"{NODES}/node-{number}")
        self._logs.stop()


class _LogServer:
    """The part of a kubelet that the API server asks for logs of containers."""

    def __init__(self, folder: Path) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                _, kind, _, pod, *_ = self.path.split("/")  # /containerLogs/NAMESPACE/POD/CONTAINER?...
                text = (folder / f"{pod}.log").read_bytes() if kind == "containerLogs" else b""
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        (made := folder / "kubelet").mkdir(parents=True)
        certificates.make(made)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made / "server.pem", made / "server.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = int(self._server.server_address[1])
        self._thread = daemon(self._server.serve_forever, name="kubelet logs")

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def kubernetes_nodes(server: KubernetesServer, folder: Path) -> Iterator[KubernetesNodes]:
    """Yields machines. Skips the test if processes cannot have mounts of their own here."""
    if not shutil.which("unshare") or subprocess.run(["unshare", "--mount", "--map-root-user", "true"], check=False).returncode:
        pytest.skip("NOT TESTED: Kubernetes; processes cannot have mounts of their own here, so pods cannot have files of a Secret")
    nodes = KubernetesNodes(server, folder)
    try:
        yield nodes
    finally:
        nodes.stop()
