"""Checks of this machine for stacks: the Docker Engine, GPUs, programs and secrets."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Container, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from pytest_agentbench.backends.doctor.check import Check, absent, disk_check, missing, ok, port_checks, unknown
from pytest_agentbench.backends.doctor.data_files import service_checks, weight_checks
from pytest_agentbench.backends.machine import gpus
from pytest_agentbench.backends.machine.gpus import lease, visible
from pytest_agentbench.backends.machine.virtual_environments import environments, resolve_python
from pytest_agentbench.backends.stack.docker_engine import TOOLKIT, as_backend_error, connect, size_of
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.backends.stack.templates import TEMPLATE, expand
from pytest_agentbench.clusters import slurm
from pytest_agentbench.clusters.kubernetes import Cluster
from pytest_agentbench.errors import AgentbenchError, BackendError
from pytest_agentbench.lib.process import usable_cores


def docker_checks(spec: StackSpec) -> Iterator[Check]:
    contained = [service for service in spec.services.values() if service.image is not None]
    if not contained:
        return
    try:
        with closing(connect()) as engine, as_backend_error("Docker does not report its configuration"):
            info = engine.info()
            yield ok("docker", f"Engine {info['ServerVersion']}")
            if any(service.gpus for service in contained):
                yield toolkit_check(info.get("Runtimes", {}))
            for image in dict.fromkeys(service.image for service in contained):
                yield _image(engine, spec, str(image))
    except BackendError as error:
        yield missing("docker", str(error), "")


def toolkit_check(runtimes: Container[str]) -> Check:
    """Checks that the NVIDIA Container Toolkit is installed: Docker has a runtime `nvidia`, or the toolkit's programs are on the PATH."""
    if "nvidia" in runtimes:
        return ok("container toolkit", "the engine has the runtime nvidia")
    if program := shutil.which("nvidia-ctk") or shutil.which("nvidia-container-cli"):
        return ok("container toolkit", program)
    return missing("container toolkit", "the engine has no runtime nvidia", TOOLKIT)


def _image(engine: Any, spec: StackSpec, image: str) -> Check:
    values = {**{name: str(value) for name, value in spec.settings.items()}, "model": spec.model or "", "here": spec.here}
    try:
        name = expand(image, values, "image")
        with as_backend_error(f"image {name}"):
            size = size_of(engine, name)
    except AgentbenchError as error:
        return unknown("image", f"{image}: {error}")
    if size is not None:
        return ok("image", f"{name}, {size / 1e9:.1f} GB")
    if any(service.image == image and service.container.pull == "never" for service in spec.services.values()):
        return missing("image", f"{name} is not on this machine, and `pull: never` forbids pulling it", f"docker pull {name}")
    return unknown("image", f"{name} is not on this machine yet; the first boot pulls it", f"docker pull {name}")


FABRIC = "nv-fabricmanager"[:15]  # The kernel truncates names of processes.


def gpu_checks(spec: StackSpec) -> Iterator[Check]:
    count, named = spec.gpus
    if not count and not named:
        return
    yield driver_check(oldest_driver(spec))
    yield from fabric_check(Path("/dev"), Path("/proc"))
    yield _free_gpus(spec.name, count, named)


def oldest_driver(spec: StackSpec) -> int:
    """Returns the oldest NVIDIA driver branch that the environments of a stack's GPU services accept, or 0 if any will do.

    Services in containers are left out, because Docker checks the driver for images.
    """
    names = {service.python or spec.python for service in spec.services.values() if service.gpus and service.image is None}
    known = environments(Path(spec.here))
    return max((known[name].driver for name in names if name is not None and name in known), default=0)


def driver_check(oldest: int = 0) -> Check:
    """Checks that the NVIDIA driver is installed, and that its branch is `oldest` or newer."""
    if "AGENTBENCH_GPUS" in os.environ:
        return unknown("driver", "not checked, because AGENTBENCH_GPUS lists the GPUs")
    library, why = gpus.library()
    version, cuda = gpus.driver() if library is not None else (_nvidia_smi_version(), "")
    if not version:
        return missing("driver", f"no nvidia-smi on the PATH; {why}", "install the NVIDIA driver; in a container: docker run --gpus all")
    if _branch(version) < oldest:
        need = f"its packages are built for CUDA 13, which needs {oldest} or newer"
        return missing("driver", f"{version}; {need}", f"install driver {oldest} or newer, or an environment with packages for your CUDA")
    if library is None:
        return unknown("driver", f"{version}; without NVML it is not checked whether GPUs are free", why)
    return ok("driver", f"{version}, up to CUDA {cuda}; {', '.join(f'{device.number}: {device.name}' for device in gpus.devices())}")


def _branch(version: str) -> int:
    """Returns the branch of a driver version, for example 580 for 580.65.06, or 0 if the version does not begin with a number."""
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() else 0


def _nvidia_smi_version() -> str:
    """Returns the driver version that nvidia-smi prints, or an empty string if it prints none."""
    if shutil.which("nvidia-smi") is None:
        return ""
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].strip() if done.returncode == 0 else ""


def fabric_check(devices: Path, processes: Path) -> Iterator[Check]:
    """Checks that the fabric manager runs if this machine has an NVSwitch, because its GPUs cannot compute without it.

    `devices` is /dev and `processes` is /proc.
    """
    if not any(devices.glob("nvidia-nvswitch[0-9]*")):
        return
    if has_fabric_manager(processes):
        yield ok("fabric manager", "runs")
        return
    yield unknown(
        "fabric manager",
        "this machine has an NVSwitch, but no visible fabric manager",
        "sudo systemctl start nvidia-fabricmanager",
    )


