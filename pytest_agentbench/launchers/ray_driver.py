"""The program that starts an actor on each node of a Ray cluster, and in it a node worker. A child of the session's process.

It is a process of its own because `ray.init` has no time limit. It ends when its stdin closes, and Ray then ends the actors. No
rollout, record or file of the run passes through Ray.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_agentbench.launchers.launcher import LaunchState, WorkerTerms
from pytest_agentbench.lib.redact import indented, tail
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.lib.wire import LOG, Messages, header, read_config

PAUSE = 2.0  # seconds between two looks at the nodes of the cluster
GRACE = 10.0  # seconds that node workers get to end
NICENESS = "RAY_worker_niceness"  # variable with the nice value of Ray's workers, 15 by default
ONCE = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 2}  # options of actors: Ray repeats nothing
ADDRESS = "Ray replaces a loopback address by another one of this machine, so give the address that `ray start` has printed"
VERSIONS = "start pytest with the versions of the cluster"


@dataclass(frozen=True)
class RayPlan:
    """The driver's configuration."""

    address: str  # HOST:PORT, or `auto`
    cluster: str  # the cluster in words, for messages
    timeout: float  # seconds in which the cluster has to answer
    terms: WorkerTerms
    nodes: int | None  # number of node workers; None: one for each node that has the resources
    slots: int | None  # slots of each node worker; None: the concurrency is divided among the nodes of the cluster
    reserved: dict[str, float]  # resource of Ray -> amount for each node worker
    runtime_env: dict[str, Any]
    logs: str  # folder on each node for logs; empty: a temporary one


@dataclass(frozen=True)
class StartFailed:
    """No node worker can be started. The driver ends after it."""

    reason: str


#: Each LaunchState replaces the one before, except for its `problem`.
FromDriver = LaunchState | StartFailed
FROM_DRIVER: Messages[FromDriver] = Messages(FromDriver)


