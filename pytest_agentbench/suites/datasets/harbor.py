"""Reads Harbor tasks: a folder of task directories, each with task.toml, instruction.md, environment/, tests/ and solution/.

The package `harbor` is not imported. docs/suites.md lists the supported features; a task that needs another one is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.file_system import EVERY_BIT, folder_sha256
from pytest_agentbench.lib.json_text import read_text
from pytest_agentbench.records import Json
from pytest_agentbench.suites.datasets.task_toml import TaskToml, read_task_toml, without_host
from pytest_agentbench.suites.suite import TASK_FILE, Scenario, Task, is_task_directory

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
