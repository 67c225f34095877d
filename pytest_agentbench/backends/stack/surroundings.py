"""The surroundings that a stack inherits from its machine: environment variables, package versions, files that its YAML names."""

from __future__ import annotations

import getpass
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pytest_agentbench.backends.machine.versions import named_files, packages_of, program_of
from pytest_agentbench.backends.stack.spec import ServiceSpec, StackSpec
from pytest_agentbench.backends.stack.templates import expand
from pytest_agentbench.errors import AgentbenchError
from pytest_agentbench.lib.key_shapes import SECRET_NAME
from pytest_agentbench.lib.process import foreign_environment
from pytest_agentbench.lib.redact import MARK, Redactor
from pytest_agentbench.records import Json

#: Variables that disable the usage reports of engines, the hub's library and Ray.
NO_REPORTS: Mapping[str, str] = {
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

TMP = "tmp"  # folder in a stack's {run_dir}


def surroundings(run_dir: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns default environment variables of a service, for temporary files, caches and usage reports.

    Temporary files go to the folder of the boot, `run_dir`. Caches keep their usual folders. Reports to vendors are turned off.
    `inherited` is the environment that the service would have without these defaults.
    """
    return {"TMPDIR": str(run_dir / TMP), **_shared_caches(inherited), **NO_REPORTS}


def _shared_caches(inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that keep caches in their usual folders, although TMPDIR or HOME of a service may be others."""
    cache = Path(inherited.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    return {
        "HF_HOME": str(cache / "huggingface"),
        "TORCHINDUCTOR_CACHE_DIR": f"{tempfile.gettempdir()}/torchinductor_{user}",
    }


#: Prefixes of the variables that configure engines and their libraries.
ENGINES = ("VLLM_", "SGLANG_", "SGL_", "DYN_", "NCCL_", "CUDA_", "HF_", "TORCH", "PYTORCH_", "TRANSFORMERS_", "FLASHINFER_")

#: Variables that are set for each service from its leased GPUs.
GIVEN = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"})


def inherited(spec: StackSpec) -> Json:
    """Returns what a stack would inherit if it started now: `environment`, `packages` (by service) and `files`.

    A kept stack is only reused if this has not changed since its start.
    """
    processes = {name: service for name, service in spec.services.items() if service.is_command}
    return {
        "environment": variables(foreign_environment()) if processes else {},
        "packages": {name: _packages(spec, service) for name, service in processes.items()},
        "files": named_files(spec),
    }


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that configure engines, sorted by name, but not those for leased GPUs. Secrets in values are masked."""
    redact = Redactor().plain
    chosen = sorted(name for name in environment if name.startswith(ENGINES) and name not in GIVEN)
    return {name: MARK if SECRET_NAME.search(name) else redact(environment[name]) for name in chosen}


def _packages(spec: StackSpec, service: ServiceSpec) -> dict[str, str] | None:
    """Returns package -> version of a service's environment, or None if the environment is unknown or does not exist."""
    try:
        program = program_of(service.run, _python(spec, service))
    except AgentbenchError:  # The boot reports this error.
        return None
    return packages_of(program) if program else None


def _python(spec: StackSpec, service: ServiceSpec) -> Path | None:
    python = service.python or spec.python
    if python is None:
        return None
    from pytest_agentbench.backends.machine.virtual_environments import resolve_python

    values = {**{name: str(value) for name, value in spec.settings.items()}, "model": spec.model or "", "here": spec.here}
    return resolve_python(expand(python, {**values, "home": str(Path.home())}, "python"), Path(spec.here))
