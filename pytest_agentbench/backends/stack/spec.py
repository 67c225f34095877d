"""What a backend YAML of kind `stack` may say: services that are started in order, and how they are proven ready."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PositiveFloat, PositiveInt, field_validator, model_validator

from pytest_agentbench.backends.common_spec import BackendKeys
from pytest_agentbench.lib.config import Spec
from pytest_agentbench.suites.roles import RoleName, RoleSpec, own_names

#: A template in a command, an environment value or a mount: {port}, {engine.url}, {max_model_len}. JSON's braces are none.
TEMPLATE = re.compile(r"\{([a-z_][\w-]*(?:\.[\w-]+)*)\}", re.IGNORECASE)

NAME = re.compile(r"[a-z][a-z0-9_-]*")

#: Names in templates that a service or a setting cannot take.
RESERVED = frozenset({"port", "url", "model", "gpus", "gpu_list", "replica", "run_dir", "logs", "home", "here", "python"})

Port = Annotated[int, Field(ge=0, le=65535)]  # 0: any free one


def _texts(command: Any) -> Any:
    """YAML reads --port 8000 as a number."""
    return (
        [str(word) if isinstance(word, int | float) and not isinstance(word, bool) else word for word in command]
        if isinstance(command, list)
        else command
    )


def _values(environment: Any) -> Any:
    if not isinstance(environment, dict):
        return environment
    return {
        name: str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value for name, value in environment.items()
    }


CommandLine = Annotated[list[str], BeforeValidator(_texts)]
EnvironmentVariables = Annotated[dict[str, str], BeforeValidator(_values)]


class HttpCheck(Spec):
    """A service is ready when this answers 200, and says something if that is asked for."""

    http: str  # path, e.g. /health
    port: str = "port"  # name of one of the service's ports
    says: str = ""  # regular expression that is found in the answer
    timeout: PositiveFloat | None = None  # seconds; None: the stack's

    @field_validator("says")
    @classmethod
    def _compiles(cls, says: str) -> str:
        try:
            re.compile(says)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from None
        return says


class MetricsSpec(Spec):
    """Where a service tells its metrics in Prometheus text."""

    path: str = "/metrics"
    port: str = "port"


class ContainerSpec(Spec):
    """What a container gets beyond its image and command. It always has the host's network."""

    shm_size: str | None = None  # e.g. 16g
    ulimits: dict[str, int] = {}  # name -> soft and hard limit; -1 is none
    mounts: dict[str, str] = {}  # path on the host -> path in the container, with `:ro` behind it to protect it
    entrypoint: CommandLine | None = None
    user: str | None = None
    memory: str | None = None  # e.g. 8g
    pull: Literal["missing", "never"] = "missing"


class ServiceSpec(Spec):
    """One process or, with `image`, one container."""

    run: CommandLine = []  # empty only for a container with a command of its own
    image: str | None = None
    container: ContainerSpec = ContainerSpec()
    python: str | None = None  # an `agentbench env`, the folder of a virtual environment, or an interpreter; None: the stack's
    env: EnvironmentVariables = {}
    secrets: list[str] = []  # names of environment variables that have to be set; their values are in no file
    cwd: str | None = None  # relative to the YAML; None: a folder of the stack's own
    gpus: int | list[str | int] = 0  # how many for each replica, or which of the visible ones
    replicas: PositiveInt = 1
    port: Port = 0
    ports: dict[str, Port] = {}  # further ones by name
    after: list[str] = []  # services that have to be ready before; those named in templates are as well
    ready: HttpCheck | None = None  # None: it runs
    metrics: MetricsSpec | None = None
    restart: int = Field(default=0, ge=0)  # times that it is started again when it dies
    grace: PositiveFloat = 15  # seconds between SIGTERM and SIGKILL

    @field_validator("metrics", mode="before")
    @classmethod
    def _metrics_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @field_validator("ports", mode="before")
    @classmethod
    def _free_ports(cls, value: Any) -> Any:
        return dict.fromkeys(value, 0) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _can_be_started(self) -> Self:
        if not self.run and self.image is None:
            raise ValueError("should have `run` (a command) or `image` (a container)")
        if isinstance(self.gpus, list) and self.replicas > 1:
            raise ValueError("GPUs can be pinned for one replica only; make a service for each")
        if self.replicas > 1 and (self.port or any(self.ports.values())):
            raise ValueError("a port can be fixed for one replica only; without a number each gets a free one")
        if isinstance(self.gpus, int) and self.gpus < 0:
            raise ValueError("gpus should be a count from 0 up, or a list of GPUs")
        for check in (self.ready, self.metrics):
            if check is not None and check.port != "port" and check.port not in self.ports:
                raise ValueError(f"port {check.port!r} is none of this service; it has: {', '.join(['port', *self.ports])}")
        return self


