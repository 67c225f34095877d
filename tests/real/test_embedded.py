"""A whole suite through the real NVIDIA Dynamo, with the built-in engine behind its frontend and KV router."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_agentbench.records import Json
from tests.real.booted_stack import booted, run

pytestmark = pytest.mark.timeout(300)

NO_WAIT = ["--agentbench-set", "backend.settings.ttft_ms=0", "--agentbench-set", "backend.settings.itl_ms=0"]
NO_WAIT_EMBEDDED = ["--agentbench-set", "backend.ttft_ms=0", "--agentbench-set", "backend.itl_ms=0"]


def test_banking(tmp_path: Path) -> None:
    """All hundred scenarios are answered, with the same scores as by the engine alone.

    All workers have answered calls, each engine as many as the worker before it, and each session stayed with its worker.
    """
    in_turns = ("--agentbench-set", "backend.settings.policy=round-robin-hard")
    result = run("dynamo-embedded", tmp_path / "dynamo", "-n", "8", *NO_WAIT, *in_turns)
    through_dynamo = result["suites"]["banking"]
    engine_alone = run("embedded", tmp_path / "embedded", *NO_WAIT_EMBEDDED)["suites"]["banking"]

    assert 100 == through_dynamo["rollouts"]["ok"]
    assert engine_alone["rollouts"] == through_dynamo["rollouts"]
    assert engine_alone["scores"] == through_dynamo["scores"]
    (use,) = result["engines"]
    engines, workers = ([each["calls"] for each in use["engines"] if each["service"] == name] for name in ("engine", "worker"))
    assert engines == workers
    assert use["tap_calls"] == sum(workers)
    assert all(workers)
    assert use["sessions"] == use["traced"] == use["stayed"] == 100
    assert sorted(workers) == sorted(use["named"].values())
    assert [] == use["warnings"]


CALL: Json = {
    "tools": [
        {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}}
    ]
}


def test_choices_of_tools(tmp_path: Path) -> None:
    """With `required` or a named tool, a tool is called with arguments that are JSON. With `none`, the answer is text."""
    with booted("dynamo-embedded", tmp_path) as stack:
        named = {"type": "function", "function": {"name": "find"}}
        answers = [stack.chat("Hello there", **CALL, tool_choice=choice, max_tokens=200) for choice in ("required", named, "none")]

    calls = [answer["choices"][0]["message"].get("tool_calls") or [] for answer in answers]
    assert [["find"], ["find"], []] == [[call["function"]["name"] for call in each] for each in calls]
    assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for each in calls for call in each)
    assert ["tool_calls", "stop"] == [answers[index]["choices"][0]["finish_reason"] for index in (0, 2)]


def test_scripted_answers(tmp_path: Path) -> None:
    """The scripted policy of the engine can be chosen by settings alone."""
    script = tmp_path / "answers.script.yaml"
    script.write_text("- match: {contains: Rome}\n  text: It is sunny there.\n- text: I do not know.\n")
    changes = [("settings.answers", "script"), ("settings.script", str(script)), ("ready.tools", "none")]
    with booted("dynamo-embedded", tmp_path, changes) as stack:
        answer = stack.chat("What about Rome?", max_tokens=100)

    assert "It is sunny there." == answer["choices"][0]["message"]["content"]


def test_thunderagent(tmp_path: Path) -> None:
    """The real ThunderAgent router uses the capacity of the built-in engine.

    Every rollout is a program of the router, and each is released.
    """
    with booted("thunderagent-embedded", tmp_path, [("settings.kv_blocks", 64)]) as stack:
        stack.chat("Hello", program_id="rollout-1")
        programs, metrics = (json.loads(stack.get(path)) for path in ("/programs", "/metrics"))
    said = run("thunderagent-embedded", tmp_path, "--agentbench-limit", "8")

    assert 8 == said["suites"]["banking"]["rollouts"]["ok"]
    assert {"labelled": 8, "announced": 8, "released": 8, "failed": 0, "bypassed": 0, "left": 0} == said["labels"]
    assert ("acting", 1) == (programs["rollout-1"]["status"], programs["rollout-1"]["step_count"])
    assert [64 * 16] == [each["cache_config"]["total_tokens_capacity"] for each in metrics["backends"].values()]
