"""A test of ten minutes on a machine with a GPU: `make test-gpu`. On other machines it is skipped with the requirements."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_agentbench.backends.machine import gpus
from pytest_agentbench.backends.machine.virtual_environments import resolve_python
from pytest_agentbench.errors import MissingError
from tests.real.booted_stack import run

pytestmark = pytest.mark.timeout(600)

STACK = "tests/gpu/random-8b.yaml"


@pytest.fixture
def gpu() -> gpus.Gpu:
    """Returns a free GPU whose memory NVML reports."""
    if not os.environ.get("GPU_TESTS"):
        pytest.skip("NOT TESTED on a GPU: make test-gpu, with a GPU of 24 GB or more")
    try:
        resolve_python("vllm", Path())
        with gpus.lease(1, stack="the smoke test") as lease:
            (free,) = lease.gpus
    except MissingError as error:
        pytest.skip(f"NOT TESTED on a GPU: {error}")
    if not free.uuid:
        pytest.skip("NOT TESTED on a GPU: NVML does not tell its memory; pip install 'pytest-agentbench[gpu]'")
    return free


def test_a_session_on_a_gpu(gpu: gpus.Gpu, tmp_path: Path) -> None:
    """VLLM boots on a leased GPU, answers ten scenarios with a warm prefix cache, and leaves the GPU as it was."""
    before = gpus.load(gpu.uuid).used_mib
    said = run(STACK, tmp_path, "--agentbench-limit", "10", "--agentbench-concurrency", "10")
    directory = (tmp_path / "latest").resolve()

    assert 10 == said["plan"]["finished"]
    assert {"engine": [gpu.id]} == said["backend"]["boot"]["gpus"]
    assert 0 < said["serving"]["prefix_cache"]["hit_ratio"] <= 1
    assert said["serving"]["gpus"][gpu.id]["used_mib_max"] > before + 10_000
    assert "memory is free" in (directory / "backend" / "stack_daemon.log").read_text()
    assert gpus.load(gpu.uuid).used_mib <= before + 500
