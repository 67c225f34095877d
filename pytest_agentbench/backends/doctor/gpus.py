"""The GPUs of a stack: the driver, the fabric, and whether enough of them are free."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pytest_agentbench.backends.doctor.check import Check, missing, ok, unknown
from pytest_agentbench.backends.machine import nvml
from pytest_agentbench.backends.machine.environments import environments
from pytest_agentbench.backends.machine.gpus import lease, visible
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.errors import AgentbenchError

FABRIC = "nv-fabricmanager"[:15]  # as the kernel shortens its name


def gpu_checks(spec: StackSpec) -> Iterator[Check]:
    count, named = spec.gpus
    if not count and not named:
        return
    yield driver_check(oldest_driver(spec))
    yield from fabric_check(Path("/dev"), Path("/proc"))
    yield _free(spec.name, count, named)


def oldest_driver(spec: StackSpec) -> int:
    """Of the environments that its GPU services run in, the branch that all of them run on; 0 where none says. Images say it to Docker."""
    wanted = {service.python or spec.python for service in spec.services.values() if service.gpus and service.image is None}
    return max((environments()[name].driver for name in wanted if name is not None and name in environments()), default=0)


def driver_check(oldest: int = 0) -> Check:
    """Whether there is a driver, and one of branch `oldest` or a newer one."""
    if "AGENTBENCH_GPUS" in os.environ:
        return unknown("driver", "not asked, for AGENTBENCH_GPUS says which GPUs there are")
    library, why = nvml.library()
    version, cuda = nvml.driver() if library is not None else (_version(), "")
    if not version:
        return missing("driver", f"no nvidia-smi on the PATH; {why}", "install the NVIDIA driver; in a container: docker run --gpus all")
    if _branch(version) < oldest:
        need = f"its packages are built for CUDA 13, which needs {oldest} or newer"
        return missing("driver", f"{version}; {need}", f"install driver {oldest} or newer, or an environment with packages for your CUDA")
    if library is None:
        return unknown("driver", f"{version}; without NVML nobody looks whether GPUs are free", why)
    return ok("driver", f"{version}, up to CUDA {cuda}; {', '.join(f'{device.number}: {device.name}' for device in nvml.devices())}")


def _branch(version: str) -> int:
    """580 of 580.65.06."""
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() else 0


def _version() -> str:
    """What nvidia-smi says; empty where it says nothing."""
    if shutil.which("nvidia-smi") is None:
        return ""
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].strip() if done.returncode == 0 else ""


def fabric_check(devices: Path, processes: Path) -> Iterator[Check]:
    """GPUs behind an NVSwitch compute nothing without the fabric manager."""
    if not any(devices.glob("nvidia-nvswitch[0-9]*")):
        return
    for name in processes.glob("[0-9]*/comm"):
        try:
            runs = name.read_text(encoding="utf-8", errors="replace").startswith(FABRIC)
        except OSError:
            continue  # it has just ended
        if runs:
            yield ok("fabric manager", "runs")
            return
    yield unknown(
        "fabric manager",
        "there is an NVSwitch, and no fabric manager that can be seen from here",
        "sudo systemctl start nvidia-fabricmanager",
    )


def _free(stack: str, count: int, named: list[str]) -> Check:
    """Leases what a boot would, and gives it back."""
    try:
        with lease(count, named=named, stack=stack) as taken:
            return ok("GPUs", f"{count + len(named)} wanted and free: {', '.join(taken.ids)}")
    except AgentbenchError as error:
        few = "take a machine with more, give `gpus:` and `replicas:` smaller numbers, or look at CUDA_VISIBLE_DEVICES"
        busy = "wait for them (--agentbench-gpu-wait=30m), or end what has them"
        return missing("GPUs", str(error), few if count + len(named) > len(visible()) else busy)
