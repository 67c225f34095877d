"""The probe of `agentbench doctor --probe`: the smallest CUDA call, made in the environment or container of each service with GPUs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from pytest_agentbench.backends.doctor import cuda_call
from pytest_agentbench.backends.doctor.check import Check, missing, ok, unknown
from pytest_agentbench.backends.doctor.host import has_fabric_manager
from pytest_agentbench.backends.machine.cuda_errors import CUDA_ERRORS, UNLISTED
from pytest_agentbench.backends.machine.gpus import lease, visible
from pytest_agentbench.backends.spec import BackendSpec
from pytest_agentbench.backends.stack.docker_engine import as_backend_error, connect, size_of
from pytest_agentbench.backends.stack.instances import Factory, ServiceUnit, instances_of
from pytest_agentbench.backends.stack.spec import ContainerSpec, ServiceSpec, StackSpec
from pytest_agentbench.backends.stack.surroundings import TMP
from pytest_agentbench.errors import AgentbenchError, BackendError, MissingError
from pytest_agentbench.lib.redact import tail
from pytest_agentbench.records import Json

NAME = "CUDA"  # of the checks
VERSION = re.compile(r"(?<!\d)\d++(?:\.\d++)+")  # of a driver or a fabric manager
PATIENCE = cuda_call.TIME_LIMIT + 20.0  # seconds for a probe, with the start of its container
PAUSE = 0.1  # seconds between two looks at a probe that runs
IN_CONTAINER = "/agentbench/cuda_call.py"  # path of the program in a container
IMAGE_RUNTIME = "/usr/local/cuda/lib64/libcudart.so.*"  # where NVIDIA's images have the CUDA runtime
LOG_LINES = 5  # lines of a probe's output that a check shows
FIRST = "0"  # GPU for the probe if the GPUs of this machine are unknown

INSTALL_DRIVER = "install the NVIDIA driver; if agentbench runs in a container: docker run --gpus all"


def probe_checks(spec: BackendSpec, devices: Path = Path("/dev"), processes: Path = Path("/proc")) -> Iterator[Check]:
    """Probes CUDA in the environment or container of each service with GPUs, on one GPU, which is leased meanwhile.

    `devices` is /dev and `processes` is /proc. They are read to explain an error.
    """
    if not isinstance(spec, StackSpec):
        yield ok(NAME, f"not probed, because a backend of kind {spec.kind} has no services with GPUs")
        return
    placed = [name for name, service in spec.services.items() if service.is_placed]
    if placed:
        advice = "run `agentbench doctor` there, on the YAML file of a stack without `on` and `kubernetes`"
        yield unknown(NAME, f"{', '.join(placed)}: runs on other machines, which are not probed", advice)
    here = [name for name, service in spec.services.items() if service.gpus and not service.is_placed]
    if not here and not placed:
        yield ok(NAME, "no service of this stack uses a GPU")
    for name in here:
        yield _probe(spec, name, devices, processes)


def _probe(spec: StackSpec, name: str, devices: Path, processes: Path) -> Check:
    named = spec.services[name].gpus
    try:
        if not visible():
            return _with_gpu(spec, name, FIRST, devices, processes)
        chosen = named[:1] if isinstance(named, list) else []
        with lease(1 - len(chosen), named=chosen, stack=f"the probe of {spec.name}") as taken:
            return _with_gpu(spec, name, taken.ids[0], devices, processes)
    except AgentbenchError as error:  # No GPU is free, or the environment or the image does not exist.
        return unknown(NAME, f"{name}: not probed: {error}")


def _with_gpu(spec: StackSpec, name: str, gpu: str, devices: Path, processes: Path) -> Check:
    where = f"{name}, GPU {gpu}"
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        if problem := _image_problem(spec, name):
            return problem
        unit = probe_unit(spec, Path(folder), name, [gpu])
        try:
            unit.start()
            code = _wait(unit)
        except MissingError as error:  # Docker cannot give GPUs to containers.
            return missing(NAME, f"{where}: {error}", "")
        except BackendError as error:
            return unknown(NAME, f"{where}: not probed: {error}", "the probe needs python3 in the image")
        finally:
            unit.stop(0)
        return _result(where, unit.log, code, devices, processes)


def probe_unit(spec: StackSpec, home: Path, name: str, gpus: Sequence[str]) -> ServiceUnit:
    """Returns the probe of a service as a process or container that is not started yet: the service with another command.

    `home` is an empty folder for its log and temporary files. `gpus` are the GPUs that it sees. Raises MissingError if the environment of
    the service does not exist.
    """
    (home / "run" / TMP).mkdir(parents=True)
    instances = instances_of(spec, home, lambda: 0)
    instance = next(each for each in instances if each.service == name)
    return Factory(spec, home, instances).make(replace(instance, spec=_as_probe(spec, instance.spec), gpus=[*gpus]))


def _as_probe(spec: StackSpec, service: ServiceSpec) -> ServiceSpec:
    """Returns the service with the probe's program instead of its command. Secrets, mounts and the working directory are left out."""
    program = cuda_call.__file__
    if service.image is None:
        # Without an environment of its own, the service's packages are unknown; those of this interpreter (-S) are not the service's.
        python = ["{python}"] if service.python or spec.python else [sys.executable, "-S"]
        return service.model_copy(update={"run": [*python, program], "secrets": [], "cwd": None})
    # NVIDIA's images choose libraries in their entrypoint, which starts the words of `run`. Others have their server there.
    begins_with_python = bool(service.run) and Path(service.run[0]).name.startswith("python")
    entrypoint = service.container.entrypoint if begins_with_python else ["python3"]
    run = [*(service.run[:1] if begins_with_python else []), IN_CONTAINER, IMAGE_RUNTIME]
    options: Json = {"entrypoint": entrypoint, "mounts": {program: f"{IN_CONTAINER}:ro"}, "pull": "never"}
    container: ContainerSpec = service.container.model_copy(update=options)
    return service.model_copy(update={"run": run, "secrets": [], "cwd": None, "container": container})


