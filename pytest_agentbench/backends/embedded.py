"""Backends of `kind: embedded`: the built-in engine, which needs no model or GPU, in a process that listens on 127.0.0.1."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from pytest_agentbench.backends.backend import Backend, Tell
from pytest_agentbench.backends.doctor.check import Check, ok, port_checks
from pytest_agentbench.backends.machine.ports import shared_port
from pytest_agentbench.backends.ready import listed_models
from pytest_agentbench.backends.spec import BackendSpec, SessionTerms
from pytest_agentbench.backends.telemetry.samples import Sources, Target
from pytest_agentbench.engine import POLICIES
from pytest_agentbench.engine.config import EngineSettings
from pytest_agentbench.errors import BackendError, ConfigError, unknown_name
from pytest_agentbench.lib.messages import Listening
from pytest_agentbench.lib.process import Child, start_again
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.suites.hashes import file_digest

ENGINE = "engine"  # name of the process in a session

#: Importing aiohttp reads the certificates of this machine twice, which takes 0.125 s of CPU. The engine makes no requests.
NO_CERTIFICATES = {"SSL_CERT_FILE": os.devnull}


class EmbeddedSpec(EngineSettings, BackendSpec):
    """The YAML keys of `kind: embedded`: the built-in engine, a process that listens on 127.0.0.1."""

    kind: Literal["embedded"] = Field(description="`embedded`: the built-in engine.")
    model: str | None = Field(default=None, description="The name of the model that the engine serves. The default is `embedded-<policy>`.")

    def make(self, terms: SessionTerms) -> Embedded:
        del terms  # It needs no GPUs, and always ends with the session.
        return Embedded(self)

    @classmethod
    def completed(cls, data: Json, file: Path) -> Json:
        return {**data, "script": str(file.parent / str(data["script"]))} if data.get("script") else data

    def refuse_mistakes(self) -> None:
        if self.policy not in POLICIES:
            raise ConfigError(unknown_name("policy", self.policy, POLICIES))

    def checks(self, *, reach: bool) -> Iterator[Check]:
        del reach
        yield ok("engine", "comes with agentbench")
        yield from port_checks([self.port])


class Embedded(Backend):
    """A backend that runs the built-in engine in a child process, and restarts it on the same port if it dies."""

    def __init__(self, spec: EmbeddedSpec) -> None:
        self.spec = spec
        self.name, self.note = spec.name, spec.note
        self.thresholds: Mapping[str, Mapping[str, float]] = spec.thresholds
        self.description = spec.model_dump(exclude={"thresholds"} if spec.roles else {"thresholds", "roles"}, exclude_none=True)
        self.child: Child | None = None
        self.port = 0
        self._reserved: socket.socket | None = None  # Reserves a port that the YAML does not fix, also while the engine restarts
        self._log = Path()
        self._starting = threading.Lock()
        self._stopped = False

    @property
    def identity(self) -> Json:
        without = {"name", "note", "thresholds", "prices", "roles", "port", "request_log", "script"}
        settings = self.spec.model_dump(exclude=without, exclude_none=True) | self.spec.role_identity
        return {**settings, **({"script": file_digest(Path(self.spec.script))} if self.spec.script else {})}

    @property
    def facts(self) -> Json:
        return {"hardware": {"gpus": [], "driver": None}}

    def start(self, directory: Path) -> Endpoint:
        self._log = directory / "engine.log"
        if not self.spec.port:
            self._reserved = shared_port()
        self.port = self._reserved.getsockname()[1] if self._reserved else self.spec.port
        child = self._start_engine()
        if child is None:
            raise BackendError("the backend was stopped before its engine started")
        child.ready(Listening)
        endpoint = Endpoint(f"http://127.0.0.1:{self.port}/v1", self._model, self.name, **self.spec.endpoint_fields)
        self.models = listed_models(endpoint)
        return endpoint

    @property
    def _model(self) -> str:
        return self.spec.model or f"embedded-{self.spec.policy}"

    def _start_engine(self) -> Child | None:
        """Starts an engine on the port of this backend. Returns None if the backend was stopped."""
        options = self.spec.model_dump(exclude={"kind", "model", *BackendSpec.model_fields})
        where = {"host": "127.0.0.1", "port": self.port, "held": self._reserved is not None}
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
        """Restarts the engine on the same port whenever it dies, until the session allows no more restarts."""
        assert self.child is not None
        while True:
            child = self.child
            child.process.wait()
            if self._stopped:
                break
            died = child.exit_message("died in the middle of the run")
            child.close_pipes()
            if not tell([ENGINE]):
                return died
            try:
                if start_again(self._start_engine, Listening) is None:
                    break
            except BackendError as error:
                return None if self._stopped else f"{died}\nand was not started again: {error}"
            tell([])
        return None

    def stop(self) -> None:
        with self._starting:
            self._stopped = True
        if self.child is not None:
            self.child.stop()
        if self._reserved is not None:
            self._reserved.close()
