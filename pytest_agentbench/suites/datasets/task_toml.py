"""Reads and checks the task.toml of a Harbor task. Unsupported features are not errors here; `TaskToml` names them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, field_validator, model_validator

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import validate
from pytest_agentbench.lib.json_text import read_text

#: The newest version of the schema that these tables describe.
NEWEST_SCHEMA = "1.4"

#: Keys of older schemas that have no effect any more. Harbor ignores them, too.
OBSOLETE_KEYS = frozenset({"restart_environment"})

#: A value that Harbor takes from a variable of the host. It must be the whole value: within other text it is not a template.
_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([GMK])")
_MIB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}

TaskSeconds = Annotated[FiniteFloat, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]
Network = Literal["public", "no-network", "allowlist"]


class TomlTable(BaseModel):
    """Base of all tables of a task.toml. Values are not converted to other types. Unknown keys are kept for messages."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)


class Phase(TomlTable):
    """The keys that the tables `[agent]` and `[verifier]` of a task.toml have in common."""

    user: str | None = None  # None: user of the image
    network_mode: Network | None = None  # None: network mode of `[environment]`
    allowed_hosts: list[str] | None = None

    @field_validator("user", mode="before")
    @classmethod
    def _name_or_number(cls, user: Any) -> Any:
        if not isinstance(user, str | int) or isinstance(user, bool) or user == "":
            raise ValueError("must be the name or the number of a user")
        return str(user)


class AgentTable(Phase):
    """The table `[agent]` of a task.toml."""

    timeout_sec: TaskSeconds | None = None


class VerifierTable(Phase):
    """The table `[verifier]` of a task.toml."""

    timeout_sec: TaskSeconds = 600.0
    env: dict[str, str] = {}
    environment_mode: Literal["shared", "separate"] | None = None
    environment: dict[str, Any] | None = None
    collect: list[dict[str, Any]] = []

    @model_validator(mode="after")
    def _one_mode(self) -> VerifierTable:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode 'shared' and a [verifier.environment] exclude each other; leave one of them out")
        return self


