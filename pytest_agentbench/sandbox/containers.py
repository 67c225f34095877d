"""The Docker containers of sandboxes, and the images of tasks: pulled by name, or built once for each content."""

from __future__ import annotations

import io
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pytest_agentbench.backends.stack.docker_engine import as_backend_error, connect
from pytest_agentbench.errors import BackendError, InfraError
from pytest_agentbench.lib import file_system
from pytest_agentbench.lib.process import PROC, lives
from pytest_agentbench.lib.threads import in_thread
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.sandbox.tampering import OwnPrograms
from pytest_agentbench.suites.suite import Task

#: The image with the program `nft`, which blocks private addresses.
FILTER_IMAGE, FILTER_DOCKERFILE = "agentbench-network-filter:1", "FROM alpine:3.20\nRUN apk add --no-cache nftables\n"
FILTER_BUILD_S = 120.0
WITHOUT_A_FILTER = (
    'set network_mode = \'no-network\' in task.toml, or open all addresses with `private_addresses: ["0.0.0.0/0", "::/0"]` in suite.yaml'
)

_POLL = 0.2  # seconds between two attempts to take a lock
_LAST_LINES = 20  # lines of output of a failed build in its error


def image_of(task: Task) -> str:
    """Returns the name of a task's image in the Docker Engine."""
    return task.image or f"agentbench-task:{task.image_digest}"


def make_image(task: Task, on_progress: Callable[[str], None]) -> bool:
    """Pulls or builds a task's image if it is missing. Returns whether it was missing. Raises InfraError with the reason if that fails."""
    from pytest_agentbench.backends.stack.docker_engine import fetch, size_of

    if task.image:
        with closing(client()) as engine, infra():
            missing = size_of(engine, task.image) is None
            fetch(task.image, "missing", on_progress)
        return missing
    source = {"path": str(Path(task.folder, "environment"))}
    return _ensure_image(image_of(task), f"the image of {Path(task.folder).name}", source, task.build_timeout_s, on_progress)


def make_filter_image(on_progress: Callable[[str], None]) -> bool:
    """Builds the image with the packet filter if it is missing. Returns whether it was missing. Raises InfraError if that fails."""
    source = {"fileobj": io.BytesIO(FILTER_DOCKERFILE.encode())}
    try:
        return _ensure_image(FILTER_IMAGE, f"the image {FILTER_IMAGE}", source, FILTER_BUILD_S, on_progress)
    except InfraError as error:
        raise InfraError(
            f"private addresses cannot be closed to sandboxes with the network `public`: {error}; build the image on a machine with "
            f"internet access (`printf '{FILTER_DOCKERFILE.encode('unicode_escape').decode()}' | docker build -t {FILTER_IMAGE} -`), copy "
            f"it with `docker save` and `docker load`, or {WITHOUT_A_FILTER}"
        ) from error


def _ensure_image(name: str, what: str, source: Mapping[str, Any], seconds: float, on_progress: Callable[[str], None]) -> bool:
    """Builds an image if it is missing. Returns whether it was missing. `source` has the arguments for `build` of the Docker client."""
    from pytest_agentbench.backends.stack.docker_engine import size_of

    lock = _lock(name, what, on_progress)
    try:
        with closing(client()) as engine, infra(what):
            if missing := size_of(engine, name) is None:
                engine.api.timeout = seconds  # seconds without any output of the build
                _build(engine, name, what, source, on_progress)
        return missing
    finally:
        lock.release()


def _lock(name: str, what: str, on_progress: Callable[[str], None]) -> file_system.Lock:
    """Waits until no other process on this machine builds the same image, and takes the lock."""
    with infra():
        while isinstance(lock := file_system.take(f"image-{name}", "building an image"), str):
            on_progress(f"{what}: {lock}")
            time.sleep(_POLL)
    return lock


