"""Services that are containers of the Docker Engine on this machine."""

from __future__ import annotations

import math
import re
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_agentbench.backends.stack.docker_engine import as_backend_error, client_errors, connect, fetch
from pytest_agentbench.backends.stack.spec import ContainerSpec
from pytest_agentbench.errors import BackendError
from pytest_agentbench.lib.process import lives
from pytest_agentbench.lib.threads import daemon

#: Exit code of a container whose real one is unknown: it was removed by another program, or died with the engine.
LOST = -1

_RECONNECT_PAUSE = 0.5  # seconds between two attempts to reach an engine that is restarting
_LOG_TIMEOUT = 10.0  # seconds to wait for the end of the log after the container has ended


def _ignore_progress(line: str) -> None:
    """Does nothing with a line about the progress of a pull."""


class Container:
    """One service of a stack that runs in a container, on the host's network. It can be started once."""

    def __init__(
        self,
        name: str,
        image: str,
        command: Sequence[str],
        spec: ContainerSpec,
        env: Mapping[str, str],
        labels: Mapping[str, str],
        gpu_ids: Sequence[str],
        log: Path,
        cwd: str | None = None,
        on_progress: Callable[[str], None] = _ignore_progress,
    ) -> None:
        """Creates the object; `start` starts the container. Templates in all values have already been expanded.

        `gpu_ids` are indexes or UUIDs of the driver, `log` is a file that gets the output, and `cwd` is a folder in the container.
        """
        self.name, self.image, self.log = name, image, log
        self.command = f"{image}: {shlex.join([*(spec.entrypoint or []), *command])}".rstrip(": ")
        self.pid: int | None = None  # process id on the host of its first process, docker-init
        self._arguments, self._spec, self._env, self._labels = list(command), spec, dict(env), dict(labels)
        self._gpu_ids, self._cwd, self._on_progress = list(gpu_ids), cwd, on_progress
        self._engine: Any = None
        self._container: Any = None
        self._reader: threading.Thread | None = None
        self._code: int | None = None

    def start(self) -> None:
        """Starts the container. Returns when its first process runs. Raises BackendError with advice if the container cannot be started."""
        self.stop(0)
        self._container, self._code = None, None
        mounts = [_mount(self.name, host, inside) for host, inside in self._spec.mounts.items()]
        fetch(self.image, self._spec.pull, self._on_progress)
        self._engine = connect()
        try:
            with as_backend_error(f"{self.name}: {self.image} cannot be started"):
                self._warn_if_rootless()
                self._container = self._engine.containers.create(self.image, self._arguments or None, **self._options(mounts))
                self._container.start()
                self._container.reload()
        except BaseException:
            self._discard()
            raise
        self.pid = self._container.attrs["State"]["Pid"] or None
        self._reader = daemon(self._read_log, name=f"log-{self.name}")

    def exit_code(self) -> int | None:
        """Returns the exit code of the container, None while it runs, or LOST if the exit code is unknown."""
        if self._code is None and self._container is not None:
            self._code = self._read_exit_code()
        return self._code

    def wait(self) -> int:
        """Blocks until the container has ended, and returns its exit code."""
        while (code := self.exit_code()) is None:
            try:
                self._code = int(self._engine.api.wait(self._container.id, timeout=None)["StatusCode"])
            except client_errors():
                time.sleep(_RECONNECT_PAUSE)  # The engine is down. `exit_code` finds out whether the container is, too.
        return code

    def health(self) -> str | None:
        """Returns the result of the image's HEALTHCHECK: `starting`, `healthy` or `unhealthy`.

        Returns None if the image has no HEALTHCHECK, or if the container does not run.
        """
        with suppress(*client_errors()):
            self._container.reload()
            return (self._container.attrs["State"].get("Health") or {}).get("Status")
        return None

    def stop(self, grace: float) -> None:
        """Stops and removes the container: SIGTERM (or the image's STOPSIGNAL), and SIGKILL after `grace` seconds. May be called again."""
        if self._engine is None:
            return
        from docker.errors import NotFound

        with as_backend_error(f"{self.name}: container {self._container.short_id} cannot be stopped"), suppress(NotFound):
            self._container.stop(timeout=math.ceil(grace))
            self.exit_code()  # Exit code and log are lost when the container is removed.
            self._end_of_log()
            self._container.remove(force=True, v=True)
        self._close()

    def _read_exit_code(self) -> int | None:
        from docker.errors import NotFound

        try:
            self._container.reload()
        except NotFound:
            return LOST
        except client_errors():  # Containers can outlive an engine that was killed.
            return None if self.pid and lives(self.pid) else LOST
        state = self._container.attrs["State"]
        return int(state["ExitCode"]) if state["Status"] in ("exited", "dead", "removing") else None

    def _options(self, mounts: list[Any]) -> dict[str, Any]:
        from docker.types import DeviceRequest, LogConfig, Ulimit

        gpus = [DeviceRequest(driver="nvidia", device_ids=self._gpu_ids, capabilities=[["gpu"]])] if self._gpu_ids else None
        return {
            "name": re.sub(r"[^\w.-]", "-", self.name),
            "labels": self._labels,
            "environment": self._env,
            "network_mode": "host",
            "init": True,  # docker-init forwards signals and reaps zombies, whatever the image runs first.
            "log_config": LogConfig(type="json-file"),  # This driver is always available and supports reading.
            "device_requests": gpus,
            "mounts": mounts,
            "ulimits": [Ulimit(name=name, soft=limit, hard=limit) for name, limit in self._spec.ulimits.items()],
            "shm_size": self._spec.shm_size,
            "mem_limit": self._spec.memory,
            "entrypoint": self._spec.entrypoint,
            "user": self._spec.user,
            "working_dir": self._cwd,
        }

    def _warn_if_rootless(self) -> None:
        if any("rootless" in option for option in self._engine.info().get("SecurityOptions") or ()):
            self._on_progress(
                f"{self.name}: Docker runs rootless here, and its host network is often not this machine's; see docs/backends/containers.md"
            )

    def _read_log(self) -> None:
        """Copies the output of the container to the log until it ends."""
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab", buffering=0) as log:
                for chunk in self._container.logs(stream=True, follow=True):
                    log.write(chunk)
        except client_errors() as error:  # The engine is down or the disk is full. The service may still run.
            self._on_progress(f"{self.name}: the log {self.log} is incomplete from here on: {error}")

    def _discard(self) -> None:
        """Removes a container that could not be started."""
        with suppress(*client_errors()):
            if self._container is not None:
                self._container.remove(force=True, v=True)
        self._close()

    def _end_of_log(self) -> None:
        if self._reader is not None:
            self._reader.join(_LOG_TIMEOUT)

    def _close(self) -> None:
        self._end_of_log()  # Needed if another program removed the container.
        self._engine.close()
        self._engine, self._reader = None, None


def _mount(name: str, host: str, inside: str) -> Any:
    from docker.types import Mount

    if not Path(host).exists():
        raise BackendError(f"{name}: {host} is mounted into the container and does not exist; create it, or change `container.mounts`")
    read_only = inside.endswith(":ro")
    return Mount(target=inside.removesuffix(":ro"), source=str(Path(host).resolve()), type="bind", read_only=read_only)