def _image_problem(spec: StackSpec, name: str) -> Check | None:
    """Returns a check if a service's image is not on this machine, because the probe pulls nothing. Returns None otherwise."""
    if spec.services[name].image is None:
        return None
    instances = instances_of(spec, Path(), lambda: 0)
    image = Factory(spec, Path(), instances).image(next(each for each in instances if each.service == name))
    with closing(connect()) as engine, as_backend_error(f"image {image}"):
        if size_of(engine, image) is None:
            return unknown(NAME, f"{name}: not probed, because {image} is not on this machine", f"docker pull {image}")
    return None


def _wait(unit: ServiceUnit) -> int | None:
    """Returns the exit code of a probe, or None if it has not ended after PATIENCE seconds."""
    deadline = time.monotonic() + PATIENCE
    while (code := unit.exit_code()) is None and time.monotonic() < deadline:
        time.sleep(PAUSE)
    return code


def _result(where: str, log: Path, code: int | None, devices: Path, processes: Path) -> Check:
    """Returns the check for what a probe printed, or for its end if it printed no results."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    found = next((line.removeprefix(cuda_call.LINE) for line in lines if line.startswith(cuda_call.LINE)), "")
    if not found:
        ended = f"the call has not returned after {PATIENCE:g} s" if code is None else f"the call ended its process (exit code {code})"
        last = " | ".join(tail(log, LOG_LINES))
        return missing(NAME, f"{where}: {ended}{last and f': {last}'}", UNLISTED.remedy)
    facts: Json = json.loads(found)
    if not facts["step"]:
        runtime = f", the environment's runtime CUDA {_version(facts['runtime'])}" if facts["runtime"] else ""
        return ok(NAME, f"{where} ({facts['gpu']}): works; the driver supports CUDA {_version(facts['driver'])}{runtime}")
    if facts["step"] == "load":
        return missing(NAME, f"{where}: there is no NVIDIA driver: {facts['error']}", INSTALL_DRIVER)
    return _refused(where, facts, devices, processes)


def _refused(where: str, facts: Json, devices: Path, processes: Path) -> Check:
    """Returns the check for an error code of CUDA."""
    error = CUDA_ERRORS.get(facts["code"], UNLISTED)
    detail, remedy = f"{where}: {facts['step']} failed with error {facts['code']} ({error.name}): {error.meaning}", error.remedy
    match facts["code"]:
        case 35:
            runtime = f"{facts['runtime_file']} is CUDA {_version(facts['runtime'])}"
            detail += f"; the driver supports CUDA {_version(facts['driver'])}, and {runtime}"
        case 802:
            more, remedy = _about_fabric(devices, processes)
            detail += f"; {more}"
        case 803 | 804:
            module = kernel_module(processes) or "unknown"
            detail += f"; the kernel module is {module}, and the libcuda is {_file_version(facts['library'])}"
    return missing(NAME, detail, remedy)


def _about_fabric(devices: Path, processes: Path) -> tuple[str, str]:
    """Returns what this machine has of an NVSwitch and its fabric manager, and the remedy for error 802."""
    general, module, manager = CUDA_ERRORS[802].remedy, kernel_module(processes), fabric_manager_version()
    if not has_fabric_manager(processes):
        nvswitch = "has" if any(devices.glob("nvidia-nvswitch[0-9]*")) else "shows no"
        found = f"this machine {nvswitch} NVSwitch devices, and no fabric manager is visible"
        return found, f"{general}; in a container, start it on the host"
    if module and manager and module != manager:
        same = f"install the fabric manager of version {module}, then: systemctl restart nvidia-fabricmanager"
        return f"the fabric manager is {manager}, and the driver is {module}", same
    restart = "`nvidia-smi -q` shows the state of the fabric, `journalctl -u nvidia-fabricmanager` the errors; restart that service"
    return f"a fabric manager runs{manager and f' ({manager}, like the driver)' if module == manager else ''}", restart


def kernel_module(processes: Path) -> str:
    """Returns the version of the driver's kernel module, or an empty string if it is not loaded. `processes` is /proc."""
    try:
        text = (processes / "driver" / "nvidia" / "version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return _first_version(text.partition("Kernel Module")[2])


def fabric_manager_version() -> str:
    """Returns the version of the fabric manager that is installed, or an empty string if it is unknown."""
    if (program := shutil.which("nv-fabricmanager")) is None:
        return ""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return _first_version(done.stdout)


def _first_version(text: str) -> str:
    """Returns the first version in a text, such as 580.65.06, or an empty string."""
    match = VERSION.search(text)
    return match[0] if match else ""


def _file_version(library: str) -> str:
    """Returns a library's path, and the version in its name if it has one: libcuda.so.580.65.06."""
    version = Path(library).name.partition(".so.")[2]
    return f"{version} ({library})" if "." in version else library or "unknown"


def _version(number: int) -> str:
    """Returns a version of CUDA as a text: 13.0 for 13000."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else "of unknown version"
