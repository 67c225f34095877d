"""Scorers for which a judge marks a whole rollout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_agentbench.errors import JudgeError
from pytest_agentbench.lib.foreign import SLACK
from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.scorers.completeness import completeness
from pytest_agentbench.scorers.reasoning_quality import reasoning_quality
from pytest_agentbench.scorers.transcript import CONVERSATION, conversation_text
from pytest_agentbench.suites.suite import Scenario
from tests.scorers.conftest import Judge

REQUEST: Json = {"role": "user", "content": "Write hello into hello.txt."}
CALL: Json = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "echo hello > hello.txt"}'}}
MESSAGES: tuple[Json, ...] = (
    {"role": "system", "content": "You solve tasks."},
    REQUEST,
    {"role": "assistant", "content": "I write it.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "[exit code 0]"},
)
SCENARIO = Scenario("hello", (REQUEST,))
ROLLOUT = Rollout("bench", "hello", "default", 1, "ok", messages=MESSAGES)


def mark(value: object, reasoning: str = "x") -> str:
    return json.dumps({"reasoning": reasoning, "mark": value})


async def test_marks(judge: Judge) -> None:
    """The score is the mean of the marks as a share of ten. The explanation is the judge's reason for the median mark."""
    score = await completeness(SCENARIO, ROLLOUT, judge(mark(10, "all"), mark(4, "little"), mark(7, "most of it")))

    assert pytest.approx(0.7) == float(score)
    assert {"judgements": 3, "lowest": 0.4, "highest": 1.0} == score.parts
    assert score.explanation.startswith("most of it; judge m, prompt ")


async def test_the_prompts_of_the_judge(judge: Judge, tmp_path: Path) -> None:
    """Both scorers show the request and the agent's work, but not the agent's instructions. Their questions differ."""
    model = judge(mark(5))
    await completeness(SCENARIO, ROLLOUT, model, judgements=1, temperature=0.0)
    await reasoning_quality(SCENARIO, ROLLOUT, model, judgements=2)
    bodies = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    prompts = [body["messages"][0]["content"] for body in bodies]

    assert [(0, 0.0), (0, 0.5), (1, 0.5)] == [(body["seed"], body["temperature"]) for body in bodies]
    done = '[assistant] I write it.\nbash({"command": "echo hello > hello.txt"})\n\n[tool] [exit code 0]\n'
    for prompt in prompts:
        assert done in prompt
        assert "You solve tasks." not in prompt
        assert 1 == prompt.count("Write hello")
    assert "how much of a request" in prompts[0]
    assert "how well an assistant reasons" in prompts[1]


async def test_an_invalid_mark_gives_no_score(judge: Judge) -> None:
    """A mark outside 0 to 10 leads to no score after one correction. The number of judgements must be at least one."""
    nonsense = ["good", mark(11), mark("fine"), "{}"]
    model = judge(*(text for each in nonsense for text in (each, each)))

    for _ in nonsense:
        with pytest.raises(JudgeError):
            await completeness(SCENARIO, ROLLOUT, model, judgements=1)
    with pytest.raises(ValueError, match="judgements must be a whole number from 1 up, not 0"):
        await completeness(SCENARIO, ROLLOUT, model, judgements=0)


def test_long_conversations() -> None:
    """Long messages and long conversations are truncated in the middle, so that a judge can read them."""
    long = [REQUEST, *({"role": "tool", "content": "a" * 9_000} for _ in range(20))]

    text = conversation_text(long)

    assert CONVERSATION - SLACK < len(text) <= CONVERSATION
    assert "[5,256 bytes left out]" in text
    assert "(nothing was said or done)" == conversation_text([REQUEST])
