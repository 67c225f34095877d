"""What NVML tells about the GPUs of this machine. The library is loaded when somebody asks; without it there are no GPUs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from pytest_agentbench.lib import process

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
