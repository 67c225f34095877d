"""Backends of `kind: embedded`: the built-in engine, which needs no model or GPU, in a process that listens on 127.0.0.1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from pytest_agentbench.backends.doctor.check import Check, ok, port_checks
from pytest_agentbench.backends.own_server import OwnServer
from pytest_agentbench.backends.spec import BackendSpec, SessionTerms
from pytest_agentbench.backends.telemetry.samples import Sources, Target
from pytest_agentbench.engine import POLICIES
from pytest_agentbench.engine.config import EngineSettings
from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.suites.hashes import file_digest

ENGINE = "engine"  # name of the process in a session


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

    def refuse_mistakes(self, written: Json) -> None:
        del written
        if self.policy not in POLICIES:
            raise ConfigError(unknown_name("policy", self.policy, POLICIES))

    def checks(self, *, reach: bool) -> Iterator[Check]:
        del reach
        yield ok("engine", "comes with agentbench")
        yield from port_checks([self.port])


class Embedded(OwnServer):
    """A backend that runs the built-in engine."""

    part = ENGINE
    module = "pytest_agentbench.engine"

    def __init__(self, spec: EmbeddedSpec) -> None:
        super().__init__()
        self.spec = spec
        self.name, self.note, self.fixed_port = spec.name, spec.note, spec.port
        self.thresholds: Mapping[str, Mapping[str, float]] = spec.thresholds
        self.description = spec.model_dump(
            exclude={"thresholds", "nodes"} if spec.roles else {"thresholds", "nodes", "roles"}, exclude_none=True
        )

    @property
    def identity(self) -> Json:
        without = {"name", "note", "thresholds", "prices", "roles", "nodes", "port", "request_log", "script", "worker_id"}
        settings = self.spec.model_dump(exclude=without, exclude_none=True) | self.spec.role_identity
        return {**settings, **({"script": file_digest(Path(self.spec.script))} if self.spec.script else {})}

    @property
    def facts(self) -> Json:
        return {"hardware": {"gpus": [], "driver": None}}

    def endpoint(self, url: str) -> Endpoint:
        return Endpoint(url, self._model, self.name, **self.spec.endpoint_fields)

    def server_settings(self) -> Json:
        return {**self.spec.model_dump(exclude={"kind", "model", *BackendSpec.model_fields}), "model": self._model}

    @property
    def _model(self) -> str:
        return self.spec.model or f"embedded-{self.spec.policy}"

    def metrics(self) -> Sources:
        return Sources((Target(ENGINE, 0, f"http://127.0.0.1:{self.port}/metrics"),))
