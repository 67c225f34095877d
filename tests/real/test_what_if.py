"""`agentbench what-if` through the simulator of the real NVIDIA Dynamo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_agentbench.backends.machine.virtual_environments import resolve_python
from pytest_agentbench.errors import MissingError
from pytest_agentbench.records import Json
from pytest_agentbench.simulation.replay import ENVIRONMENT
from tests.real.booted_stack import run

pytestmark = pytest.mark.timeout(300)

NO_WAIT = ["--agentbench-set", "backend.ttft_ms=0", "--agentbench-set", "backend.itl_ms=0"]


def asked(reports: Path, *words: str) -> Json:
    """Returns the answer of `what-if` about the latest run. Skips the test if the simulator is missing."""
    try:
        resolve_python(ENVIRONMENT, reports)
    except MissingError as error:
        pytest.skip(f"NOT TESTED: {error}")
    command = [sys.executable, "-m", "pytest_agentbench.cli", "what-if", "latest", f"--reports={reports}", "--format=json", *words]
    done = subprocess.run(command, cwd=reports, capture_output=True, text=True, timeout=200, check=False)

    assert 0 == done.returncode, done.stderr
    found: Json = json.loads(done.stdout)
    return found


def test_run_of_the_built_in_engine(tmp_path: Path) -> None:
    """All calls are simulated on each setting. The cache hits are about those of the engine, and no file of the simulator is left."""
    said = run("embedded", tmp_path, "--agentbench-limit", "20", "--agentbench-set", "backend.kv_blocks=3000", *NO_WAIT)
    files = sorted(tmp_path.rglob("*"))
    found = asked(tmp_path, "--workers", "1,2", "--kv-blocks", "1500,3000", "--router", "kv,round_robin", "--slo", "ttft=10s")
    settings = [tuple(answer["setting"].values()) for answer in found["answers"]]

    assert files == sorted(tmp_path.rglob("*"))
    assert said["performance"]["calls"] == found["calls"]
    assert {"workers": 1, "kv_blocks": 3_000, "block_size": 16, "router": "round_robin"} == found["own"]["setting"]
    assert [(1, 1500), (1, 3000), (2, 1500), (2, 1500), (2, 3000), (2, 3000)] == [(workers, blocks) for workers, blocks, *_ in settings]
    assert said["performance"]["prefix_cache_hit_ratio"] == pytest.approx(found["own"]["figures"]["hit_ratio"], abs=0.05)
    assert {"prefill", "decode"} == set(found["timing"])
    assert all(
        answer["figures"][name] is not None for answer in found["answers"] for name in ("goodput_per_s", "ttft_p50_ms", "duration_s")
    )


def test_run_of_dynamo(tmp_path: Path) -> None:
    """The setting of a Dynamo stack is read from the run: four workers, their blocks, and the router."""
    run("dynamo-mocker", tmp_path, "--agentbench-limit", "8", "--agentbench-set", "backend.settings.speedup=100")
    found = asked(tmp_path, "--workers", "8")

    assert {"workers": 4, "kv_blocks": 16_384, "block_size": 16, "router": "kv"} == found["own"]["setting"]
    assert [4, 8] == [answer["setting"]["workers"] for answer in found["answers"]]
    assert [] == found["lacking"]
    assert {"ttft_p50_ms", "duration_s"} <= set(found["off"])
