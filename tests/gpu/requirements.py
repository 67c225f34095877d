"""What the stacks of `make test-gpu` need, and what of it this machine lacks."""

from __future__ import annotations

import os
from typing import NamedTuple

import pytest

from pytest_agentbench.backends.machine import gpus
from tests.stack_commands import stack

SMALL, LARGE = 22_000, 79_000  # MiB of a GPU that is sold with 24 GB and with 80 GB


class GpuStack(NamedTuple):
    """A stack that `make test-gpu` boots: name or YAML of the backend, and the least memory of each of its GPUs in MiB."""

    backend: str
    memory: int


VLLM = GpuStack("tests/gpu/random-8b.yaml", SMALL)
DYNAMO = GpuStack("tests/gpu/random-8b-dynamo.yaml", SMALL)

#: Llama 3.3 70B with TP 4, in containers and as processes. The first one that can run here is run.
LLAMA = (GpuStack("llama70b-tp4", LARGE), GpuStack("tests/gpu/llama70b-tp4-processes.yaml", LARGE))


def lacking(wanted: GpuStack) -> list[str]:
    """Returns what a stack needs and this machine does not have, as `agentbench doctor` finds it, and GPUs that are too small."""
    spec = stack(wanted.backend)
    found = [f"{check.name}: {check.detail}" for check in spec.checks(reach=False) if check.state == "missing"]
    available = [gpu for gpu in gpus.visible() if gpu.uuid]
    large = [gpu for gpu in available if gpus.load(gpu.uuid).total_mib >= wanted.memory]
    if available and len(large) < spec.gpus[0]:
        found.append(f"GPU memory: {spec.gpus[0]} GPUs with {wanted.memory:,} MiB needed; {len(large)} of {len(available)} have that much")
    if gpus.visible() and not available:
        found.append("GPU memory: NVML does not report it; pip install 'pytest-agentbench[gpu]'")
    return found


def skip_unless_possible(*wanted: GpuStack) -> GpuStack:
    """Returns the first of these stacks that can run here. Skips the test with everything that each of them lacks if none can."""
    if not os.environ.get("GPU_TESTS"):
        pytest.skip("NOT TESTED on a GPU: make test-gpu, with a GPU of 24 GB or more")
    reasons = []
    for each in wanted:
        if not (found := lacking(each)):
            return each
        reasons.append(f"{each.backend}: {'; '.join(found)}")
    pytest.skip(f"NOT TESTED on a GPU: {' | '.join(reasons)}")