class EnvironmentTable(TomlTable):
    """The table `[environment]` of a task.toml. The keys `memory`, `storage` and `allow_internet` of older schemas are converted."""

    build_timeout_sec: TaskSeconds = 600.0
    docker_image: str | None = None
    os: str = "linux"
    cpus: Annotated[FiniteFloat, Field(gt=0)] | None = None
    memory_mb: Count | None = None
    storage_mb: Count | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: dict[str, Any] | None = None
    workdir: str | None = None
    network_mode: Network = "public"
    allowed_hosts: list[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _rename_old_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if old in data:
                size = mebibytes(old, data.pop(old))
                if data.setdefault(new, size) != size:
                    raise ValueError(f"{old} and {new} are different sizes; keep {new}")
        internet = data.pop("allow_internet", None)
        if internet not in (None, True, False):
            raise ValueError(f"allow_internet must be true or false, not {internet!r}")
        if internet is not None and data.get("allowed_hosts") is None:
            data.setdefault("network_mode", "public" if internet else "no-network")
        return data

    @field_validator("os", mode="before")
    @classmethod
    def _known_system(cls, system: Any) -> Any:
        if not isinstance(system, str) or system.lower() not in ("linux", "windows"):
            raise ValueError("must be 'linux' or 'windows'")
        return system.lower()


class SolutionTable(TomlTable):
    """The table `[solution]` of a task.toml."""

    env: dict[str, str] = {}


class Artifact(TomlTable):
    """An entry of `artifacts`: a path in the sandbox that a separate verifier gets. The path on the host (`destination`) is not used."""

    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None


class TaskToml(TomlTable):
    """A whole task.toml. The keys that only describe the task (`task`, `metadata`, `source`) may have any content."""

    schema_version: str = NEWEST_SCHEMA
    task: dict[str, Any] | None = None
    metadata: dict[str, Any] = {}
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    environment: EnvironmentTable = EnvironmentTable()
    solution: SolutionTable = SolutionTable()
    source: str | None = None
    multi_step_reward_strategy: str | None = None
    steps: list[dict[str, Any]] | None = None
    artifacts: list[Artifact] = []

    @model_validator(mode="before")
    @classmethod
    def _rename_old_keys(cls, data: Any) -> Any:
        data = dict(data)
        if "version" in data:
            data.setdefault("schema_version", data.pop("version"))
        return data

    @field_validator("artifacts", mode="before")
    @classmethod
    def _tables(cls, entries: Any) -> Any:
        return [{"source": each} if isinstance(each, str) else each for each in entries] if isinstance(entries, list) else entries

    @field_validator("artifacts")
    @classmethod
    def _inside(cls, entries: list[Artifact]) -> list[Artifact]:
        for each in entries:
            if not each.source or ".." in Path(each.source).parts:
                raise ValueError(f"must be a path in the sandbox, without `..`, not {each.source!r}")
        return entries

    @property
    def separate_verifier(self) -> bool:
        return self.verifier.environment_mode == "separate"

    @property
    def network(self) -> str:
        """The network mode of the agent. In supported tasks, the verifier has the same."""
        return self.agent.network_mode or self.environment.network_mode

    def unsupported_features(self) -> Iterator[str]:
        """Yields a noun phrase for each unsupported feature that the task needs. It names the key."""
        environment, verifier = self.environment, self.verifier
        reasons: Mapping[str, Any] = {
            f"the schema {self.schema_version} (schema_version; the newest known is {NEWEST_SCHEMA})": self._is_newer_schema(),
            "several steps ([[steps]])": self.steps,
            f"{environment.os.capitalize()} (environment.os)": environment.os != "linux",
            "GPUs (environment.gpus)": environment.gpus,
            "a TPU (environment.tpu)": environment.tpu,
            "MCP servers (environment.mcp_servers)": environment.mcp_servers,
            "skills for the agent (environment.skills_dir)": environment.skills_dir,
            "a healthcheck before the agent begins (environment.healthcheck)": environment.healthcheck,
            "an allow-list of hosts (network_mode)": "allowlist" in self._networks(),
            "different networks for agent and verifier (network_mode)": len(self._networks()) > 1,
            "a sandbox of its own for the verifier ([verifier.environment])": verifier.environment is not None,
            "commands between agent and verifier ([[verifier.collect]])": verifier.collect,
            "artifacts of another service (artifacts.service)": any(each.service not in (None, "main") for each in self.artifacts),
            "artifacts in part (artifacts.exclude)": self.separate_verifier and any(each.exclude for each in self.artifacts),
        }
        yield from (words for words, is_needed in reasons.items() if is_needed)
        yield from (f"the host's variable {name} ({key})" for key, name in self._host_variables())
        yield from (f"the unknown key `{key}`" for key in self._unknown_keys())

    def _is_newer_schema(self) -> bool:
        """Returns whether known keys may have another meaning in the task's schema, because it is newer or its version is not a number."""
        if not re.fullmatch(r"\d+(\.\d+)*", self.schema_version):
            return True
        return _numbers(self.schema_version) > _numbers(NEWEST_SCHEMA)

    def _networks(self) -> set[str]:
        return {phase.network_mode or self.environment.network_mode for phase in (self.agent, self.verifier)}

    def _host_variables(self) -> Iterator[tuple[str, str]]:
        for key, table in (("environment.env", self.environment), ("verifier.env", self.verifier), ("solution.env", self.solution)):
            templates = (_TEMPLATE.fullmatch(value) for value in table.env.values())
            yield from ((key, match[1]) for match in templates if match and match[2] is None)

    def _unknown_keys(self) -> Iterator[str]:
        tables = {"": self, "agent.": self.agent, "verifier.": self.verifier, "environment.": self.environment, "solution.": self.solution}
        artifacts = (("artifacts.", each) for each in self.artifacts)
        for place, table in (*tables.items(), *artifacts):
            yield from (f"{place}{name}" for name in table.model_extra or () if name not in OBSOLETE_KEYS)


def read_task_toml(file: Path) -> TaskToml:
    """Reads and checks a task.toml. Raises ConfigError with the file, the key and what would work."""
    try:
        data = tomllib.loads(read_text(file))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML; correct it: {error}") from error
    return validate(TaskToml, data, str(file))


def without_host(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with each `${NAME:-default}` replaced by its default, because a sandbox has no variables of the host."""
    return {name: (match[2] or "") if (match := _TEMPLATE.fullmatch(value)) else value for name, value in env.items()}


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def mebibytes(key: str, size: Any) -> int:
    """Converts a size of older schemas, such as `2G`, `512M` or `1024K`, to MiB."""
    match = _SIZE.fullmatch(size.strip().upper()) if isinstance(size, str) else None
    if match is None:
        raise ValueError(f"{key} must be a text such as '2G' or '512M', not {size!r}")
    return int(float(match[1]) * _MIB[match[2]])