class ReadySpec(Spec):
    """How the whole stack is proven ready, at its endpoint."""

    timeout: PositiveFloat = 600  # seconds from the start of the first service on
    in_a_row: PositiveInt = 2  # chats that have to go well one after the other
    workers: dict[str, PositiveInt] = {}  # Dynamo: worker type -> how many, as /v1/models/MODEL/ready tells
    tools: Literal["auto", "required", "none"] = "auto"  # tool_choice of the probe; none: the stack cannot call tools
    chat: dict[str, Any] = {}  # request fields of the probes


class LabelsSpec(Spec):
    """How a rollout is announced to the stack and released, and what is asked of it with every call."""

    kind: Literal["none", "thunderagent", "dynamo"] = "none"
    priority: int | None = None  # Dynamo: hint of every call
    osl: PositiveInt | None = None  # Dynamo: expected output tokens, a hint
    # the file that Dynamo's frontend writes request traces to, as DYN_REQUEST_TRACE_FILE_PATH says, or ThunderAgent's step_profiles.csv
    trace: str | None = None
    job: bool = False  # ThunderAgent: calls name their rollout as a job too, for an engine with Continuum's scheduler behind it
    release: bool = False  # Dynamo: it has a ThunderAgent router, which is told when a rollout ends; ThunderAgent itself always is


def _kind_alone(labels: Any) -> Any:
    return {"kind": labels} if isinstance(labels, str) else labels


LabelsField = Annotated[LabelsSpec, BeforeValidator(_kind_alone)]  # `labels: dynamo` says its kind and nothing else


class StackRole(RoleSpec):
    """A role that a service of the stack may play."""

    service: str | None = None

    @model_validator(mode="after")
    def _is_in_one_place(self) -> Self:
        if self.url is not None and self.service is not None:
            raise ValueError("'url' and 'service' are two places; leave one out")
        return self

    @property
    def is_elsewhere(self) -> bool:
        return self.url is not None or self.service is not None


class StackSpec(BackendKeys):
    """Services on this machine, booted for a session."""

    kind: Literal["stack"] = "stack"
    here: str = ""  # folder of the YAML, filled in when it is read
    settings: dict[str, str | int | float] = {}  # values for templates
    python: str | None = None
    env: EnvironmentVariables = {}  # of every service
    services: dict[str, ServiceSpec] = Field(min_length=1)
    endpoint: str = ""  # the service that agents talk to; empty: the last one
    path: str = "/v1"  # of its OpenAI API
    ready: ReadySpec = ReadySpec()
    labels: LabelsField = LabelsSpec()
    roles: Annotated[dict[RoleName, StackRole], AfterValidator(own_names)] = {}  # type: ignore[assignment]  # services may play them, too
    warm_up: int | None = Field(default=None, ge=0)  # requests before anything is measured; None: as many as rollouts in flight
    sample_every: PositiveFloat = 1.0  # seconds between two looks at the metrics

    @model_validator(mode="after")
    def _names_lead_somewhere(self) -> Self:
        for name in (*self.services, *self.settings):
            if not NAME.fullmatch(name) or name in RESERVED:
                raise ValueError(
                    f"{name!r} cannot be a name here: small letters, digits, - and _, and none of {', '.join(sorted(RESERVED))}"
                )
        if self.endpoint and self.endpoint not in self.services:
            raise ValueError(f"endpoint {self.endpoint!r} is no service; there are: {', '.join(self.services)}")
        for name, role in self.roles.items():
            if role.service is not None and role.service not in self.services:
                raise ValueError(f"roles.{name}: {role.service!r} is no service; there are: {', '.join(self.services)}")
        for name, service in self.services.items():
            for other in service.after:
                if other not in self.services:
                    raise ValueError(f"services.{name}.after: {other!r} is no service; there are: {', '.join(self.services)}")
        return self

    @model_validator(mode="after")
    def _ports_are_of_one_service(self) -> Self:
        owners: dict[int, str] = {}
        for name, service in self.services.items():
            for port in filter(None, (service.port, *service.ports.values())):
                if port in owners:
                    raise ValueError(
                        f"services.{name}: port {port} is taken by services.{owners[port]}; without a number each gets a free one"
                    )
                owners[port] = name
        return self

    @property
    def gpus(self) -> tuple[int, list[str]]:
        """(how many of any kind, those that are named) of all replicas."""
        count = sum(service.gpus * service.replicas for service in self.services.values() if isinstance(service.gpus, int))
        return count, [str(gpu) for service in self.services.values() if isinstance(service.gpus, list) for gpu in service.gpus]

    @property
    def front(self) -> str:
        """The service that agents talk to."""
        return self.endpoint or list(self.services)[-1]
