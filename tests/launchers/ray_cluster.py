"""A Ray cluster of three nodes on 127.0.0.1. Run as a program, it starts the cluster, which ends when its stdin closes.

The program reads commands from stdin: `add` starts a further node, and `versions X` makes the cluster say that it runs Ray X.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pytest_agentbench.lib.process import first_line, lives, with_variable
from tests.waits import wait_for

NODES = 3

#: Variable with which all processes of a cluster are started, also those of its actors, but not the drivers.
MARK = "CLUSTER_OF_A_TEST"

#: Variables of all processes of the cluster and of its drivers. The second keeps Ray from replacing 127.0.0.1 by another address.
VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}

#: The options of each node.
NODE: dict[str, Any] = {"num_cpus": 2, "node_ip_address": "127.0.0.1", "object_store_memory": 80 * 1024 * 1024}


class RayCluster:
    """A cluster in processes of its own. Drivers need its token."""

    def __init__(self, folder: Path) -> None:
        self.token, self.mark = secrets.token_hex(32), secrets.token_hex(8)
        self.variables = {**VARIABLES, "RAY_AUTH_TOKEN": self.token}
        self._sockets = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # The paths of Ray's sockets have 90 characters below it, of 107.
        environment = {**os.environ, **self.variables, MARK: self.mark, "TMPDIR": self._sockets}
        with (folder / "cluster.txt").open("w") as log:
            self.program = subprocess.Popen(
                [sys.executable, "-m", "tests.launchers.ray_cluster"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=Path(__file__).parents[2],
                start_new_session=True,
            )
        line, _ = first_line(self.program, 90)
        assert line, (folder / "cluster.txt").read_text()
        started = json.loads(line)
        self.address: str = started["address"]
        self.head: int = started["head"]
        self.raylets: list[int] = started["raylets"]

    def command(self, text: str) -> Any:
        """Sends a command to the program. Returns its result."""
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        self.program.stdin.write(f"{text}\n".encode())
        self.program.stdin.flush()
        return json.loads(self.program.stdout.readline())

    def processes(self, *words: str) -> list[int]:
        """Returns the processes of the cluster and of its actors whose command line contains one of the words."""
        pids = [pid for pid, mark in with_variable(MARK) if mark == self.mark and lives(pid)]
        return [pid for pid in pids if any(word in _command(pid) for word in words)]

    @property
    def actors(self) -> list[int]:
        return self.processes("ray::NodeActor")

    @property
    def node_workers(self) -> list[int]:
        """The processes of all node workers: supervisors, taps and runners."""
        return self.processes("pytest_agentbench.")

    def has_no_actors(self) -> None:
        """Waits until no process of any session is left in the cluster."""
        wait_for(lambda: not self.actors and not self.node_workers, "the end of actors and node workers", 60)

    def close(self) -> None:
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        self.program.stdin.close()
        try:
            self.program.wait(30)
        except subprocess.TimeoutExpired:
            self.program.kill()
            self.program.wait()
        self.program.stdout.close()
        for pid in self.processes(""):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._sockets, ignore_errors=True)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def main() -> None:
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    nodes = [cluster.head_node, *(cluster.add_node(**NODE) for _ in range(NODES - 1))]
    cluster.wait_for_nodes()
    known = {kind: each[0].process.pid for kind, each in cluster.head_node.all_processes.items()}
    raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
    print(json.dumps({"address": cluster.address, "head": known["gcs_server"], "raylets": raylets}), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["add"]:
                result = cluster.add_node(**NODE).all_processes["raylet"][0].process.pid
            case ["versions", version]:
                client = ray._raylet.GcsClient(address=cluster.address)
                key = (b"CLUSTER_METADATA", b"cluster")
                metadata = json.loads(client.internal_kv_get(key[0], key[1]))
                result, metadata["ray_version"] = metadata["ray_version"], version
                client.internal_kv_put(key[0], json.dumps(metadata).encode(), True, key[1])
        print(json.dumps(result), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
