"""Which GPUs this session may use, and how it gets some of them for itself among all users of the host."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from pytest_agentbench.backends.machine import nvml
from pytest_agentbench.errors import MissingError
from pytest_agentbench.lib import file_system, process

POLL = 1.0  # seconds between two tries
FREE = 0.9  # share of a GPU's memory that has to be free
NAME = re.compile(r"\d+|GPU-[0-9a-fA-F-]+|MIG-[0-9a-zA-Z/-]+")


class Gpu(NamedTuple):
    """A GPU, or a MIG part of one."""

    id: str  # as CUDA_VISIBLE_DEVICES names it
    uuid: str = ""  # empty where NVML is not asked

    @property
    def lock(self) -> str:
        return self.uuid or f"gpu-{self.id}"


@dataclass
class Lease:
    """GPUs that no other session of this host gets, until `release` or the end of this process."""

    gpus: tuple[Gpu, ...] = ()
    locks: tuple[file_system.Lock, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(gpu.id for gpu in self.gpus)

    def release(self) -> None:
        """May be called twice."""
        held, self.locks = self.locks, ()
        for lock in held:
            lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.release()


def visible() -> list[Gpu]:
    """The caller's GPUs: AGENTBENCH_GPUS, of which NVML is asked nothing; CUDA_VISIBLE_DEVICES; or all that NVML knows."""
    if (listed := os.environ.get("AGENTBENCH_GPUS")) is not None:
        return [Gpu(name.strip()) for name in listed.split(",") if name.strip()]
    devices = nvml.devices()
    if (listed := os.environ.get("CUDA_VISIBLE_DEVICES")) is None:
        return [Gpu(part.number or part.uuid, part.uuid) for device in devices for part in device.parts or (device,)]
    return named(listed, devices)


def named(listed: str, devices: Sequence[nvml.Device]) -> list[Gpu]:
    """As CUDA reads its variable: the names up to the first one that means no GPU."""
    gpus: list[Gpu] = []
    for name in map(str.strip, listed.split(",")):
        uuid = _uuid(name, devices) if devices else ""
        if not NAME.fullmatch(name) or uuid is None or name in (gpu.id for gpu in gpus):
            break
        gpus.append(Gpu(name, uuid))
    return gpus


def _uuid(name: str, devices: Sequence[nvml.Device]) -> str | None:
    """The GPU that an index, a UUID or the start of one means. An index or a UUID of a GPU in parts means its first part."""
    wholes = {device.number: device for device in devices}
    if device := wholes.get(str(int(name)) if name.isdecimal() else ""):
        return (device.parts or (device,))[0].uuid
    parts = {part.uuid: part.uuid for device in devices for part in device.parts}
    uuids = {**{device.uuid: (device.parts or (device,))[0].uuid for device in devices}, **parts}
    meant = [uuids[name]] if name in uuids else [full for uuid, full in uuids.items() if uuid.startswith(name)]
    return meant[0] if len(meant) == 1 else None


def lease(
    count: int,
    wait_s: float = 0,
    on_wait: Callable[[str], None] | None = None,
    *,
    named: Sequence[str | int] = (),
    stack: str = "a stack",
) -> Lease:
    """The GPUs that are named (by index or UUID, as they are visible), and after them so many others; all of them or none.

    Waits up to `wait_s` seconds and tells `on_wait` once a second what is missing. Raises MissingError that says it, at once
    where waiting cannot help.
    """
    chosen, others = _candidates(count, [str(name) for name in named])
    deadline = time.monotonic() + wait_s
    while True:
        attempt = _take(chosen, others, count, stack)
        if isinstance(attempt, Lease):
            return attempt
        why = f"{stack} needs {_gpus(len(chosen) + count)}, and too few are free: {'; '.join(attempt)}"
        if (left := deadline - time.monotonic()) <= 0:
            raise MissingError(f"{why}{f' (waited {wait_s:g} s)' if wait_s else ''}")
        if on_wait is not None:
            on_wait(why)
        time.sleep(min(POLL, left))


def refuse_too_few(count: int, named: Sequence[str]) -> None:
    """Raises MissingError where so many GPUs are not here at all, whoever has them now."""
    if count or named:
        _candidates(count, named)


