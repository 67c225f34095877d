"""`--agentbench-nodes=ray[:ADDRESS]`: a node worker on each node of a Ray cluster. This process does not import Ray; the driver does."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.util import find_spec
from queue import Empty, SimpleQueue
from typing import Any

from pydantic import Field

from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.launchers.launcher import Launcher, LaunchState, WorkerTerms, each_with
from pytest_agentbench.launchers.ray_driver import FROM_DRIVER, FromDriver, RayPlan, StartFailed
from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.config import PositiveSeconds, Spec
from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.threads import daemon

DRIVER = "pytest_agentbench.launchers.ray_driver"
GRACE = 15.0  # seconds that the driver gets to end all node workers
ANY = "auto"  # Ray's word for the cluster of this machine


class RayNodes(Spec):
    """The keys of `nodes: {ray: ...}`."""

    nodes: int | None = Field(
        default=None,
        ge=1,
        description="Number of node workers, each on a node of its own. Without it, there is one on each node that has the resources.",
    )
    slots: int | None = Field(
        default=None, ge=1, description="Rollouts that each node worker runs at the same time. Without it, the concurrency is divided."
    )
    num_cpus: float = Field(default=0, ge=0, description="CPUs that Ray reserves for each node worker.")
    num_gpus: float = Field(default=0, ge=0, description="GPUs that Ray reserves for each node worker. With 0, it sees none.")
    resources: dict[str, float] = Field(default={}, description="Other resources that Ray reserves for each node worker: name -> amount.")
    runtime_env: dict[str, Any] = Field(
        default={},
        description="Ray's `runtime_env` of the node workers, such as `{working_dir: .}`, if nodes do not have the code or the packages.",
    )
    timeout: PositiveSeconds = Field(default=30.0, description="Time in which the cluster has to answer.")
    logs: str = Field(
        default="", description="Folder on each node for the logs of node workers. Without it, each has a new temporary folder."
    )

    @property
    def reserved(self) -> dict[str, float]:
        """What Ray reserves for each node worker, by the names of Ray's resources."""
        all_of_them = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        return {name: amount for name, amount in all_of_them.items() if amount}


class Ray(Launcher):
    """Starts a process, the driver, that starts an actor on each node. Each actor starts a node worker, which ends with it."""

    settings_class = RayNodes

    def __init__(self, argument: str, settings: RayNodes) -> None:
        """Takes the address of the cluster. Without it, it is that of RAY_ADDRESS or of the cluster that runs on this machine."""
        self._address = argument or os.environ.get("RAY_ADDRESS") or ANY
        host, _, port = self._address.rpartition(":")
        if self._address != ANY and ("/" in host or not host or not port.isdecimal()):
            kind = ", which belongs to Ray Client or Ray Jobs; node workers are started without them" if "://" in self._address else ""
            raise ConfigError(
                f"--agentbench-nodes=ray: the address of the cluster is {self._address}{kind}; start pytest on a node of the Ray cluster, "
                "and give the address that `ray start` has printed, such as 10.0.0.5:6379"
            )
        self._settings = settings
        self._child: Child | None = None
        self._messages: SimpleQueue[FromDriver] = SimpleQueue()
        self._state = LaunchState(waiting=f"{self._cluster} has not answered yet")

    @property
    def _cluster(self) -> str:
        return "the Ray cluster of this machine" if self._address == ANY else f"the Ray cluster at {self._address}"

    def _plan(self, terms: WorkerTerms) -> RayPlan:
        settings = self._settings
        return RayPlan(
            address=self._address,
            cluster=self._cluster,
            timeout=settings.timeout,
            terms=terms,
            nodes=settings.nodes,
            slots=self._slots(terms),
            reserved=settings.reserved,
            runtime_env=settings.runtime_env,
            logs=settings.logs,
        )

    def text(self, terms: WorkerTerms) -> str:
        settings = self._settings
        reserved = ", ".join(f"{name} {amount:g}" for name, amount in settings.reserved.items()) or "nothing"
        options = [*terms.options(self._slots(terms) or 1)]
        options[-1] = str(self._slots(terms) or "CONCURRENCY/NODES")
        return (
            f"# an actor on {self._places} of {self._cluster}; it reserves {reserved} and starts\n"
            f"agentbench worker {' '.join(options)} --with-stdin --node HOST --logs {settings.logs or 'TEMPORARY-FOLDER'}"
        )

    def sentence(self, terms: WorkerTerms) -> str:
        slots = self._slots(terms)
        each = each_with(slots) if slots else f"together with {terms.concurrency} slots or more"
        return f"one on {self._places} of {self._cluster}, {each}"

    @property
    def _places(self) -> str:
        count = self._settings.nodes
        return "each node" if count is None else f"{count} node{'s' * (count > 1)}"

    def _slots(self, terms: WorkerTerms) -> int | None:
        """Returns the slots of each node worker, or None if they depend on the number of nodes."""
        settings = self._settings
        return settings.slots or (settings.nodes and terms.slots(settings.nodes))

    def check(self) -> None:
        if find_spec("ray") is None:
            raise ConfigError("--agentbench-nodes=ray: Ray is not installed: pip install 'pytest-agentbench[ray]'")

    def start(self, terms: WorkerTerms) -> None:
        self._child = Child(DRIVER, self._plan(terms), terms.logs / "ray.log", variables={"RAY_USAGE_STATS_ENABLED": "0"})
        daemon(self._read, self._child, name="ray")

    def _read(self, child: Child) -> None:
        """Reads the driver's messages until it ends."""
        assert child.process.stdout is not None
        with suppress(ValueError):  # `stop` has closed the pipe.
            for line in child.process.stdout:
                self._messages.put(FROM_DRIVER.read(json_text.loads(line)))
        self._messages.put(
            StartFailed(child.exit_message("ended; Ray then ends its actors and their node workers, if the head of the cluster answers"))
        )

    def state(self) -> LaunchState:
        with suppress(Empty):
            while not (state := self._next_state()).problem:
                self._state = state
            self._state = state
        return self._state

    def _next_state(self) -> LaunchState:
        """Returns the state in the driver's next message. Raises Empty if there is none, and BackendError if the start failed."""
        message = self._messages.get_nowait()
        if isinstance(message, LaunchState):
            return message
        if not self._state.id:
            raise BackendError(message.reason)
        return LaunchState(self._state.id, problem=message.reason)  # Other node workers may have joined, so the session decides.

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(GRACE)
