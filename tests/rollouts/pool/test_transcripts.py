"""Rollouts whose agent left no transcript get one from their last call, whatever its API is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_agentbench.exports.atif import trajectory
from pytest_agentbench.lib.kept_values import LARGEST_VALUE
from pytest_agentbench.metrics.columns import Origin, RolloutPlace
from pytest_agentbench.metrics.timeline import Calendar
from pytest_agentbench.records import Json, Rollout
from pytest_agentbench.rollouts.pool.transcripts import with_conversation
from pytest_agentbench.runs.message_file import MessageFile, Transcripts
from pytest_agentbench.tap.conversations import ConversationKeeper, KeptBytes
from pytest_agentbench.tap.http_messages import Request
from tests.lib.test_chat_messages import MESSAGES, RESPONSES, TALK
from tests.tables.shop import call, rollout


def completed(folder: Path, dialect: str, body: Json, reply: Json) -> Rollout:
    """Returns a rollout with one call and no transcript, as it is read back from its run."""
    keeper = ConversationKeeper(KeptBytes())
    kept = keeper.call(Request(b"POST", f"/{dialect}", [], json.dumps(body).encode()), body, json.dumps(reply).encode())
    lines = keeper.end().split(b"\n")
    made, more = with_conversation(rollout(calls=(call(0, 100, end=200, dialect=dialect, kept=kept),)), lines)
    with MessageFile(folder, str) as file:
        file.add([*lines, *more])
    return Transcripts(folder, pytest.fail).completed(made)


CHAT = {"choices": [{"message": TALK[-1]}]}
OF_RESPONSES = {"output": [RESPONSES[1], {**RESPONSES[2], "content": [{"type": "output_text", "text": "Yes."}]}]}


@pytest.mark.parametrize(
    ("dialect", "body", "reply"),
    [
        ("chat", {"messages": TALK[:-1]}, CHAT),
        ("responses", {"input": RESPONSES[:-1]}, OF_RESPONSES),
        ("messages", {"messages": MESSAGES[:-1], "system": "Be kind."}, MESSAGES[-1]),
    ],
)
def test_prompt_and_answer(tmp_path: Path, dialect: str, body: Json, reply: Json) -> None:
    """The transcript has the form of Chat Completions, and is exported as a trajectory (ATIF) with the tool call and its result."""
    made = completed(tmp_path, dialect, body, reply)

    assert TALK == [*made.messages]
    steps = trajectory(RolloutPlace(Origin("run", tmp_path, Calendar(), {}), made), {"name": "a", "version": "1"})
    assert steps is not None
    assert ["A lamp?", "I look.", "Yes."] == [step["message"] for step in steps["steps"]]
    assert [{"source_call_id": "c1", "content": "one"}] == steps["steps"][1]["observation"]["results"]


@pytest.mark.parametrize(
    ("dialect", "body", "reply"),
    [
        ("chat", {"messages": TALK[:-1]}, {"choices": [{"message": {"content": "x" * LARGEST_VALUE}}]}),
        ("messages", {"messages": [{"role": "user", "content": "x" * LARGEST_VALUE}]}, MESSAGES[-1]),
        ("responses", {"input": RESPONSES[4:5], "previous_response_id": "r1"}, OF_RESPONSES),
        ("completions", {"prompt": "A lamp?"}, {"choices": [{"text": "Yes."}]}),
    ],
    ids=["large-reply", "large-message", "continued", "completions"],
)
def test_incomplete(tmp_path: Path, dialect: str, body: Json, reply: Json) -> None:
    """There is no transcript if a message is missing: it was too large, or only the server has it."""
    assert () == completed(tmp_path, dialect, body, reply).messages
