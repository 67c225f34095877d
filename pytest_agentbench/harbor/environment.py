"""The sandbox of this package as an environment of Harbor: one container of a Docker Engine, without compose."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.cut_marks import ending
from pytest_agentbench.lib.file_system import EVERY_BIT, folder_sha256
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.sandbox.docker_sandbox import DockerSandbox
from pytest_agentbench.sandbox.sandbox import LARGEST, unpack
from pytest_agentbench.suites.suite import Task

# Seconds after which a forgotten sandbox ends. Harbor does not tell how long a trial may take.
A_DAY = 86400.0
COPY = 600.0  # Time limit for copying a folder, in seconds
FOLDER, DOCKERFILE = "environment", "Dockerfile"
COMPOSE = ("docker-compose.yaml", "docker-compose.yml")

_DOWNLOAD = "/.agentbench-download.tar"


class Environment(BaseEnvironment):  # type: ignore[misc]  # Harbor is not always installed
    """The environment for `harbor run -e pytest_agentbench.harbor:Environment`: a trial's sandbox, as in docs/terminal/sandboxes.md."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes Harbor's own arguments. Raises ConfigError if the task needs several containers, or has no image and no Dockerfile."""
        self._sandbox: DockerSandbox | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "agentbench"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    def _validate_definition(self) -> None:
        folder = self.environment_dir
        for name in COMPOSE:
            if (folder / name).exists():
                raise ConfigError(
                    f"{folder / name}: {self.type()} does not support services beside the sandbox; use Harbor's `docker` environment"
                )
        if not self.task_env_config.docker_image and (folder.name != FOLDER or not (folder / DOCKERFILE).is_file()):
            raise ConfigError(f"{folder}: the task has neither {FOLDER}/{DOCKERFILE} nor docker_image; add one of them")

    async def start(self, force_build: bool) -> None:  # noqa: ARG002 - an image is rebuilt only if its content changed
        task = self._task()
        key = RolloutKey("harbor", self.session_id)
        self._sandbox = DockerSandbox(self.session_id, key, task, A_DAY)
        await self._sandbox.start()
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    def _task(self) -> Task:
        """Returns a task with only the settings of the sandbox: image, limits, network, environment."""
        config, folder = self.task_env_config, self.environment_dir
        image = config.docker_image or ""
        limits = {"cpus": config.cpus, "memory_mb": config.memory_mb, "storage_mb": config.storage_mb}
        return Task(
            folder=str(folder.parent.absolute()),
            digest="",
            image=image,
            image_digest="" if image else folder_sha256([folder], folder.parent, EVERY_BIT)[:16],
            build_timeout_s=config.build_timeout_sec,
            network=self.network_policy.network_mode.value,
            workdir=config.workdir,
            env=self._startup_env(),
            **{name: value for name, value in limits.items() if value is not None},
        )

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Runs a command. Returns its stdout and stderr together as `stdout`. Raises RuntimeError if it took longer than `timeout_sec`."""
        user = self._resolve_user(user)
        done = await self._started_sandbox().exec(
            command,
            seconds=A_DAY if timeout_sec is None else timeout_sec,
            user=None if user is None else str(user),
            workdir=cwd,
            env=self._merge_env(env),
        )
        if done.exit_code is None:
            raise RuntimeError(f"the command took longer than {timeout_sec} s and was killed")
        return ExecResult(stdout=done.output, return_code=done.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await self._started_sandbox().put(Path(source_path), target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._started_sandbox().put(Path(source_dir), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        file = await self._started_sandbox().get(source_path, most=LARGEST)
        Path(target_path).write_bytes(file.content)  # noqa: ASYNC240 - its size is limited

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copies regular files and folders out of the sandbox. Leaves out links, pipes and devices."""
        sandbox = self._started_sandbox()
        pack = f"tar -cf {_DOWNLOAD} -C {shlex.quote(source_dir)} ."
        done = await sandbox.exec(pack, seconds=COPY, user="root", workdir="/")
        if done.exit_code != 0:
            raise OSError(f"{source_dir} in the sandbox cannot be copied: {ending(done.output.strip(), 300)}")
        tar = await sandbox.get(_DOWNLOAD, most=LARGEST)
        target = Path(target_dir)
        target.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - it does not block
        unpack(tar.content, target)

    async def stop(self, delete: bool) -> None:  # noqa: ARG002 - the container is always removed when it ends
        if self._sandbox is not None:
            await self._sandbox.end()

    def _started_sandbox(self) -> DockerSandbox:
        if self._sandbox is None:
            raise RuntimeError(f"the environment {self.session_id} is not started; call `start` first")
        return self._sandbox