def _build(engine: Any, name: str, what: str, source: Mapping[str, Any], on_progress: Callable[[str], None]) -> None:
    lines, fault = list[str](), ""
    for event in engine.api.build(tag=name, network_mode="host", rm=True, forcerm=True, decode=True, **source):
        if line := event.get("stream", "").strip():
            lines.append(line)
            if line.startswith("Step "):
                on_progress(f"building {what}: {line}")
        fault = event.get("error", fault).strip()
    if fault:
        tail = "\n".join(lines[-_LAST_LINES:])
        where = source.get("path", "its Dockerfile")
        raise InfraError(f"the image of {where} cannot be built: {fault}; the end of the build output:\n{tail}")


P = ParamSpec("P")
T = TypeVar("T")

CONFLICT = 409  # HTTP status for a container that is already being removed
ANSWER = 120.0  # seconds for an answer of the engine, which may be starting many containers at the same time


def client() -> Any:
    """Returns a client of the Docker Engine in DOCKER_HOST, or of the default one. The caller closes it. Raises InfraError without one."""
    with infra():
        engine = connect()
    engine.api.timeout = ANSWER
    return engine


@contextmanager
def infra(what: str = "") -> Iterator[None]:
    """Converts errors of the communication with the Docker Engine within the block to an InfraError that starts with `what`."""
    try:
        with as_backend_error(what):
            yield
    except BackendError as error:
        raise InfraError(str(error)) from error


