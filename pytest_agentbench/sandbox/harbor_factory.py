"""Opens sandboxes that are environments of Harbor (`sandbox: harbor:NAME` in suite.yaml). Needs the package `harbor`."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import math
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import ConfigError, InfraError, unknown_name
from pytest_agentbench.lib.threads import in_thread
from pytest_agentbench.lib.user_code import is_import_path
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.sandbox.harbor_sandbox import HarborSandbox
from pytest_agentbench.suites.suite import HARBOR, Task

PACKAGE = "harbor"
OLDEST = (3, 12)  # oldest Python version that Harbor supports

#: Environment variable that controls Harbor's telemetry, which is on by default. Set to off here, unless the user has set it.
TELEMETRY = "HARBOR_TELEMETRY"


def check_harbor(what: str) -> None:
    """Raises ConfigError with the command to install Harbor if it is missing. `what` is the setting that needs it."""
    os.environ.setdefault(TELEMETRY, "0")
    if importlib.util.find_spec(PACKAGE) is not None:
        return
    python = ".".join(map(str, OLDEST))
    here = f"; this is Python {sys.version_info.major}.{sys.version_info.minor}" if sys.version_info < OLDEST else ""
    raise ConfigError(
        f"{what} needs the package `harbor`, which is not installed here: pip install 'pytest-agentbench[harbor]', "
        f"under Python {python} or newer{here}"
    )


START = 300.0  # seconds for the start of an environment, in addition to the build timeout
COMPOSE = "docker"  # the environment that needs `docker compose`


def check_sandbox(sandbox: str) -> None:
    """Raises ConfigError if `sandbox` of suite.yaml is unknown, or not available in this interpreter."""
    if not sandbox.startswith(HARBOR):
        return
    check_harbor(f"sandbox: {sandbox}")
    name = sandbox.removeprefix(HARBOR)
    from harbor.models.environment_type import EnvironmentType

    known = [each.value for each in EnvironmentType]
    if not is_import_path(name) and name not in known:
        raise ConfigError(
            f"sandbox: {unknown_name('environment of Harbor', name, known)}, or an import path such as my_package.clouds:Ours"
        )


async def open_harbor_sandbox(key: RolloutKey, task: Task, on_end: Callable[[], None]) -> HarborSandbox:
    """Starts an environment of Harbor as a sandbox. Raises InfraError if that fails."""
    await in_thread(_check_ready, task.sandbox)
    folder = Path(tempfile.mkdtemp(prefix="agentbench-harbor-"))

    def end() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        on_end()

    environment = None
    try:
        environment = _environment(key, task, folder)
        async with asyncio.timeout(task.build_timeout_s + START):
            await environment.start(force_build=False)
        sandbox = HarborSandbox(environment, task.sandbox, another=lambda: open_harbor_sandbox(key, task, lambda: None), on_end=end)
        await sandbox.settle()
    except BaseException as error:
        with suppress(Exception):  # The original error is reported.
            if environment is not None:
                await asyncio.shield(environment.stop(delete=True))
        end()
        if isinstance(error, InfraError) or not isinstance(error, Exception):
            raise
        why = f"it did not start within {task.build_timeout_s + START:g} s" if isinstance(error, TimeoutError) else str(error)
        raise InfraError(f"the sandbox {task.sandbox} of {key}: {type(error).__name__}: {' '.join(why.split())}") from error
    return sandbox


@functools.cache
def _check_ready(sandbox: str) -> None:
    """Raises InfraError if this machine lacks a program or key that an environment needs. Success is cached."""
    try:
        check_sandbox(sandbox)
    except ConfigError as error:
        raise InfraError(str(error)) from error
    from harbor.environments.factory import EnvironmentFactory

    name = sandbox.removeprefix(HARBOR)
    try:
        EnvironmentFactory.run_preflight(*_environment_type(name))
    except (Exception, SystemExit) as error:
        raise InfraError(f"{sandbox}: {error}") from error
    if name == COMPOSE and (why := compose_problem()):
        raise InfraError(f"{sandbox}: {why}")


def compose_problem() -> str:
    """Returns what is missing for Harbor's environment `docker`, or an empty text if nothing is."""
    try:
        done = subprocess.run(["docker", "compose", "version", "--short"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"`docker compose version` cannot be run: {error}; install Docker Compose version 2"
    if done.returncode == 0 and (version := re.match(r"v?(\d+)\.", done.stdout)) and int(version[1]) >= 2:
        return ""
    return "Harbor's `docker` needs Docker Compose version 2 (`docker compose`), which is not installed; Debian trixie has a package"


def _environment_type(name: str) -> tuple[Any, str | None]:
    """Returns Harbor's (type, import path) for an environment. One of them is None."""
    from harbor.models.environment_type import EnvironmentType

    return (None, name) if is_import_path(name) else (EnvironmentType(name), None)


def _environment(key: RolloutKey, task: Task, folder: Path) -> Any:
    """Creates an environment of Harbor without starting it. `folder` is for the files that it writes."""
    from harbor.environments.factory import EnvironmentFactory
    from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
    from harbor.models.trial.config import EnvironmentConfig as Choice
    from harbor.models.trial.paths import TrialPaths

    type, import_path = _environment_type(task.sandbox.removeprefix(HARBOR))
    config = EnvironmentConfig(
        docker_image=task.image or None,
        build_timeout_sec=task.build_timeout_s,
        cpus=math.ceil(task.cpus),
        memory_mb=task.memory_mb,
        storage_mb=task.storage_mb,
        workdir=task.workdir,
        env=dict(task.env),
    )
    policy = NetworkPolicy(network_mode=NetworkMode(task.network))
    paths = TrialPaths(folder)
    paths.mkdir()
    return EnvironmentFactory.create_environment_from_config(
        Choice(type=type, import_path=import_path),
        environment_dir=Path(task.folder) / "environment",
        environment_name=key.scenario,
        session_id=f"{re.sub(r'[^A-Za-z0-9-]', '-', key.scenario)[:40]}__{secrets.token_hex(4)}",
        trial_paths=paths,
        task_env_config=config,
        network_policy=policy,
        phase_network_policies=[policy],
    )
