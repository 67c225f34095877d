"""Stacks on real GPUs: `make test-gpu`. What cannot run on a machine is skipped with everything that the machine lacks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.backends.machine import gpus
from pytest_agentbench.records import Json
from tests.gpu.requirements import DYNAMO, LLAMA, VLLM, GpuStack, skip_unless_possible
from tests.real.booted_stack import run

MINUTE = 60  # seconds
BOOT_OF_RANDOM, BOOT_OF_LLAMA = 8 * MINUTE, 35 * MINUTE  # their `ready.timeout`; the pull of an image is part of the boot

#: Ten scenarios, which start within ten minutes after the stack is ready, that is, after its weights are loaded. No score is too low.
TEN = ["--agentbench-limit=10", "--agentbench-concurrency=10", "--agentbench-time-limit=10m"]
TEN += ["--agentbench-threshold=tsq=0", "--agentbench-threshold=tsq.mean=0"]
SESSION = 15 * MINUTE  # seconds for the scenarios, the last of which may start after ten minutes


def on_gpus(stack: GpuStack, folder: Path, boot: float) -> Json:
    """Runs ten scenarios, and checks that all were measured, and that the memory of the leased GPUs is free again. Returns run.json."""
    uuids = {gpu.id: gpu.uuid for gpu in gpus.visible()}
    before = {name: gpus.load(uuid).used_mib for name, uuid in uuids.items()}
    said = run(stack.backend, folder, *TEN, seconds=boot + SESSION)
    log = ((folder / "latest").resolve() / "backend" / "stack_daemon.log").read_text()
    used = [gpu for each in said["backend"]["boot"]["gpus"].values() for gpu in each]

    assert 10 == said["plan"]["finished"]
    assert 0 < said["serving"]["prefix_cache"]["hit_ratio"] <= 1
    assert [] == [gpu for gpu in used if said["serving"]["gpus"][gpu]["used_mib_max"] < before[gpu] + 10_000]
    assert "memory is free" in log
    assert [] == [gpu for gpu in used if gpus.load(uuids[gpu]).used_mib > before[gpu] + 500]
    return said


@pytest.mark.timeout(BOOT_OF_RANDOM + SESSION)
def test_vllm(tmp_path: Path) -> None:
    """VLLM boots on a leased GPU, answers ten scenarios with a warm prefix cache, and leaves the GPU as it was."""
    said = on_gpus(skip_unless_possible(VLLM), tmp_path, BOOT_OF_RANDOM)

    assert {"engine": 1} == {service: len(used) for service, used in said["backend"]["boot"]["gpus"].items()}


@pytest.mark.timeout(BOOT_OF_RANDOM + SESSION)
def test_dynamo_with_vllm(tmp_path: Path) -> None:
    """NVIDIA Dynamo boots with a vLLM worker on a leased GPU, and the worker of each call is known."""
    said = on_gpus(skip_unless_possible(DYNAMO), tmp_path, BOOT_OF_RANDOM)

    assert {"worker": 1} == {service: len(used) for service, used in said["backend"]["boot"]["gpus"].items()}
    assert "1 aggregated" in [rung["detail"] for rung in said["backend"]["boot"]["proof"]]


@pytest.mark.timeout(BOOT_OF_LLAMA + SESSION)
def test_llama70b_on_four_gpus(tmp_path: Path) -> None:
    """Llama 3.3 70B boots with TP 4 behind NVIDIA Dynamo, and calls the tools of the banking suite."""
    said = on_gpus(skip_unless_possible(*LLAMA), tmp_path, BOOT_OF_LLAMA)

    assert {"worker": 4} == {service: len(used) for service, used in said["backend"]["boot"]["gpus"].items()}
    assert 0 < said["suites"]["banking"]["scores"]["tsq"]["mean"]["value"]
