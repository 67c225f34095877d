"""The section about a rollout below a failed test."""

from __future__ import annotations

from pytest_agentbench.records import Rollout, Score, ToolCall
from pytest_agentbench.records.rollout import Verification
from pytest_agentbench.reports.failure_section import rollout_section


def test_a_task() -> None:
    """For a task, the section has the verifier's result and the end of its output, and no table of tools."""
    printed = "".join(f"line {number}\n" for number in range(30))
    verification = Verification(0.5, {"reward": 0.5, "speed": 2.0}, exit_code=1, output=printed, first_failure="test_port")
    calls = (ToolCall("bash", {"command": "ls"}, 1),)

    text = rollout_section(Rollout("bench", "a", "default", 1, "ok", tool_calls=calls, verification=verification))

    assert (
        "the verifier (shared sandbox): reward 0.5, speed 2; exit code 1; the first check that failed: test_port\n"
        "the end of its output:\nline 10\n" in text
    )
    assert text.endswith("line 29")
    assert "unexpected" not in text


def test_without_a_transcript() -> None:
    """Without messages, the section has no end of the transcript."""
    assert "transcript" not in rollout_section(Rollout("bench", "a", "default", 1, "ok", log="started"))


def test_columns() -> None:
    """Texts about status, scores and time start in one column, also with long names of scores. So do the messages."""
    call = {"function": {"name": "find_item", "arguments": "{}"}}
    messages = ({"role": "user", "content": "a lamp"}, {"role": "assistant", "content": None, "tool_calls": [call]})
    scores = {"tsq": Score(0.5, explanation="half"), "parameter_accuracy": Score(0.25, explanation="a quarter")}

    lines = rollout_section(Rollout("shop", "a", "default", 1, "ok", messages=messages, scores=scores)).splitlines()

    assert ["status             ok, 0 LLM calls, 0.00 s", "tsq                0.500  half"] == lines[:2]
    assert ["parameter_accuracy 0.250  a quarter", "time               none"] == lines[2:4]
    assert ["  user      a lamp", "  assistant find_item({})"] == lines[-2:]