class NodeActor:
    """The actor on a node. Its class is sent to the nodes, so it uses nothing else of this package."""

    def start(self, options: list[str], token: str, logs: str, node: str) -> tuple[int, int, str]:
        """Starts the node worker. Returns its nice value, its process id and the folder of its logs."""
        folder = Path(logs) / node if logs else Path(tempfile.mkdtemp(prefix="agentbench-worker-"))
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "worker.log"
        command = [sys.executable, "-m", "pytest_agentbench.cli", "worker", *options, "--with-stdin", "--node", node, "--logs", str(folder)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=self._environment(), start_new_session=True
            )
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(f"{token}\n".encode())
            self.process.stdin.flush()
        return os.nice(0), self.process.pid, str(folder)

    @staticmethod
    def _environment() -> dict[str, str]:
        """Returns the environment without variables that Ray has set, and without its token, which agents must not get."""
        at_start = {line.partition("=")[0] for line in Path("/proc/self/environ").read_text(errors="replace").split("\0")}
        by_ray = {"OMP_NUM_THREADS", "PYTHONBREAKPOINT", "SPT_NOENV"} - at_start
        return {name: value for name, value in os.environ.items() if not name.startswith("RAY_") and name not in by_ray}

    def wait(self) -> tuple[int, str]:
        """Waits for the end of the node worker. Returns its exit status and the end of its log. This process ends soon afterwards."""
        status = self.process.wait()
        leave = threading.Timer(2, os._exit, (0,))  # Ray may have lost this actor, and would not end it then.
        leave.daemon = True
        leave.start()
        return status, self.log.read_text(errors="replace")[-1000:]

    def end(self, seconds: float) -> None:
        """Ends the node worker, and returns when it has ended."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Driver:
    """Starts actors on the nodes of the cluster, also on nodes that join later, and tells the launcher about them."""

    def __init__(self, plan: RayPlan, out: int) -> None:
        """`out` is the descriptor for messages to the launcher."""
        self._plan, self._out = plan, out
        self._state = LaunchState()  # its id is empty until this process is connected
        self._slots = plan.slots
        self._actors: dict[str, Any] = {}  # id of a node -> its actor
        self._names: dict[str, str] = {}  # id of a node -> name of its node worker
        self._lost: set[str] = set()  # ids of nodes whose actors were lost
        self._calls: dict[Any, str] = {}  # call of an actor that has not ended -> id of its node
        self._started: set[str] = set()  # ids of nodes whose node workers were started

    def connect(self) -> None:
        """Connects to the cluster. Ends this process with a message if that fails or takes too long."""
        import ray

        plan = self._plan
        late = threading.Timer(plan.timeout, self._fail, (f"did not answer within {plan.timeout:g} s",))
        late.daemon = True
        late.start()
        try:
            if ":" in plan.address:
                host, _, port = plan.address.rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), plan.timeout).close()
            variables = {NICENESS: "0", **plan.runtime_env.get("env_vars", {})}
            ray.init(plan.address, log_to_driver=False, runtime_env={**plan.runtime_env, "env_vars": variables})
        except BaseException as error:  # Ray also raises SystemExit.
            self._fail(f"cannot be used: {_one_line(error)}")
        late.cancel()

    def _fail(self, reason: str) -> None:
        """Tells the launcher that no node worker can be started, with what Ray has logged and what may help, and ends this process."""
        loopback = self._plan.address.startswith(("127.", "localhost:")) and "did not answer" in reason
        hints = (_last_warning(), ADDRESS if loopback else "", VERSIONS if "Version mismatch" in reason else "")
        self._write(StartFailed("; ".join((f"{self._plan.cluster} {reason}", *filter(None, hints)))))
        os._exit(1)

    def _write(self, message: FromDriver) -> None:
        os.write(self._out, json.dumps(header(message)).encode() + b"\n")

    def _tell(self, problem: str = "", **changes: str) -> None:
        """Tells the launcher about a problem, or of changes of the state."""
        state = replace(self._state, problem=problem, **changes)
        if problem:
            _log(problem)
        if state != self._state:
            self._write(state)
            self._state = replace(state, problem="")

    def serve(self) -> None:
        """Starts actors and follows them, until this process is ended."""
        import ray

        missing = self._start_actors()
        self._tell(id=f"Ray job {ray.get_runtime_context().get_job_id()}", waiting=missing or self._starting)
        while True:
            missing = self._start_actors()
            done = []
            if self._calls:
                done, _ = ray.wait([*self._calls], num_returns=1, timeout=PAUSE)
            else:
                time.sleep(PAUSE)
            for call in done:
                self._take(call)
            starting = self._actors.keys() - self._started - self._lost
            self._tell(waiting=missing or (self._starting if starting else ""))

    @property
    def _starting(self) -> str:
        return f"its actors start{self._resources(', which need {} on their nodes')}"

    def _resources(self, text: str) -> str:
        """Returns a text with the reserved resources in it, or an empty text if there are none."""
        names = ", ".join(f"{name} {amount:g}" for name, amount in self._plan.reserved.items())
        return text.format(names) if names else ""

    def _start_actors(self) -> str:
        """Starts an actor on each further node that has the resources. Returns why nodes are missing."""
        import ray

        plan = self._plan
        nodes = [node for node in ray.nodes() if node["Alive"]]
        able = [node for node in nodes if all(node["Resources"].get(name, 0) >= amount for name, amount in plan.reserved.items())]
        if not able and not self._actors and plan.nodes is None:
            self._fail(f"has no node with {self._resources('{}')}; its nodes have " + "; ".join(map(_resources_of, nodes)))
        self._slots = self._slots or plan.terms.slots(len(able))
        room = (plan.nodes or len(able) + len(self._actors)) - len(self._actors.keys() - self._lost)
        for node in [each for each in able if each["NodeID"] not in self._actors][: max(0, room)]:
            self._start(node)
        have = len(self._actors.keys() - self._lost)
        return f"{have} of {plan.nodes} nodes{self._resources(' with {}')} are there" if plan.nodes and have < plan.nodes else ""

    def _start(self, node: Mapping[str, Any]) -> None:
        """Starts the actor of a node, and tells it to start its node worker."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        plan, id = self._plan, node["NodeID"]
        host = node["NodeManagerHostname"]
        same = sum(name.startswith(host) for name in self._names.values())
        name = self._names[id] = f"{host}-{same + 1}" if same else host
        resources = dict(plan.reserved)
        cpus, gpus = resources.pop("CPU", 0), resources.pop("GPU", 0)
        place = NodeAffinitySchedulingStrategy(id, soft=False)
        kind = ray.remote(num_cpus=cpus, num_gpus=gpus, resources=resources, scheduling_strategy=place, **ONCE)(NodeActor)
        actor = kind.remote()
        self._actors[id] = actor
        assert self._slots is not None
        self._calls[actor.start.remote([*plan.terms.options(self._slots)], plan.terms.token, plan.logs, name)] = id

    def _take(self, call: Any) -> None:
        """Tells the result of a call that has ended."""
        import ray

        id = self._calls.pop(call)
        name = self._names[id]
        try:
            result = ray.get(call)
        except Exception as error:  # Ray raises errors of the actor, and its own.
            self._lost.add(id)
            self._tell(f"the actor of node worker {name} is lost: {_first_line(error)}")
            return
        if id not in self._started:
            self._started.add(id)
            niceness, pid, folder = result
            _log(f"node worker {name}: process {pid}, logs in {folder} on its node")
            self._calls[self._actors[id].wait.remote()] = id
            if niceness > 0:
                self._tell(
                    f"node worker {name} has the nice value {niceness}, so other processes can delay its timestamps; start Ray "
                    f"on its node without `nice`, and with {NICENESS}=0"
                )
        elif result[0]:
            self._tell(f"node worker {name} ended with exit code {result[0]}; the end of its log:\n{indented(result[1].splitlines())}")

    def end(self) -> None:
        """Ends the node workers, and then this process."""
        import ray

        if not self._state.id:
            os._exit(0)
        late = threading.Timer(GRACE + 2, os._exit, (1,))  # Ray waits for a head that is gone.
        late.daemon = True
        late.start()
        ends = [self._actors[id].end.remote(GRACE) for id in self._started - self._lost]
        if ends:
            ray.wait(ends, num_returns=len(ends), timeout=GRACE + 1)
        ray.shutdown()
        os._exit(0)