def _candidates(count: int, names: Sequence[str]) -> tuple[list[Gpu], list[Gpu]]:
    """The GPUs that are named, and those among which to choose; raises MissingError where there are too few."""
    there, chosen = visible(), find(names)
    have = f"visible here: {', '.join(gpu.id for gpu in there) or _none_visible()}"
    if absent := [name for name in names if not any(_is_meant(gpu, name) for gpu in there)]:
        raise MissingError(f"GPU {absent[0]} wanted; {have}")
    if len(chosen) != len(names):
        raise MissingError(
            f"{len(names)} GPUs named, {', '.join(names)}, which are {_gpus(len(chosen))}: {', '.join(gpu.id for gpu in chosen)}"
        )
    if count + len(chosen) > len(there):
        raise MissingError(f"{_gpus(count + len(chosen))} wanted; {have}")
    return chosen, [gpu for gpu in there if gpu not in chosen]


def _is_meant(gpu: Gpu, name: str) -> bool:
    return name in (gpu.id, gpu.uuid) or (name.startswith(("GPU-", "MIG-")) and gpu.uuid.startswith(name))


def _none_visible() -> str:
    for variable in ("AGENTBENCH_GPUS", "CUDA_VISIBLE_DEVICES"):
        if variable in os.environ:
            return f"none, for {variable} is {os.environ[variable]!r}"
    return f"none ({nvml.library()[1] or 'NVML knows of none'})"


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


def _take(chosen: Sequence[Gpu], others: Sequence[Gpu], count: int, stack: str) -> Lease | list[str]:
    """A lease, or why each GPU that was tried is not to be had; then nothing is held."""
    named, busy = _try(chosen, len(chosen), stack)
    rest, more = (Lease(), []) if busy else _try(others, count, stack)
    both = Lease((*named.gpus, *rest.gpus), (*named.locks, *rest.locks))
    if len(both.gpus) == len(chosen) + count:
        return both
    both.release()
    return busy + more


def _try(candidates: Sequence[Gpu], count: int, stack: str) -> tuple[Lease, list[str]]:
    """Up to so many of them, and why others are not to be had; gives up once they cannot be enough."""
    held: list[tuple[Gpu, file_system.Lock]] = []
    busy: list[str] = []
    for gpu in candidates:
        if len(held) == count or len(candidates) - len(busy) < count:
            break
        lock = file_system.take(gpu.lock, stack)
        if isinstance(lock, str):
            busy.append(f"GPU {gpu.id} is {lock}")
        elif used := in_use(gpu):
            lock.release()
            busy.append(used)
        else:
            held.append((gpu, lock))
    return Lease(tuple(gpu for gpu, _ in held), tuple(lock for _, lock in held)), busy


def in_use(gpu: Gpu) -> str:
    """Who or what is on a GPU besides this process; empty when it is free, or where NVML is not asked."""
    if not gpu.uuid:
        return ""
    usage = nvml.usage(gpu.uuid)
    if others := [process for process in usage.processes if process.pid != os.getpid()]:
        return f"GPU {gpu.id} is used by {', '.join(map(str, others))}"
    if usage.free_mib < FREE * usage.total_mib:
        return f"GPU {gpu.id} has only {usage.free_mib:,} of {usage.total_mib:,} MiB free"
    return ""


def find(names: Sequence[str]) -> list[Gpu]:
    """Those of the visible GPUs that are named, by index or UUID."""
    return [gpu for gpu in visible() if any(_is_meant(gpu, name) for name in names)] if names else []


def wait_released(gpus: Sequence[Gpu], pids: Sequence[int], timeout: float) -> list[str]:
    """Waits until processes are gone and the memory of GPUs is back; what is still there after `timeout` seconds, a sentence each."""
    deadline = time.monotonic() + timeout
    while left := _still_there(gpus, pids):
        if time.monotonic() >= deadline:
            break
        time.sleep(0.1)
    return left


def _still_there(gpus: Sequence[Gpu], pids: Sequence[int]) -> list[str]:
    alive = [f"process {pid} ({process.name(pid)}) is alive" for pid in pids if process.lives(pid)]
    return alive + [used for gpu in gpus if (used := in_use(gpu))]