async def call_engine(what: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs a function that calls the Docker Engine in a thread. Returns its result. Errors become InfraErrors that start with `what`."""
    with infra(what):
        result: T = await in_thread(work, *args, **kwargs)
    return result


def remove(container: Any) -> None:
    """Removes a container and ends all its processes. Does nothing if it is already removed, or being removed."""
    from docker.errors import APIError, NotFound

    with suppress(NotFound):
        try:
            container.remove(force=True, v=True)
        except APIError as error:
            if error.status_code != CONFLICT:
                raise


PREFIX = "pytest-agentbench.sandbox"
DockerLabels = Mapping[str, str]
RUN, ROLLOUT, OWNER, DEADLINE = (f"{PREFIX}.{name}" for name in ("run", "rollout", "owner", "deadline"))


def labels(run: str, key: RolloutKey, deadline: float) -> dict[str, str]:
    """Returns the labels of a sandbox of this process. `deadline` is in seconds of time.time()."""
    return {RUN: run, ROLLOUT: str(key), OWNER: owner(), DEADLINE: f"{deadline:.0f}"}


@cache
def owner() -> str:
    """Returns an identifier of this process: machine, process id and start time (because process ids are reused)."""
    return f"{_machine()}:{os.getpid()}:{start_time(os.getpid())}"


def _machine() -> str:
    """Returns an identifier of the PID namespace of this process.

    The host name alone is not enough: containers that share an engine may have the same host name, but different PID namespaces.
    """
    namespace = PROC / "self" / "ns" / "pid"
    return f"{os.uname().nodename}/{namespace.stat().st_ino if namespace.exists() else 0}"


def start_time(pid: int) -> str:
    """Returns the start time of a process, or an empty text if it has ended. A zombie counts as ended, because some are never reaped."""
    import psutil

    if not lives(pid):
        return ""
    try:
        if PROC.exists():  # Ticks since boot. The time of day would change when the clock is set.
            return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
        return f"{psutil.Process(pid).create_time():.0f}"
    except (OSError, psutil.Error):
        return ""


def is_leftover(labels: DockerLabels, now: float | None = None) -> bool:
    """Returns whether the owner of a sandbox with these labels has ended, or its deadline has passed."""
    if float(labels.get(DEADLINE, 0)) < (time.time() if now is None else now):
        return True
    machine, pid, start = labels[OWNER].rsplit(":", 2)
    return machine == _machine() and start_time(int(pid)) != start


PIDS = 512  # processes and threads at the same time
PUBLIC = "public"
NETWORKS = {PUBLIC: "bridge", "no-network": "none"}

#: Capabilities of root in a container, which package managers and servers need. Docker's other default capabilities are dropped.
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID", "SYS_CHROOT")


#: Storage drivers that may support quotas. With quotas, `storage_mb` limits all written data instead of each file.
BTRFS = "btrfs"
QUOTAS = (BTRFS, "overlay2", "zfs")

KIND, UNLIMITED_KIND = "docker", "docker, where Docker's storage driver has no quotas"


def first_process(programs: OwnPrograms, seconds: float) -> list[str]:
    """Returns the command of a container's first process, which sleeps for `seconds`. When it ends, all processes inside end.

    The process ignores SIGCHLD, so the kernel removes ended orphans. Signals from inside do not reach it.
    """
    return [*programs.words("bash"), "-c", f"trap '' CHLD; exec {shlex.join(programs.words('sleep'))} {max(seconds, 1):.0f}"]


def options(task: Task, labels: Mapping[str, str], first: Sequence[str]) -> dict[str, Any]:
    """Returns the arguments with which the Docker client creates the container of a task.

    `first` is the command of the first process; the container ends with it.
    """
    from docker.types import LogConfig, Ulimit

    memory, storage = task.memory_mb << 20, task.storage_mb << 20
    return {
        "entrypoint": list(first),
        "command": [],
        "user": "root",
        "hostname": "sandbox",
        "working_dir": "/",  # An agent may have removed the image's working directory before a restart.
        "environment": dict(task.env),
        "use_config_proxy": False,  # The proxy settings are private to this user.
        "labels": dict(labels),
        "stop_signal": "SIGKILL",  # Processes inside must not delay the stop.
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
    """Creates a container without starting it, with a disk quota if the Docker Engine accepts one.

    Returns the container, and the kind of its sandbox for the record: KIND with a quota, UNLIMITED_KIND without.
    """
    from docker.errors import APIError

    settings = options(task, labels, first)
    driver = engine.info()["Driver"]
    if driver in QUOTAS:
        size = task.storage_mb + (_size_mb(image) if driver == BTRFS else 0)  # The quota of btrfs includes the image.
        try:
            return engine.containers.create(image.id, storage_opt={"size": f"{size}m"}, **settings), KIND
        except APIError as error:
            if "storage-opt" not in str(error) and "quota" not in str(error).lower():
                raise
    return engine.containers.create(image.id, **settings), UNLIMITED_KIND


def unenforced(engine: Any, image: Any, task: Task) -> Iterator[str]:
    """Yields a sentence for each limit of a task that this Docker Engine does not enforce. To find out, creates and removes a container."""
    container, kind = create(engine, image, task, {}, ["true"])
    container.remove(force=True, v=True)
    if kind == UNLIMITED_KIND:
        yield (
            "Docker's storage driver has no quotas, so storage_mb limits each file of a sandbox and not all files together; "
            "btrfs, zfs, and overlay2 on XFS with pquota have quotas"
        )


def _size_mb(image: Any) -> int:
    """Returns the size of an image in MiB, rounded up."""
    return -(-int(image.attrs["Size"]) >> 20)


def clean_up() -> list[str]:
    """Removes the sandboxes whose owner has ended or whose deadline has passed. Returns a description of each.

    Returns an empty list if no Docker Engine answers. Raises InfraError if sandboxes cannot be listed or removed, after it has removed the
    others.
    """
    return _remove(is_leftover)


def end_run(run: str) -> list[str]:
    """Removes the sandboxes of a finished run, also those of its node workers, whose label begins with the run's.

    Returns a description of each, and raises InfraError as `clean_up` does.
    """
    return _remove(lambda labels: labels.get(RUN) == run or labels.get(RUN, "").startswith(f"{run}-"))


def _remove(is_leftover: Callable[[DockerLabels], bool]) -> list[str]:
    try:
        engine = client()
    except InfraError:
        return []  # Without an engine there are no sandboxes.
    removed, faults = [], []
    with closing(engine), infra("leftover sandboxes cannot be listed"):
        for container in engine.containers.list(all=True, filters={"label": OWNER}, ignore_removed=True):
            if is_leftover(container.labels):
                what = f"sandbox {container.short_id} of {container.labels.get(ROLLOUT)}, run {container.labels.get(RUN) or '(none)'}"
                try:
                    with infra(f"{what} cannot be removed"):
                        remove(container)
                    removed.append(what)
                except InfraError as error:
                    faults.append(str(error))
    if faults:
        raise InfraError("; ".join([*faults, *(f"{what} is removed" for what in removed)]))
    return removed
