"""The GPUs of this machine: reading them with NVML, choosing those that a session may use, and leasing them among all users of the host.

The NVML library is loaded when it is first needed. Without it, no GPUs are known.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from pytest_agentbench.errors import MissingError
from pytest_agentbench.lib import file_system, process

MIB = 1 << 20


class Device(NamedTuple):
    """A GPU or a MIG part of a GPU, as NVML describes it. `parts` are the MIG parts of a GPU; a part has an empty `number`."""

    number: str
    uuid: str
    name: str
    parts: tuple[Device, ...] = ()


class GpuProcess(NamedTuple):
    """A process that computes on a GPU."""

    pid: int
    name: str
    mib: int | None  # memory; None: unknown to the driver

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name}{'' if self.mib is None else f', {self.mib:,} MiB'})"


class Usage(NamedTuple):
    free_mib: int
    total_mib: int
    processes: tuple[GpuProcess, ...]


@dataclass(frozen=True)
class GpuLoad:
    """The current load of a GPU. A field is None if the driver does not report it."""

    used_mib: int
    total_mib: int
    sm_percent: float | None  # share of about the last second in which a kernel ran
    power_w: float | None


@functools.cache
def library() -> tuple[Any, str]:
    """Returns the initialised NVML library and an empty string, or None and the reason why NVML is unavailable."""
    try:
        import pynvml
    except ImportError:
        return None, "nvidia-ml-py is not installed: pip install 'pytest-agentbench[gpu]'"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"NVML says: {error}; this machine has no NVIDIA driver, or this container has no access to the GPUs"
    return pynvml, ""


def devices() -> list[Device]:
    """Returns all GPUs of the machine in the order of their indexes, which is the order on the PCI bus. Returns none without NVML."""
    nvml, _ = library()
    if nvml is None:
        return []
    return [_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]


def _device(nvml: Any, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    parts = tuple(Device("", _text(nvml.nvmlDeviceGetUUID(part)), _text(nvml.nvmlDeviceGetName(part))) for part in _parts(nvml, handle))
    return Device(str(index), _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle)), parts)


def _parts(nvml: Any, handle: Any) -> Iterator[Any]:
    """Yields the MIG parts of a GPU, none if it is not divided or does not support MIG."""
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with contextlib.suppress(nvml.NVMLError_NotFound):  # Not all possible parts exist.
                yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
        return


def usage(uuid: str) -> Usage:
    """Returns the memory and the processes of a GPU or a MIG part. Values are 0 or empty if the driver does not report them."""
    nvml, _ = library()
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    free, total = _memory(nvml, handle)
    running: tuple[GpuProcess, ...] = ()
    with contextlib.suppress(nvml.NVMLError):
        running = tuple(_process(each) for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    return Usage(free, total, running)


def load(uuid: str) -> GpuLoad:
    """Returns the current load of a GPU or a MIG part."""
    nvml, _ = library()
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    free, total = _memory(nvml, handle)
    busy: float | None = None
    watts: float | None = None
    with contextlib.suppress(nvml.NVMLError):  # not reported for MIG parts
        busy = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    with contextlib.suppress(nvml.NVMLError):
        watts = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
    return GpuLoad(total - free, total, busy, watts)


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """Returns the free and the total memory in MiB. Both are 0 if the driver does not report them, as for GPUs with the host's memory."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:
        return 0, 0
    return memory.free // MIB, memory.total // MIB


def driver() -> tuple[str, str]:
    """Returns the version of the NVIDIA driver, and the newest CUDA version that the driver supports."""
    nvml, _ = library()
    version = nvml.nvmlSystemGetCudaDriverVersion_v2()
    return _text(nvml.nvmlSystemGetDriverVersion()), f"{version // 1000}.{version % 1000 // 10}"


