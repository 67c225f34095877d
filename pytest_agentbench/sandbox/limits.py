"""How a container of a task is made: its limits, what it may do, and the process that keeps it up."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_agentbench.sandbox.own_programs import OwnPrograms
from pytest_agentbench.suites.task import Task

PIDS = 512  # processes and threads at once
PUBLIC = "public"
NETWORKS = {PUBLIC: "bridge", "no-network": "none"}

#: What root may do in there: package managers and servers need it. All else that Docker gives by default is taken away.
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID", "SYS_CHROOT")


#: Storage drivers that may have quotas; with them `storage_mb` counts all that is written, not each file alone.
BTRFS = "btrfs"
QUOTAS = (BTRFS, "overlay2", "zfs")

KIND, UNLIMITED_KIND = "docker", "docker, where Docker's storage driver has no quotas"


def kept_up(programs: OwnPrograms, seconds: float) -> list[str]:
    """Returns the first process. The kernel reaps for it, no signal from inside reaches it, and with its end everything inside ends."""
    return [*programs.words("bash"), "-c", f"trap '' CHLD; exec {shlex.join(programs.words('sleep'))} {max(seconds, 1):.0f}"]


def options(task: Task, labels: Mapping[str, str], first: Sequence[str]) -> dict[str, Any]:
    """Returns what `containers.create` takes; `first` is the process with whose end the container ends."""
    from docker.types import LogConfig, Ulimit

    memory, storage = task.memory_mb << 20, task.storage_mb << 20
    return {
        "entrypoint": list(first),
        "command": [],
        "user": "root",
        "hostname": "sandbox",
        "working_dir": "/",  # the image's own may be gone when it starts again
        "environment": dict(task.env),
        "use_config_proxy": False,  # it is this user's
        "labels": dict(labels),
        "stop_signal": "SIGKILL",  # nobody in there is to be asked
        "nano_cpus": int(task.cpus * 1e9),
        "mem_limit": memory,
        "memswap_limit": memory,
        "pids_limit": PIDS,
        "ulimits": [Ulimit(name="fsize", soft=storage, hard=storage), Ulimit(name="core", soft=0, hard=0)],
        "network_mode": NETWORKS[task.network],
        "cap_drop": ["ALL"],
        "cap_add": list(CAPABILITIES),
        "security_opt": ["no-new-privileges"],
        "healthcheck": {"test": ["NONE"]},
        "log_config": LogConfig(type="none"),
    }


def create(engine: Any, image: Any, task: Task, labels: Mapping[str, str], first: Sequence[str]) -> tuple[Any, str]:
    """A container that is not started yet, and the kind of sandbox that it is: whether there are quotas is told by trying."""
    from docker.errors import APIError

    settings = options(task, labels, first)
    driver = engine.info()["Driver"]
    if driver in QUOTAS:
        size = task.storage_mb + (_size_mb(image) if driver == BTRFS else 0)  # whose quota counts what the image has, too
        try:
            return engine.containers.create(image.id, storage_opt={"size": f"{size}m"}, **settings), KIND
        except APIError as error:
            if "storage-opt" not in str(error) and "quota" not in str(error).lower():
                raise
    return engine.containers.create(image.id, **settings), UNLIMITED_KIND


def unenforced(engine: Any, image: Any, task: Task) -> Iterator[str]:
    """Yields a sentence for each limit of a task that this engine does not keep; a container that is not started tries it."""
    container, kind = create(engine, image, task, {}, ["true"])
    container.remove(force=True, v=True)
    if kind == UNLIMITED_KIND:
        yield (
            "Docker's storage driver has no quotas, so storage_mb limits each file of a sandbox and not all files together; "
            "btrfs, zfs, and overlay2 on XFS with pquota have quotas"
        )


def _size_mb(image: Any) -> int:
    """MiB, rounded up."""
    return -(-int(image.attrs["Size"]) >> 20)
