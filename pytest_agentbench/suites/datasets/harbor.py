"""Reads Harbor tasks: a folder of task directories, each with task.toml, instruction.md, environment/, tests/ and solution/.

The package `harbor` is not imported. docs/start/suites.md lists the supported features; a task that needs another one is skipped.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, field_validator, model_validator

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import validate
from pytest_agentbench.lib.file_system import EVERY_BIT, folder_sha256
from pytest_agentbench.lib.json_text import read_text
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import TASK_FILE, Scenario, Task, is_task_directory

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


INSTRUCTION, DOCKERFILE, TEST = "instruction.md", "environment/Dockerfile", "tests/test.sh"

#: Files and folders of a task directory that are part of its hash. Others, such as a README.md, do not change the task.
PARTS = (TASK_FILE, INSTRUCTION, "environment", "tests", "solution", "steps", "trajectory.json")

COMPOSE = ("docker-compose.yaml", "docker-compose.yml")


def load(folder: Path) -> Iterator[Scenario]:
    """Yields a scenario for each task directory, sorted by name. Other folders and files are ignored.

    A broken task directory is a scenario, too: its rollouts end as `infra_error` with the error, and the other tasks run. Raises
    ConfigError for a folder with an instruction but without task.toml.
    """
    for directory in sorted(each for each in folder.iterdir() if each.is_dir()):
        if is_task_directory(directory):
            yield _scenario_or_fault(directory)
        elif (directory / INSTRUCTION).is_file():
            raise ConfigError(f"{directory}: has an {INSTRUCTION} but no {TASK_FILE}; add one, or remove the folder")


def _scenario_or_fault(directory: Path) -> Scenario:
    try:
        return scenario(directory)
    except ConfigError as error:
        task = Task(str(directory.absolute()), digest=_digest(directory), broken=str(error))
        return Scenario(directory.name, ({"role": "user", "content": task.broken},), metadata={"label_source": "verifier"}, task=task)


def scenario(directory: Path) -> Scenario:
    """Returns the scenario of a task directory. Raises ConfigError if the directory is broken."""
    toml = read_task_toml(directory / TASK_FILE)
    task = _task(directory, toml)
    if not task.unsupported:
        _check_files(directory, toml)
    return Scenario(
        id=directory.name,
        messages=({"role": "user", "content": _instruction(directory / INSTRUCTION) if not task.unsupported else task.unsupported},),
        metadata={"label_source": "verifier", **_plain(toml.metadata), **_facts(toml, task)},
        task=task,
    )


def _task(directory: Path, toml: TaskToml) -> Task:
    environment, folder = toml.environment, directory / "environment"
    image = environment.docker_image or ""
    unsupported = [*toml.unsupported_features(), *_unsupported_files(directory)]
    limits = {"cpus": environment.cpus, "memory_mb": environment.memory_mb, "storage_mb": environment.storage_mb}
    return Task(
        folder=str(directory.absolute()),
        digest=_digest(directory),
        image=image,
        image_digest="" if image else folder_sha256([folder], directory, EVERY_BIT)[:16],
        build_timeout_s=environment.build_timeout_sec,
        **{name: value for name, value in limits.items() if value is not None},  # type: ignore[arg-type]  # each has its own type
        network=toml.network,
        workdir=environment.workdir,
        env=without_host(environment.env),
        agent_timeout_s=toml.agent.timeout_sec,
        agent_user=toml.agent.user,
        verifier_timeout_s=toml.verifier.timeout_sec,
        verifier_user=toml.verifier.user,
        verifier_env=without_host(toml.verifier.env),
        separate_verifier=toml.separate_verifier,
        artifacts=tuple(each.source for each in toml.artifacts),
        solution_env=without_host(toml.solution.env),
        unsupported=f"the task {directory.name} asks for {', '.join(unsupported)}: not supported" if unsupported else "",
    )


def _digest(directory: Path) -> str:
    return folder_sha256([directory / name for name in PARTS], directory)[:16]


def _unsupported_files(directory: Path) -> Iterator[str]:
    """Yields a noun phrase for each unsupported feature that a task needs because it contains a certain file."""
    for name in COMPOSE:
        if (directory / "environment" / name).exists():
            yield f"additional services (environment/{name})"
    if (directory / "trajectory.json").exists():
        yield "a conversation to continue (trajectory.json)"
    if (directory / "tests" / "Dockerfile").exists():
        yield "an image of its own for the verifier (tests/Dockerfile)"


def _check_files(directory: Path, toml: TaskToml) -> None:
    needed = [TEST] if toml.environment.docker_image else [DOCKERFILE, TEST]
    for name in needed:
        if not (directory / name).is_file():
            other = f", and {TASK_FILE} has no environment.docker_image" if name == DOCKERFILE else ""
            raise ConfigError(f"{directory}: {name} does not exist{other}; add the file")


def _instruction(file: Path) -> str:
    """Returns the text of an instruction, without the canary lines at its beginning."""
    lines = read_text(file).split("\n")
    while lines and _is_canary(lines[0]):
        lines.pop(0)
    text = "\n".join(lines).strip()
    if not text:
        raise ConfigError(f"{file}: is empty; it must contain the instruction for the agent")
    return text


def _is_canary(line: str) -> bool:
    """Returns whether a line is a canary: a comment by which benchmark texts in training data can be found. Agents do not see it."""
    text = line.strip().lower()
    return "canary" in text and (text.startswith("#") or (text.startswith("<!--") and text.endswith("-->")))


def _facts(toml: TaskToml, task: Task) -> Json:
    """Returns facts about a task for the metadata of its scenario, which reports and tests use: its name and time limits."""
    name = (toml.task or {}).get("name")
    return {
        **({"task": name} if isinstance(name, str) else {}),
        "agent_timeout_s": task.agent_timeout_s,
        "verifier_timeout_s": task.verifier_timeout_s,
    }


def _plain(metadata: Json) -> Any:
    """Converts values that JSON does not have, such as the dates of TOML, to texts."""
    return json.loads(json.dumps(metadata, default=str))