def _one_line(error: BaseException) -> str:
    """Returns the first lines of an exception's text, up to an empty one, in one line."""
    return " ".join(str(error).strip().partition("\n\n")[0].split()) or type(error).__name__


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _last_warning() -> str:
    """Returns the last warning that Ray has logged in this process. Its exceptions do not mention a wrong token, for example."""
    lines = tail(Path(os.environ[LOG]))
    found = (re.match(rf"\[.* W {os.getpid()} \d+\] \S+ (.*)", line) for line in reversed(lines))
    return next((each[1].strip() for each in found if each), "")


def _resources_of(node: Mapping[str, Any]) -> str:
    shown = {name: amount for name, amount in node["Resources"].items() if ":" not in name and "memory" not in name}
    return ", ".join(f"{name} {amount:g}" for name, amount in shown.items()) or "none"


def _log(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)  # noqa: T201 - stderr is the driver's log


def _end_with_stdin(driver: Driver) -> None:
    while os.read(0, 4096):
        pass
    driver.end()


def main() -> None:
    plan = read_config(RayPlan)
    out = os.dup(1)
    os.dup2(2, 1)  # What Ray prints goes to the log.
    driver = Driver(plan, out)
    daemon(_end_with_stdin, driver, name="stdin")
    driver.connect()
    driver.serve()


if __name__ == "__main__":
    main()
