"""The containers of sandboxes in the Docker Engine, and the images of tasks that they are made of: pulled by name, or built once
for each content.
"""

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

from pytest_agentbench.backends.stack.docker_engine import connect, speaking
from pytest_agentbench.errors import BackendError, InfraError
from pytest_agentbench.lib import file_system
from pytest_agentbench.lib.process import PROC, lives
from pytest_agentbench.lib.threads import in_thread
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.sandbox.tampering import OwnPrograms
from pytest_agentbench.suites.suite import Task

#: The program `nft`, with which sandbox.private_addresses closes private addresses.
FILTER_IMAGE, FILTER_DOCKERFILE = "agentbench-network-filter:1", "FROM alpine:3.20\nRUN apk add --no-cache nftables\n"
FILTER_BUILD_S = 120.0
WITHOUT_A_FILTER = (
    'say network_mode = \'no-network\' in task.toml, or open all addresses with `private_addresses: ["0.0.0.0/0", "::/0"]` in suite.yaml'
)

_POLL = 0.2  # seconds between two looks at a lock
_LAST_LINES = 20  # of a build that failed


def image_of(task: Task) -> str:
    """The name of a task's image in the engine."""
    return task.image or f"agentbench-task:{task.image_digest}"


def make_image(task: Task, on_progress: Callable[[str], None]) -> bool:
    """Sees to it that the engine has a task's image: whether it had none. Raises InfraError with why it cannot."""
    from pytest_agentbench.backends.stack.docker_engine import fetch, size_of

    if task.image:
        with closing(client()) as engine, infra():
            missing = size_of(engine, task.image) is None
            fetch(task.image, "missing", on_progress)
        return missing
    source = {"path": str(Path(task.folder, "environment"))}
    return _ensure_image(image_of(task), f"the image of {Path(task.folder).name}", source, task.build_timeout_s, on_progress)


def make_filter_image(on_progress: Callable[[str], None]) -> bool:
    """The same for FILTER_IMAGE."""
    source = {"fileobj": io.BytesIO(FILTER_DOCKERFILE.encode())}
    try:
        return _ensure_image(FILTER_IMAGE, f"the image {FILTER_IMAGE}", source, FILTER_BUILD_S, on_progress)
    except InfraError as error:
        raise InfraError(
            f"private addresses cannot be closed to sandboxes with the network `public`: {error}; build it where there is internet "
            f"(`printf '{FILTER_DOCKERFILE.encode('unicode_escape').decode()}' | docker build -t {FILTER_IMAGE} -`) and bring it by "
            f"`docker save` and `docker load`, or {WITHOUT_A_FILTER}"
        ) from error


def _ensure_image(name: str, what: str, source: Mapping[str, Any], seconds: float, on_progress: Callable[[str], None]) -> bool:
    """Builds an image from a `source` that the engine's client understands, unless there is one; whether there was none."""
    from pytest_agentbench.backends.stack.docker_engine import size_of

    lock = _lock(name, what, on_progress)
    try:
        with closing(client()) as engine, infra(what):
            if missing := size_of(engine, name) is None:
                engine.api.timeout = seconds  # that nothing may come for
                _build(engine, name, what, source, on_progress)
        return missing
    finally:
        lock.release()


def _lock(name: str, what: str, on_progress: Callable[[str], None]) -> file_system.Lock:
    """Waits until nobody on this machine builds the same image."""
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
        raise InfraError(f"the image of {where} cannot be built: {fault}; the end of what the build said:\n{tail}")


P = ParamSpec("P")
T = TypeVar("T")

CONFLICT = 409  # what an engine says of a container that is being removed
ANSWER = 120.0  # seconds that the engine may take for one answer: it starts many containers at a time


def client() -> Any:
    """Of the engine that DOCKER_HOST names; raises InfraError where none answers. To be closed."""
    with infra():
        engine = connect()
    engine.api.timeout = ANSWER
    return engine


@contextmanager
def infra(what: str = "") -> Iterator[None]:
    """Turns what goes wrong between us and an engine into an InfraError that starts with `what`."""
    try:
        with speaking(what):
            yield
    except BackendError as error:
        raise InfraError(str(error)) from error


async def call_engine(what: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a function that speaks to an engine returns; it has a thread of its own."""
    with infra(what):
        result: T = await in_thread(work, *args, **kwargs)
    return result


def remove(container: Any) -> None:
    """With all that runs in it; one that is gone already, or going, is none to speak of."""
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
    """Of a sandbox of this process; `deadline` in seconds of time.time()."""
    return {RUN: run, ROLLOUT: str(key), OWNER: owner(), DEADLINE: f"{deadline:.0f}"}


@cache
def owner() -> str:
    """This process: machine, process id and start time, for process ids are used again."""
    return f"{_machine()}:{os.getpid()}:{start_time(os.getpid())}"


def _machine() -> str:
    """Where a process id means what it means here: containers that share an engine may have one host name, but not one PID namespace."""
    namespace = PROC / "self" / "ns" / "pid"
    return f"{os.uname().nodename}/{namespace.stat().st_ino if namespace.exists() else 0}"


def start_time(pid: int) -> str:
    """When a process began, as its system counts; empty where it has ended, which a zombie has too: not every PID 1 collects it soon."""
    import psutil

    if not lives(pid):
        return ""
    try:
        if PROC.exists():  # in ticks since the boot: times of day are computed from it, and move with the clock
            return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
        return f"{psutil.Process(pid).create_time():.0f}"
    except (OSError, psutil.Error):
        return ""


def is_leftover(labels: DockerLabels, now: float | None = None) -> bool:
    """Whether nobody is there any more for a sandbox with these labels: its owner has ended, or its deadline is over."""
    if float(labels.get(DEADLINE, 0)) < (time.time() if now is None else now):
        return True
    machine, pid, start = labels[OWNER].rsplit(":", 2)
    return machine == _machine() and start_time(int(pid)) != start


PIDS = 512  # processes and threads at once
PUBLIC = "public"
NETWORKS = {PUBLIC: "bridge", "no-network": "none"}

#: What root may do in there: package managers and servers need it. All else that Docker gives by default is taken away.
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID", "SYS_CHROOT")


#: Storage drivers that may have quotas; with them `storage_mb` counts all that is written, not each file alone.
BTRFS = "btrfs"
QUOTAS = (BTRFS, "overlay2", "zfs")

KIND, UNLIMITED_KIND = "docker", "docker, where Docker's storage driver has no quotas"


def first_process(programs: OwnPrograms, seconds: float) -> list[str]:
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


def clean_up() -> list[str]:
    """Removes those whose owner has ended or whose deadline is over; what they were, a sentence each, none where no engine answers.

    Raises InfraError where an engine answers and some cannot be found or removed; the others are removed all the same.
    """
    return _remove(is_leftover)


def end_run(run: str) -> list[str]:
    """The same for those of a run that is over."""
    return _remove(lambda labels: labels.get(RUN) == run)


def _remove(is_leftover: Callable[[DockerLabels], bool]) -> list[str]:
    try:
        engine = client()
    except InfraError:
        return []  # where no engine answers there is no sandbox of ours
    removed, faults = [], []
    with closing(engine), infra("what sandboxes have left cannot be found"):
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
