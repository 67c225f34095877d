"""The GPUs of this machine as NVML describes them, which of them a session may use, and how it reserves some among all users of the host.

The NVML library is loaded at the first question. Without it there are no GPUs.
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
    """A GPU, or with an empty `number` a MIG part of one."""

    number: str
    uuid: str
    name: str
    parts: tuple[Device, ...] = ()


class GpuProcess(NamedTuple):
    """What computes on a GPU."""

    pid: int
    name: str
    mib: int | None  # None: the driver does not tell

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name}{'' if self.mib is None else f', {self.mib:,} MiB'})"


class Usage(NamedTuple):
    free_mib: int
    total_mib: int
    processes: tuple[GpuProcess, ...]


@dataclass(frozen=True)
class GpuLoad:
    """How busy a GPU is; None: the driver does not tell."""

    used_mib: int
    total_mib: int
    sm_percent: float | None  # share of the last second or so in which a kernel ran
    power_w: float | None


@functools.cache
def library() -> tuple[Any, str]:
    """(the library, ready for questions; "") or (None; why there is none)."""
    try:
        import pynvml
    except ImportError:
        return None, "nvidia-ml-py is not installed: pip install 'pytest-agentbench[gpu]'"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"NVML says: {error}; there is no NVIDIA driver here, or this container was not given its GPUs"
    return pynvml, ""


def devices() -> list[Device]:
    """The GPUs in the order of their indexes, which is that of the PCI bus; none without NVML."""
    nvml, _ = library()
    if nvml is None:
        return []
    return [_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]


def _device(nvml: Any, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    parts = tuple(Device("", _text(nvml.nvmlDeviceGetUUID(part)), _text(nvml.nvmlDeviceGetName(part))) for part in _parts(nvml, handle))
    return Device(str(index), _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle)), parts)


def _parts(nvml: Any, handle: Any) -> Iterator[Any]:
    """MIG parts; most GPUs know of none."""
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with contextlib.suppress(nvml.NVMLError_NotFound):  # fewer were made than could be
                yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
        return


def usage(uuid: str) -> Usage:
    """Memory and processes of a GPU or a MIG part; nothing where the driver does not tell, as of GPUs that share the host's memory."""
    nvml, _ = library()
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    free, total = _memory(nvml, handle)
    running: tuple[GpuProcess, ...] = ()
    with contextlib.suppress(nvml.NVMLError):
        running = tuple(_process(each) for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    return Usage(free, total, running)


def load(uuid: str) -> GpuLoad:
    """How busy a GPU or a MIG part is now."""
    nvml, _ = library()
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    free, total = _memory(nvml, handle)
    busy: float | None = None
    watts: float | None = None
    with contextlib.suppress(nvml.NVMLError):  # a MIG part does not tell
        busy = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    with contextlib.suppress(nvml.NVMLError):
        watts = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
    return GpuLoad(total - free, total, busy, watts)


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """Free and all memory in MiB."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:
        return 0, 0
    return memory.free // MIB, memory.total // MIB


def driver() -> tuple[str, str]:
    """Versions of the driver and of the newest CUDA that it can do."""
    nvml, _ = library()
    version = nvml.nvmlSystemGetCudaDriverVersion_v2()
    return _text(nvml.nvmlSystemGetDriverVersion()), f"{version // 1000}.{version % 1000 // 10}"


def _process(running: Any) -> GpuProcess:
    return GpuProcess(running.pid, process.name(running.pid), None if running.usedGpuMemory is None else running.usedGpuMemory // MIB)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


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
    all_devices = devices()
    if (listed := os.environ.get("CUDA_VISIBLE_DEVICES")) is None:
        return [Gpu(part.number or part.uuid, part.uuid) for device in all_devices for part in device.parts or (device,)]
    return named(listed, all_devices)


def named(listed: str, devices: Sequence[Device]) -> list[Gpu]:
    """As CUDA reads its variable: the names up to the first one that means no GPU."""
    gpus: list[Gpu] = []
    for name in map(str.strip, listed.split(",")):
        uuid = _uuid(name, devices) if devices else ""
        if not NAME.fullmatch(name) or uuid is None or name in (gpu.id for gpu in gpus):
            break
        gpus.append(Gpu(name, uuid))
    return gpus


def _uuid(name: str, devices: Sequence[Device]) -> str | None:
    """The GPU that an index, a UUID or the start of one means. An index or a UUID of a GPU in parts means its first part."""
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
    available, chosen = visible(), find(names)
    have = f"visible here: {', '.join(gpu.id for gpu in available) or _none_visible()}"
    if absent := [name for name in names if not any(_matches(gpu, name) for gpu in available)]:
        raise MissingError(f"GPU {absent[0]} wanted; {have}")
    if len(chosen) != len(names):
        raise MissingError(
            f"{len(names)} GPUs named, {', '.join(names)}, which are {_gpus(len(chosen))}: {', '.join(gpu.id for gpu in chosen)}"
        )
    if count + len(chosen) > len(available):
        raise MissingError(f"{_gpus(count + len(chosen))} wanted; {have}")
    return chosen, [gpu for gpu in available if gpu not in chosen]


def _matches(gpu: Gpu, name: str) -> bool:
    return name in (gpu.id, gpu.uuid) or (name.startswith(("GPU-", "MIG-")) and gpu.uuid.startswith(name))


def _none_visible() -> str:
    for variable in ("AGENTBENCH_GPUS", "CUDA_VISIBLE_DEVICES"):
        if variable in os.environ:
            return f"none, for {variable} is {os.environ[variable]!r}"
    return f"none ({library()[1] or 'NVML knows of none'})"


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
    use = usage(gpu.uuid)
    if others := [process for process in use.processes if process.pid != os.getpid()]:
        return f"GPU {gpu.id} is used by {', '.join(map(str, others))}"
    if use.free_mib < FREE * use.total_mib:
        return f"GPU {gpu.id} has only {use.free_mib:,} of {use.total_mib:,} MiB free"
    return ""


def find(names: Sequence[str]) -> list[Gpu]:
    """Those of the visible GPUs that are named, by index or UUID."""
    return [gpu for gpu in visible() if any(_matches(gpu, name) for name in names)] if names else []


def wait_released(gpus: Sequence[Gpu], pids: Sequence[int], timeout: float) -> list[str]:
    """Waits until processes are gone and the memory of GPUs is back; what is still there after `timeout` seconds, a sentence each."""
    deadline = time.monotonic() + timeout
    while left := _unreleased(gpus, pids):
        if time.monotonic() >= deadline:
            break
        time.sleep(0.1)
    return left


def _unreleased(gpus: Sequence[Gpu], pids: Sequence[int]) -> list[str]:
    alive = [f"process {pid} ({process.name(pid)}) is alive" for pid in pids if process.lives(pid)]
    return alive + [used for gpu in gpus if (used := in_use(gpu))]
