"""A backend as the controller holds it: `start` gives an Endpoint that answered, `watch` ends when it dies, `stop` tears it down."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from pytest_agentbench.backends.machine.ports import shared_port
from pytest_agentbench.backends.machine.versions import told
from pytest_agentbench.backends.proof.ready import listed_models
from pytest_agentbench.backends.spec import AnySpec, EmbeddedSpec, UrlSpec
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.backends.telemetry.sampler import Sources, Target
from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.suites.hashes import file_digest

Tell = Callable[[Collection[str]], bool]

ENGINE = "engine"  # what a session calls the built-in one

#: aiohttp reads the certificates of this machine twice when it is imported: an eighth of a second of CPU for an engine that calls nobody.
NO_CERTIFICATES = {"SSL_CERT_FILE": os.devnull}


class Backend(Protocol):
    """The seam between a session and the stack under test. All methods may be called from a thread."""

    name: str
    note: str  # a sentence for every report
    thresholds: Mapping[str, Mapping[str, float]]  # suite -> thresholds that replace the suite's own
    description: Json  # what run.json says about the stack; no secrets
    waits: bool = False  # whether it is booted only when tests that need it are known: it takes GPUs or minutes
    status: str = ""  # what its boot waits for, for whoever looks on
    models: Sequence[str] = ()  # that it lists, once it has started; none where nobody has asked it

    @property
    def identity(self) -> Json:
        """What decides how it answers, and how fast: a run has rollouts of one identity only. Asked before the start."""
        return {name: value for name, value in self.description.items() if name not in ("name", "note")}

    @property
    def facts(self) -> Json:
        """What else of it can change from run to run, asked when the session ends; what is not known is not there, or null.

        `services` (service -> packages, image), `environment` (variables of engines that they inherit), `files` (hashes of what the
        YAML names), `server` (what it tells of itself), `model` (which weights), `hardware` (`gpus`, their names, and `driver`).
        """
        return {}

    def start(self, directory: Path) -> Endpoint:
        """Boots the stack, logs into `directory`, and returns where it answers; raises BackendError when it does not."""

    def metrics(self) -> Sources:
        """Where the stack, once it has started, tells its metrics, and which GPUs it has; what is there is sampled."""
        return Sources()

    @property
    def processes(self) -> Mapping[str, Child]:
        """Those that `watch` starts again when they die, by the names under which it tells of them."""
        return {}

    def watch(self, tell: Tell) -> str | None:
        """Blocks while the stack lives; returns what died, with its log's tail, or None where nothing can be watched.

        `tell` is called with the names of the parts that are away for a while, so that no rollout begins, and with none when all are
        there again. It returns whether a part may be started again, as far as the session is concerned.
        """

    def stop(self) -> None:
        """Tears the stack down; may be called at any moment, also twice."""


class Embedded(Backend):
    """The built-in engine in a process of its own."""

    def __init__(self, spec: EmbeddedSpec) -> None:
        self.spec = spec
        self.name, self.note = spec.name, spec.note
        self.thresholds: Mapping[str, Mapping[str, float]] = spec.thresholds
        self.description = spec.model_dump(exclude={"thresholds"}, exclude_none=True)
        self.child: Child | None = None
        self.port = 0
        self._held: socket.socket | None = None  # keeps a port that nobody asked for from others, also while no engine is there
        self._log = Path()
        self._starting = threading.Lock()
        self._stopped = False

    @property
    def identity(self) -> Json:
        said = self.spec.model_dump(exclude={"name", "note", "thresholds", "port", "request_log", "script"}, exclude_none=True)
        return {**said, **({"script": file_digest(Path(self.spec.script))} if self.spec.script else {})}

    @property
    def facts(self) -> Json:
        return {"hardware": {"gpus": [], "driver": None}}

    def start(self, directory: Path) -> Endpoint:
        self._log = directory / "engine.log"
        if not self.spec.port:
            self._held = shared_port()
        self.port = self._held.getsockname()[1] if self._held else self.spec.port
        child = self._started()
        if child is None:
            raise BackendError("it was stopped before it started")
        child.ready()
        endpoint = Endpoint(f"http://127.0.0.1:{self.port}/v1", self._model, self.name)
        self.models = listed_models(endpoint)
        return endpoint

    @property
    def _model(self) -> str:
        return self.spec.model or f"embedded-{self.spec.policy}"

    def _started(self) -> Child | None:
        """A new engine on its port; None when it is to be stopped."""
        options = self.spec.model_dump(exclude={"kind", "name", "model", "thresholds", "note"})
        where = {"host": "127.0.0.1", "port": self.port, "held": self._held is not None}
        with self._starting:
            if self._stopped:
                return None
            config = {**options, "model": self._model, **where}
            self.child = Child("pytest_agentbench.engine", config, self._log, variables=NO_CERTIFICATES)
            return self.child

    @property
    def processes(self) -> Mapping[str, Child]:
        return {ENGINE: self.child} if self.child is not None else {}

    def metrics(self) -> Sources:
        return Sources((Target(ENGINE, 0, f"http://127.0.0.1:{self.port}/metrics"),))

    def watch(self, tell: Tell) -> str | None:
        """Starts it again on the same port."""
        assert self.child is not None
        child: Child | None = self.child
        while child is not None:
            child.process.wait()
            if self._stopped:
                break
            died = child.obituary("died in the middle of the run")
            if not tell([ENGINE]):
                return died
            if (child := self._started()) is not None:
                try:
                    child.ready()
                except BackendError as error:
                    return None if self._stopped else f"{died}\nand was not started again: {error}"
                tell([])
        return None

    def stop(self) -> None:
        with self._starting:
            self._stopped = True
        if self.child is not None:
            self.child.stop()
        if self._held is not None:
            self._held.close()


class Url(Backend):
    """Something that already runs: nothing to start or stop, but it has to answer."""

    def __init__(self, spec: UrlSpec) -> None:
        self.spec = spec
        self.name, self.note = spec.name, spec.note
        self.thresholds: Mapping[str, Mapping[str, float]] = spec.thresholds
        self.description = spec.model_dump(exclude={"thresholds"}, exclude_defaults=True)
        if spec.headers:
            self.description["headers"] = sorted(spec.headers)  # their values may be secrets after all
        self._told: Json = {}  # what the server tells of itself, once it has

    @property
    def identity(self) -> Json:
        """What runs there is not ours to know."""
        return {"kind": self.spec.kind, "url": self.spec.url, "model": self.spec.model}

    @property
    def facts(self) -> Json:
        return {"server": self._told}

    def start(self, directory: Path) -> Endpoint:
        del directory  # it keeps its own logs
        endpoint = url_endpoint(self.spec)
        self.models = listed_models(endpoint)
        if self.spec.model and self.spec.model not in self.models:
            raise BackendError(f"{self.spec.url} does not serve {self.spec.model!r}; it lists: {', '.join(self.models)}")
        endpoint = replace(endpoint, model=self.spec.model or self.models[0])
        daemon(self._ask, endpoint, name="versions")  # nobody waits for it
        return endpoint

    def _ask(self, endpoint: Endpoint) -> None:
        self._told = told(endpoint)

    def metrics(self) -> Sources:
        return Sources(tuple(Target("server", number, url, self.spec.ca_file) for number, url in enumerate(self.spec.metrics)))

    def watch(self, tell: Tell) -> str | None:
        del tell
        return None

    def stop(self) -> None:
        """Nothing was started."""


def url_endpoint(spec: UrlSpec) -> Endpoint:
    """Raises ConfigError when the key is not where the YAML says."""
    rate, labels = spec.rate_limit.requests_per_minute, spec.labels.model_dump(exclude_defaults=True)
    return Endpoint(spec.url, spec.model or "", spec.name, _api_key(spec), spec.ca_file, spec.headers, rate, labels, spec.api_key_env)


def _api_key(spec: UrlSpec) -> str | None:
    if spec.api_key_env is None:
        return None
    key = os.environ.get(spec.api_key_env, "").strip()  # a line break from a file would end up in the header
    if not key:
        raise ConfigError(f"backend {spec.name!r} wants its key in the environment variable {spec.api_key_env}, which is not set")
    return key


def make_backend(spec: AnySpec, *, keep: float | None = None, gpu_wait: float = 0, warm_up: int = 0) -> Backend:
    """`keep` (None: it ends with the session) and `gpu_wait` in seconds; `warm_up` requests before anything is measured."""
    match spec:
        case EmbeddedSpec():
            return Embedded(spec)
        case UrlSpec():
            return Url(spec)
        case StackSpec():
            from pytest_agentbench.backends.stack.backend import Stacked

            return Stacked(spec, keep=keep, gpu_wait=gpu_wait, warm_up=warm_up)
