"""What a stack has from where it is started: variables, versions of packages, and files that its YAML names."""

from __future__ import annotations

import getpass
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pytest_agentbench.backends.machine.versions import named_files, packages_of, program_of
from pytest_agentbench.backends.stack.spec import ServiceSpec, StackSpec, expand
from pytest_agentbench.errors import AgentbenchError
from pytest_agentbench.lib.key_shapes import SECRET_NAME
from pytest_agentbench.lib.process import foreign_environment
from pytest_agentbench.lib.redact import MARK, Redactor
from pytest_agentbench.records import Json

#: Engines, the hub's library and Ray report how they are used unless they are told not to.
NO_REPORTS: Mapping[str, str] = {
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

TMP = "tmp"  # in a stack's {run_dir}


def surroundings(run_dir: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Temporary files in the folder of the boot; caches that make the next boot fast where they always are.

    `inherited` is the environment that a process would have without this.
    """
    return {"TMPDIR": str(run_dir / TMP), **_shared_caches(inherited), **NO_REPORTS}


def _shared_caches(inherited: Mapping[str, str]) -> dict[str, str]:
    """Those whose place would follow TMPDIR, or a HOME that a YAML gives."""
    cache = Path(inherited.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    return {
        "HF_HOME": str(cache / "huggingface"),
        "TORCHINDUCTOR_CACHE_DIR": f"{tempfile.gettempdir()}/torchinductor_{user}",
    }


#: How the names of variables begin that engines, and the libraries below them, are set up by.
ENGINES = ("VLLM_", "SGLANG_", "SGL_", "DYN_", "NCCL_", "CUDA_", "HF_", "TORCH", "PYTORCH_", "TRANSFORMERS_", "FLASHINFER_")

#: Every service gets its own of these, from the GPUs that it leases.
GIVEN = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"})


def inherited(spec: StackSpec) -> Json:
    """`environment`, `packages` (by service) and `files`, as they are now: a stack that is kept has those of its start."""
    processes = {name: service for name, service in spec.services.items() if service.image is None}
    return {
        "environment": variables(foreign_environment()) if processes else {},
        "packages": {name: _packages(spec, service) for name, service in processes.items()},
        "files": named_files(spec),
    }


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of engines, by name. Of one whose name says that it is a secret nothing is kept but that it is set."""
    redact = Redactor().plain
    chosen = sorted(name for name in environment if name.startswith(ENGINES) and name not in GIVEN)
    return {name: MARK if SECRET_NAME.search(name) else redact(environment[name]) for name in chosen}


def _packages(spec: StackSpec, service: ServiceSpec) -> dict[str, str] | None:
    """Engine -> version of a service's environment; None where nobody knows it, or it is not there."""
    try:
        program = program_of(service.run, _python(spec, service))
    except AgentbenchError:  # the start says so
        return None
    return packages_of(program) if program else None


def _python(spec: StackSpec, service: ServiceSpec) -> Path | None:
    python = service.python or spec.python
    if python is None:
        return None
    from pytest_agentbench.backends.machine.environments import resolve_python

    values = {**{name: str(value) for name, value in spec.settings.items()}, "model": spec.model or "", "here": spec.here}
    return resolve_python(expand(python, {**values, "home": str(Path.home())}, "python"), Path(spec.here))