def has_fabric_manager(processes: Path) -> bool:
    """Returns whether a fabric manager is among the processes of the folder `processes`, which is /proc."""
    for name in processes.glob("[0-9]*/comm"):
        with suppress(OSError):  # The process has just ended.
            if name.read_text(encoding="utf-8", errors="replace").startswith(FABRIC):
                return True
    return False


def _free_gpus(stack: str, count: int, named: list[str]) -> Check:
    """Checks that the GPUs of a stack are free, by leasing them as a boot does and releasing them at once."""
    try:
        with lease(count, named=named, stack=stack) as taken:
            return ok("GPUs", f"{count + len(named)} needed and free: {', '.join(taken.ids)}")
    except AgentbenchError as error:
        few = "use a machine with more, lower `gpus:` and `replicas:`, or check CUDA_VISIBLE_DEVICES"
        busy = "wait for them (--agentbench-gpu-wait=30m), or end the processes that use them"
        return missing("GPUs", str(error), few if count + len(named) > len(visible()) else busy)


def secret_checks(spec: StackSpec) -> Iterator[Check]:
    for name in dict.fromkeys(name for service in spec.services.values() for name in service.secrets):
        if os.environ.get(name):
            yield ok("secret", f"{name} is set")
        else:
            yield missing("secret", f"{name} is not set", f"export {name}=...")


def program_checks(spec: StackSpec) -> Iterator[Check]:
    """Checks that the interpreters and commands of the services that are processes exist, each of them once.

    Commands on other machines are not checked. Their interpreters are, because these machines share the files of this one.
    """
    commands = [service for service in spec.services.values() if service.is_command]
    pythons: dict[str | None, Path | None] = {None: None}
    for name in dict.fromkeys(python for service in commands if (python := service.python or spec.python) is not None):
        try:
            pythons[name] = resolve_python(name, Path(spec.here))
        except AgentbenchError as error:
            what, _, fix = str(error).partition(": agentbench")
            yield missing("python", what, f"agentbench{fix}" if fix else "correct `python`")
        else:
            yield ok("python", f"{name}: {pythons[name]}")
    programs = dict.fromkeys((service.python or spec.python, service.run[0]) for service in commands if not service.is_placed)
    for python, command in programs:
        if python in pythons and not TEMPLATE.search(command):
            yield _command(command, pythons[python])


def _command(command: str, python: Path | None) -> Check:
    """Checks that a service will find its command: in the folder of its interpreter, or on the PATH."""
    path = os.pathsep.join([*([str(python.parent)] if python else []), os.environ.get("PATH", os.defpath)])
    if program := shutil.which(command, path=path):
        return ok("command", f"{command}: {program}")
    where = f"in {python.parent} or on the PATH" if python else "on the PATH"
    return missing("command", f"{command} is not {where}", "install it, or set `python:` to the environment that has it")


def placement_checks(spec: StackSpec) -> Iterator[Check]:
    """Checks what services on other machines need on this one: the commands of Slurm, the client of Kubernetes."""
    services = spec.services.values()
    if any(service.on for service in services):
        if absent := next((name for name in slurm.COMMANDS if shutil.which(name) is None), None):
            yield missing(
                "slurm", f"the command {absent} is not on the PATH", "run on a login node of the cluster, or install slurm-client"
            )
        else:
            yield ok("slurm", str(shutil.which("sbatch")))
    settings = {name: str(value) for name, value in spec.settings.items()}
    for place in (service.kubernetes.expanded(settings, "kubernetes") for service in services if service.kubernetes):
        try:
            cluster = Cluster(context=place.context, kubeconfig=place.kubeconfig, namespace=place.namespace)
        except AgentbenchError as error:
            what, _, fix = str(error).partition("; ")
            yield missing("kubernetes", what.removeprefix("kubernetes: "), fix or "correct `kubernetes`")
        else:
            yield unknown("kubernetes", f"{cluster.user}, namespace {cluster.namespace} of {cluster.server}, which was not asked")


def lacking(spec: StackSpec) -> list[Check]:
    """Returns the failed checks of a stack that neither waiting nor a boot can repair: secrets, programs and GPU driver."""
    checks = [*secret_checks(spec), *program_checks(spec), *placement_checks(spec)]
    if any(spec.gpus):
        checks.append(driver_check(oldest_driver(spec)))
    return [check for check in checks if check.state == "missing"]


def stack_checks(spec: StackSpec) -> Iterator[Check]:
    """Checks the secrets, programs, ports, GPUs, images, weights and retrievers of a stack."""
    yield from secret_checks(spec)
    yield from program_checks(spec)
    here = [service for service in spec.services.values() if not service.is_placed]
    yield from port_checks([port for service in here for port in (service.port, *service.ports.values())])
    yield from gpu_checks(spec)
    yield from placement_checks(spec)
    yield from docker_checks(spec)
    yield from weight_checks(spec)
    yield from service_checks(spec)


def host_checks() -> Iterator[Check]:
    """Checks this machine for `agentbench doctor` without a backend. Missing GPUs or Docker are `absent`: not all backends need them."""
    yield ok("python", f"{platform.python_version()}, {sys.executable}")
    yield ok("cores", f"{usable_cores()}")
    yield disk_check()
    yield _gpus()
    yield _docker()


def _gpus() -> Check:
    library, why = gpus.library()
    if devices := gpus.devices():
        return ok("GPUs", ", ".join(f"{device.number}: {device.name}" for device in devices))
    return absent("GPUs", why if library is None else "the driver lists none", "only backends that run a model here need them")


def _docker() -> Check:
    try:
        with closing(connect()) as engine, as_backend_error("Docker does not report its configuration"):
            return ok("docker", f"Engine {engine.info()['ServerVersion']}")
    except BackendError as error:
        return absent("docker", str(error), "only services in containers need it")
