"""The keys of a backend YAML of `kind: stack`: services, readiness checks, and templates such as {port} in their texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from pytest_agentbench.backends.labels_spec import LABELS, LabelsField, LabelsSpec
from pytest_agentbench.backends.spec import BackendKeys
from pytest_agentbench.backends.stack.placement_spec import ManifestSpec, Placement
from pytest_agentbench.backends.stack.templates import TEMPLATE
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import PositiveSeconds, Spec
from pytest_agentbench.suites.roles import RoleName, RoleSpec, own_names

NAME = re.compile(r"[a-z][a-z0-9_-]*")

#: Names in templates that a service or a setting cannot take.
RESERVED = frozenset(
    {
        *("port", "url", "model", "metrics", "gpus", "gpu_list", "replica", "run_dir", "logs", "home", "here", "python"),
        *("leader", "rank", "hosts"),
    }
)

Port = Annotated[int, Field(ge=0, le=65535)]  # 0: any free one


def _texts(command: Any) -> Any:
    """Turns the numbers in a command into texts, because YAML reads the 8000 of `--port 8000` as a number."""
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


CommandLine = Annotated[list[str], BeforeValidator(_texts, json_schema_input_type=list[str | float])]
EnvironmentVariables = Annotated[dict[str, str], BeforeValidator(_values, json_schema_input_type=dict[str, str | float])]


class HttpCheck(Spec):
    """The readiness check of one service. The service is ready when the path answers 200 and the answer matches `says`."""

    http: str = Field(description="The path that has to answer 200, for example `/health`.")
    port: str = Field(default="port", description="The name of the service's port. The default is its main port.")
    says: str = Field(default="", description="A regular expression that must match a part of the answer. Without it, any answer passes.")
    timeout: PositiveSeconds | None = Field(
        default=None,
        description="The time limit of this check, such as `90s`; a number is in seconds. The stack's `ready.timeout` limits it, too.",
    )

    @field_validator("says")
    @classmethod
    def _compiles(cls, says: str) -> str:
        try:
            re.compile(says)
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from None
        return says


class MetricsSpec(Spec):
    """The place of a service's metrics in Prometheus text: a path on one of its ports."""

    path: str = Field(default="/metrics", description="The path of the metrics.")
    port: str = Field(default="port", description="The name of the service's port. The default is its main port.")


class ContainerSpec(Spec):
    """The options of a service's container, in addition to image and command. A container always uses the host's network."""

    shm_size: str | None = Field(
        default=None,
        description="The size of /dev/shm, for example `16g`; engines with several GPUs need gigabytes. The default is Docker's 64 MB.",
    )
    ulimits: dict[str, int] = Field(
        default={},
        description="Name -> soft and hard limit, `-1` for none. They cannot exceed the limits of Docker itself. The default is Docker's.",
    )
    mounts: dict[str, str] = Field(
        default={},
        description="Path on the host -> path in the container, with the suffix `:ro` to make it read-only. "
        "A path that does not exist on the host is an error.",
    )
    entrypoint: CommandLine | None = Field(
        default=None, description="The entrypoint as a list of words; the words of `run` follow it. The default is the image's."
    )
    user: str | None = Field(default=None, description="A name, a number, or `user:group`. The default is the image's.")
    memory: str | None = Field(default=None, description="The memory limit, for example `64g`. Without it, there is no limit.")
    pull: Literal["missing", "never"] = Field(
        default="missing",
        description="With `missing`, an image that is not on this machine is pulled. With `never`, it must already be on this machine.",
    )


