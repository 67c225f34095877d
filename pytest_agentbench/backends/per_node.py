"""Backends with `placement: per-node`: each node worker boots a copy on its own machine, and the session itself boots none."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.backends.backend import Backend, Tell
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import Endpoint
from pytest_agentbench.suites.arms import CARRY, Arm
from pytest_agentbench.suites.hashes import digest

if TYPE_CHECKING:
    from pytest_agentbench.backends.spec import SessionTerms

PER_NODE = "per-node"

#: URL for calls that the session's own machine makes, such as those of the fixture `llm`. They fail, and the error shows this name.
NOWHERE = "http://each-node-has-its-own-backend.invalid/v1"


@dataclass(frozen=True)
class NodeBackend:
    """What a node worker needs to boot its copy of the backend, from the same YAML in its working directory."""

    name: str  # value of --agentbench-backend
    changes: tuple[tuple[str, Any], ...]  # changes of --agentbench-set
    identity: str  # hash of the backend's identity in the session
    gpu_wait: float  # seconds to wait for GPUs that are in use
    warm_up: int  # requests before anything is measured, unless the YAML has a number
    patience: float | None  # seconds to wait for a server that stopped answering; None: the default

    def make(self, root: Path, node: str) -> Backend:
        """Returns the backend of this machine, not yet started. Raises ConfigError if its YAML is missing or differs."""
        from pytest_agentbench.backends.spec import SessionTerms, load_backend  # These import pydantic, which the pool does without.

        terms = SessionTerms(gpu_wait=self.gpu_wait, warm_up=self.warm_up, patience=self.patience)
        backend = load_backend(self.name, root, self.changes).make(terms)
        if digest(backend.identity) != self.identity:
            raise ConfigError(
                f"the backend {self.name!r} of the node {node} (in {root}) has other settings than that of the session; "
                "start the node worker in a copy of the session's project"
            )
        return backend


class OnNodes(Backend):
    """Stands in a session for a backend of which each node worker boots a copy."""

    def __init__(self, backend: Backend, model: str | None, name: str, changes: Sequence[tuple[str, Any]], terms: SessionTerms) -> None:
        """Takes the backend as it would be without nodes, its `model`, and the values of the options that choose it."""
        self.name, self.note, self.thresholds, self.description = backend.name, backend.note, backend.thresholds, backend.description
        self._identity, self._model = backend.identity, model
        self.node_backend = NodeBackend(name, tuple(changes), digest(self._identity), terms.gpu_wait, terms.warm_up, terms.patience)
        self._stopped = threading.Event()

    @property
    def identity(self) -> dict[str, Any]:
        return self._identity

    def start(self, directory: Path) -> Endpoint:
        """Returns an endpoint that nothing can call."""
        del directory
        return Endpoint(NOWHERE, self._model or "", self.name)

    def watch(self, tell: Tell) -> str | None:
        """Waits for `stop`."""
        del tell
        self._stopped.wait()
        return None

    def stop(self) -> None:
        self._stopped.set()


def refuse_placement(backend: Backend, arms: Sequence[Arm], cache: str, *, uses_nodes: bool) -> None:
    """Raises ConfigError if a backend with `placement: per-node` cannot be used with these options."""
    copies = [each for each in getattr(backend, "backends", {"": backend}).values() if isinstance(each, OnNodes)]
    if not copies:
        return
    where = f"the backend {copies[0].name!r} has `placement: per-node`"
    if not uses_nodes:
        raise ConfigError(f"{where}, so it needs node workers; add --agentbench-nodes=local:N or --agentbench-nodes-listen")
    if copies[0] is not backend:
        raise ConfigError(f"{where}, and {' and '.join(arm.name for arm in arms)} need another backend each; use `placement: shared`")
    if cache != CARRY:
        raise ConfigError(f"{where}, and --agentbench-cache={cache} changes the cache of one backend; use `placement: shared`")