def _process(running: Any) -> GpuProcess:
    return GpuProcess(running.pid, process.name(running.pid), None if running.usedGpuMemory is None else running.usedGpuMemory // MIB)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


POLL = 1.0  # seconds between two attempts
FREE = 0.9  # least share of free memory of a GPU that is leased
NAME = re.compile(r"\d+|GPU-[0-9a-fA-F-]+|MIG-[0-9a-zA-Z/-]+")


class Gpu(NamedTuple):
    """A GPU or a MIG part that this process may use. Unlike a `Device`, it can come from an environment variable, without NVML."""

    id: str  # index or UUID, as in CUDA_VISIBLE_DEVICES
    uuid: str = ""  # empty if NVML is not used

    @property
    def lock(self) -> str:
        return self.uuid or f"gpu-{self.id}"


@dataclass
class Lease:
    """A reservation of GPUs on this host for one stack. It ends with `release`, or when this process ends."""

    gpus: tuple[Gpu, ...] = ()
    locks: tuple[file_system.Lock, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(gpu.id for gpu in self.gpus)

    def release(self) -> None:
        """Releases the GPUs. May be called twice."""
        held, self.locks = self.locks, ()
        for lock in held:
            lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.release()


def visible() -> list[Gpu]:
    """Returns the GPUs that this process may use, in their order.

    They are the GPUs in AGENTBENCH_GPUS (NVML is not used then), else those in CUDA_VISIBLE_DEVICES, else all that NVML knows.
    """
    if (listed := os.environ.get("AGENTBENCH_GPUS")) is not None:
        return [Gpu(name.strip()) for name in listed.split(",") if name.strip()]
    all_devices = devices()
    if (listed := os.environ.get("CUDA_VISIBLE_DEVICES")) is None:
        return [Gpu(part.number or part.uuid, part.uuid) for device in all_devices for part in device.parts or (device,)]
    return named(listed, all_devices)


def named(listed: str, devices: Sequence[Device]) -> list[Gpu]:
    """Returns the GPUs in the text of CUDA_VISIBLE_DEVICES. As in CUDA, the list ends before the first invalid name."""
    gpus: list[Gpu] = []
    for name in map(str.strip, listed.split(",")):
        uuid = _uuid(name, devices) if devices else ""
        if not NAME.fullmatch(name) or uuid is None or name in (gpu.id for gpu in gpus):
            break
        gpus.append(Gpu(name, uuid))
    return gpus


def _uuid(name: str, devices: Sequence[Device]) -> str | None:
    """Returns the UUID of the GPU with this name (an index, a UUID, or the beginning of a UUID), or None if no GPU has it.

    If the GPU has MIG parts, the UUID of the first part is returned.
    """
    wholes = {device.number: device for device in devices}
    if device := wholes.get(str(int(name)) if name.isdecimal() else ""):
        return (device.parts or (device,))[0].uuid
    parts = {part.uuid: part.uuid for device in devices for part in device.parts}
    uuids = {**{device.uuid: (device.parts or (device,))[0].uuid for device in devices}, **parts}
    matches = [uuids[name]] if name in uuids else [full for uuid, full in uuids.items() if uuid.startswith(name)]
    return matches[0] if len(matches) == 1 else None


def lease(
    count: int,
    wait_s: float = 0,
    on_wait: Callable[[str], None] | None = None,
    *,
    named: Sequence[str | int] = (),
    stack: str = "a stack",
) -> Lease:
    """Leases the named GPUs (indexes or UUIDs of visible GPUs) and `count` others for a stack: all of them or none.

    If GPUs are busy, it waits for up to `wait_s` seconds, and calls `on_wait` once a second with the reason. Raises MissingError after that
    time, or at once if waiting cannot help.
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
    """Raises MissingError if fewer GPUs are visible than are needed, whether they are in use or not."""
    if count or named:
        _candidates(count, named)


def _candidates(count: int, names: Sequence[str]) -> tuple[list[Gpu], list[Gpu]]:
    """Returns the GPUs with these names, and all other visible GPUs. Raises MissingError if a name is wrong or there are too few."""
    available, chosen = visible(), find(names)
    have = f"visible here: {', '.join(gpu.id for gpu in available) or _none_visible()}"
    if absent := [name for name in names if not any(_matches(gpu, name) for gpu in available)]:
        raise MissingError(f"GPU {absent[0]} is needed; {have}")
    if len(chosen) != len(names):
        raise MissingError(
            f"name each GPU once: the {len(names)} names {', '.join(names)} stand for {_gpus(len(chosen))}, "
            f"{', '.join(gpu.id for gpu in chosen)}"
        )
    if count + len(chosen) > len(available):
        raise MissingError(f"{_gpus(count + len(chosen))} needed; {have}")
    return chosen, [gpu for gpu in available if gpu not in chosen]


def _matches(gpu: Gpu, name: str) -> bool:
    return name in (gpu.id, gpu.uuid) or (name.startswith(("GPU-", "MIG-")) and gpu.uuid.startswith(name))


def _none_visible() -> str:
    for variable in ("AGENTBENCH_GPUS", "CUDA_VISIBLE_DEVICES"):
        if variable in os.environ:
            return f"none, because {variable} is {os.environ[variable]!r}"
    return f"none ({library()[1] or 'NVML lists none'})"


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


def _take(chosen: Sequence[Gpu], others: Sequence[Gpu], count: int, stack: str) -> Lease | list[str]:
    """Leases all chosen GPUs and `count` of the others. If that is impossible, leases none and returns why each busy GPU is busy."""
    named, busy = _try(chosen, len(chosen), stack)
    rest, more = (Lease(), []) if busy else _try(others, count, stack)
    both = Lease((*named.gpus, *rest.gpus), (*named.locks, *rest.locks))
    if len(both.gpus) == len(chosen) + count:
        return both
    both.release()
    return busy + more


def _try(candidates: Sequence[Gpu], count: int, stack: str) -> tuple[Lease, list[str]]:
    """Leases up to `count` of the candidates. Returns the lease, and a sentence about each busy candidate.

    It stops as soon as the candidates that are left are too few.
    """
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
    """Describes the use of a GPU by other processes. Returns an empty string if the GPU is free, or if NVML is not used."""
    if not gpu.uuid:
        return ""
    use = usage(gpu.uuid)
    if others := [process for process in use.processes if process.pid != os.getpid()]:
        return f"GPU {gpu.id} is used by {', '.join(map(str, others))}"
    if use.free_mib < FREE * use.total_mib:
        return f"GPU {gpu.id} has only {use.free_mib:,} of {use.total_mib:,} MiB free"
    return ""


def find(names: Sequence[str]) -> list[Gpu]:
    """Returns the visible GPUs with these indexes or UUIDs."""
    return [gpu for gpu in visible() if any(_matches(gpu, name) for name in names)] if names else []


def wait_released(gpus: Sequence[Gpu], pids: Sequence[int], timeout: float) -> list[str]:
    """Waits until processes have ended and the memory of GPUs is free, for up to `timeout` seconds.

    Returns a sentence about each process that is still alive and each GPU that is still in use.
    """
    deadline = time.monotonic() + timeout
    while left := _unreleased(gpus, pids):
        if time.monotonic() >= deadline:
            break
        time.sleep(0.1)
    return left


def _unreleased(gpus: Sequence[Gpu], pids: Sequence[int]) -> list[str]:
    alive = [f"process {pid} ({process.name(pid)}) is alive" for pid in pids if process.lives(pid)]
    return alive + [used for gpu in gpus if (used := in_use(gpu))]