class ServiceSpec(Spec):
    """One service of a stack: a process or, with `image`, a container of this machine, or something that a cluster runs."""

    run: CommandLine = Field(
        default=[],
        description="The command, word by word. It may be left out for a container whose image has a command, and with `kubernetes`.",
    )
    image: str | None = Field(default=None, description="The image of [a container](containers.md). Without it, the service is a process.")
    container: ContainerSpec = Field(
        default=ContainerSpec(), description="[What the container gets](containers.md#what-a-container-gets) beyond its image and command."
    )
    on: Placement | None = Field(
        default=None,
        description="`{slurm: {hosts: 2, gpus: 8}}` runs the command "
        "[on hosts of Slurm](services-on-clusters.md#services-on-hosts-of-slurm). Without it, the service runs on this machine.",
    )
    kubernetes: ManifestSpec | None = Field(
        default=None,
        description="`{manifest: FILE, url: URL}` creates [objects in a cluster](services-on-clusters.md#services-in-kubernetes) instead.",
    )
    python: str | None = Field(
        default=None,
        description="The Python of its command: [an environment by name](prepare.md#environments), the folder of a virtual environment, "
        "or an interpreter. The default is the stack's `python`.",
    )
    env: EnvironmentVariables = Field(default={}, description="Environment variables in addition to those of the session.")
    secrets: list[str] = Field(
        default=[],
        description="Names of environment variables that have to be set, for example `[HF_TOKEN]`. Their values are in no file.",
    )
    cwd: str | None = Field(
        default=None, description="The working directory, relative to the YAML. The default is a folder that the stack creates."
    )
    gpus: int | list[str | int] = Field(
        default=0,
        description="The number of GPUs of each replica, or a list of visible GPUs. They are [leased](prepare.md#gpus). "
        "A process sees only these.",
    )
    replicas: PositiveInt = Field(default=1, description="The number of instances that are started.")
    port: Port = Field(default=0, description="The main port. The default 0 means any free port.")
    ports: dict[str, Port] = Field(default={}, description="Further ports: a list of names, which get free ports, or name -> number.")
    after: list[str] = Field(
        default=[],
        description="Services that have to be ready before this one starts, in addition to those that its templates name.",
    )
    ready: HttpCheck | None = Field(
        default=None,
        description="`{http: PATH}`: the service is ready when that path answers 200. Further keys are `port` (a name), `says` (a regular "
        "expression) and `timeout` (seconds). Without it, the service is ready when it runs, or when its image's HEALTHCHECK passes.",
    )
    metrics: MetricsSpec | None = Field(
        default=None,
        description="The path of its metrics in Prometheus text, or `{path: PATH, port: NAME}`. Without it, they are not read.",
    )
    restart: int = Field(default=0, ge=0, description="How often an instance is restarted if it dies. The report lists restarts.")
    grace: PositiveSeconds = Field(default=15, description="The time between SIGTERM and SIGKILL, such as `15s`; a number is in seconds.")

    @field_validator("metrics", mode="before", json_schema_input_type=str | MetricsSpec | None)
    @classmethod
    def _metrics_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @field_validator("ports", mode="before", json_schema_input_type=list[str] | dict[str, Port])
    @classmethod
    def _free_ports(cls, value: Any) -> Any:
        return dict.fromkeys(value, 0) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _can_be_started(self) -> Self:
        if not self.run and self.image is None and self.kubernetes is None:
            raise ValueError("must have `run` (a command), `image` (a container) or `kubernetes` (a manifest)")
        if isinstance(self.gpus, list) and self.replicas > 1:
            raise ValueError("only a single replica can have a list of GPUs; define a service for each replica")
        if self.replicas > 1 and (self.port or any(self.ports.values())):
            raise ValueError("only a single replica can have a fixed port; remove the number, and each gets a free one")
        if isinstance(self.gpus, int) and self.gpus < 0:
            raise ValueError("gpus must be a count (0 or more), or a list of GPUs")
        for check in (self.ready, self.metrics):
            if check is not None and check.port != "port" and check.port not in self.ports:
                raise ValueError(f"port {check.port!r} is not a port of this service; it has: {', '.join(['port', *self.ports])}")
        return self

    @property
    def is_placed(self) -> bool:
        """Whether a cluster runs it on other machines."""
        return self.on is not None or self.kubernetes is not None

    @property
    def is_command(self) -> bool:
        """Whether it is a command, on this machine or on hosts that share its files."""
        return self.image is None and self.kubernetes is None


WORKERS = "Dynamo's worker type -> least number of workers, for example `{prefill: 1, decode: 2}`."


class ReadySpec(Spec):
    """The readiness checks of the whole stack, made at its endpoint."""

    timeout: PositiveSeconds = Field(
        default=600,
        description="The time limit of the whole boot, from the start of the first service on, such as `30m`; a number is in seconds. "
        "`--agentbench-set backend.ready.timeout=30m` changes it.",
    )
    in_a_row: PositiveInt = Field(default=2, description="The number of consecutive chats that have to succeed.")
    workers: dict[str, PositiveInt] = Field(default={}, description=WORKERS)
    tools: Literal["auto", "required", "none"] = Field(
        default="auto", description="The `tool_choice` of the tool check: `auto`, `required`, or `none` for a stack that cannot call tools."
    )
    chat: dict[str, Any] = Field(
        default={}, description="Request fields of all check requests, for example `{chat_template_kwargs: {enable_thinking: false}}`."
    )


class StackRole(RoleSpec):
    """A role (a further model that agents call) in the YAML of a stack. Its model is served by a service of the stack, or at a URL."""

    service: str | None = Field(default=None, description="The service of the stack that plays the role, instead of `url`.")

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if self.url is not None and self.service is not None:
            raise ValueError("'url' and 'service' are both set; remove one")
        return self

    @property
    def is_elsewhere(self) -> bool:
        return self.url is not None or self.service is not None


class StackSpec(BackendKeys):
    """The YAML keys of `kind: stack`: services on this machine that are started for a session."""

    kind: Literal["stack"] = Field(
        default="stack",
        description="`stack`: services that the session starts. It can be left out if there is `services`, `include` or `base`.",
    )
    here: SkipJsonSchema[str] = Field(default="", description="The folder of the YAML. It is set automatically.")
    settings: dict[str, str | int | float] = Field(
        default={},
        description="Name -> value for templates. `--agentbench-set backend.settings.NAME=VALUE` changes one for a run.",
    )
    python: str | None = Field(
        default=None,
        description="The Python of all services, unless a service has its own `python`. Without it, commands are searched on the `PATH`.",
    )
    env: EnvironmentVariables = Field(default={}, description="Environment variables of every service.")
    services: dict[str, ServiceSpec] = Field(min_length=1, description="Name -> [service](backend-yaml.md#a-service).")
    endpoint: str = Field(default="", description="The service that agents call. The default is the last one.")
    path: str = Field(default="/v1", description="The path of the endpoint's OpenAI API.")
    ready: ReadySpec = Field(
        default=ReadySpec(), description="The [readiness checks](own-stack.md#when-it-counts-as-ready) of the whole stack."
    )
    labels: LabelsField = Field(default=LabelsSpec(), description=LABELS)
    roles: Annotated[dict[RoleName, StackRole], AfterValidator(own_names)] = Field(  # type: ignore[assignment]  # services may play them, too
        default={},
        description="Name -> [role](roles.md#roles-of-a-backend), which a `service` may play. These go before the roles that suites name.",
    )
    warm_up: int | None = Field(
        default=None,
        ge=0,
        description="The number of requests before anything is measured. They are not in the results, but the report has their number. "
        "The default is the concurrency of the session.",
    )
    sample_every: PositiveSeconds = Field(
        default=1.0,
        description="The time between two samples of the [metrics](metrics.md#what-the-server-says), "
        "such as `500ms`; a number is in seconds.",
    )
    kv_events: str | None = Field(
        default=None,
        description="The file that `kv_events.py` writes [KV cache events](metrics.md#kv-cache-events) to, such as "
        "`{run_dir}/kv_events.jsonl`. Without it, none are recorded.",
    )

    @model_validator(mode="after")
    def _references_exist(self) -> Self:
        for name in (*self.services, *self.settings):
            if not NAME.fullmatch(name) or name in RESERVED:
                raise ValueError(
                    f"{name!r} cannot be a name here: small letters, digits, - and _, but none of {', '.join(sorted(RESERVED))}"
                )
        if self.endpoint and self.endpoint not in self.services:
            raise ValueError(f"endpoint {self.endpoint!r} is not a service; services: {', '.join(self.services)}")
        for name, role in self.roles.items():
            if role.service is not None and role.service not in self.services:
                raise ValueError(f"roles.{name}: {role.service!r} is not a service; services: {', '.join(self.services)}")
        for name, service in self.services.items():
            for other in service.after:
                if other not in self.services:
                    raise ValueError(f"services.{name}.after: {other!r} is not a service; services: {', '.join(self.services)}")
        return self

    @model_validator(mode="after")
    def _ports_are_unique(self) -> Self:
        owners: dict[int, str] = {}
        for name, service in self.services.items():
            for port in filter(None, (service.port, *service.ports.values())):
                if port in owners:
                    raise ValueError(
                        f"services.{name}: services.{owners[port]} has port {port}, too; remove the numbers, and each gets a free one"
                    )
                owners[port] = name
        return self

    @property
    def gpus(self) -> tuple[int, list[str]]:
        """The GPUs that all replicas need together: (how many of any kind, names of particular ones)."""
        count = sum(service.gpus * service.replicas for service in self.services.values() if isinstance(service.gpus, int))
        return count, [str(gpu) for service in self.services.values() if isinstance(service.gpus, list) for gpu in service.gpus]

    @property
    def front(self) -> str:
        """The name of the service that agents call."""
        return self.endpoint or list(self.services)[-1]


def words(service: ServiceSpec) -> list[str]:
    """Returns the words of a service's command and entrypoint. Only here, a template such as `{engine.urls*}` can be several words."""
    return [*service.run, *(service.container.entrypoint or ())]


def texts(service: ServiceSpec) -> list[str]:
    """Returns all texts of a service that may contain templates."""
    return [*words(service), *single_texts(service)]


def single_texts(service: ServiceSpec) -> Iterator[str]:
    """Yields the texts of a service in which a template can be only one text: all except the `words` of its command."""
    yield from service.env.values()
    yield from service.container.mounts
    yield from service.container.mounts.values()
    yield from filter(None, (service.image, service.cwd, service.python))
    if service.kubernetes is not None:
        yield from (value for _, value in service.kubernetes if value)
    if service.ready is not None:
        yield from (service.ready.http, service.ready.says)


def references(service: ServiceSpec) -> set[str]:
    """Returns the names in the templates of a service, such as `port` and `engine.url`."""
    return {name for text in texts(service) for name in TEMPLATE.findall(text)}


def dependencies(spec: StackSpec) -> dict[str, set[str]]:
    """Returns service -> services that must be ready before it. Raises ConfigError if services wait for each other."""
    needed = {}
    for name, service in spec.services.items():
        named = {reference.partition(".")[0] for reference in references(service) if "." in reference}
        needed[name] = ((named & spec.services.keys()) | set(service.after)) - {name}
    waiting = dict(needed)
    while waiting:
        free = [name for name, others in waiting.items() if not others & waiting.keys()]
        if not free:
            raise ConfigError(f"these services wait for each other: {', '.join(waiting)}")
        for name in free:
            del waiting[name]
    return needed
