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
from pytest_agentbench.rollouts.pool.model_addresses import with_conversation
from pytest_agentbench.runs.conversations import Transcripts
from pytest_agentbench.runs.message_file import MessageFile
from pytest_agentbench.tap.conversations import ConversationKeeper, KeptBytes
from pytest_agentbench.tap.http_messages import Request
from tests.tables.shop import call, rollout
from tests.tap.dialects.conversation import ANSWER, FOUND, QUESTION, REPLIES, REQUESTS, RULES, THINKING


def completed(folder: Path, route: str, body: Json, reply: Json) -> Rollout:
    """Returns a rollout with one call and no transcript, as it is read back from its run."""
    keeper = ConversationKeeper(KeptBytes())
    kept = keeper.call(Request(b"POST", route, [], json.dumps(body).encode()), body, json.dumps(reply).encode())
    lines = keeper.end().split(b"\n")
    made, more = with_conversation(rollout(calls=(call(0, 100, end=200, kept=kept),)), lines)
    with MessageFile(folder, str) as file:
        file.add([*lines, *more])
    return Transcripts(folder, pytest.fail).completed(made)


@pytest.mark.parametrize("route", REQUESTS)
def test_prompt_and_answer(tmp_path: Path, route: str) -> None:
    """The transcript has the form of Chat Completions, and is exported as a trajectory (ATIF) with the tool call and its result."""
    made = completed(tmp_path, route, REQUESTS[route], REPLIES[route])

    assert [RULES, QUESTION, THINKING, FOUND, ANSWER] == [*made.messages]
    steps = trajectory(RolloutPlace(Origin("run", tmp_path, Calendar(), {}), made), {"name": "a", "version": "1"})
    assert steps is not None
    assert ["Be brief.", "What is tea?", "I look.", "A leaf."] == [step["message"] for step in steps["steps"]]
    assert [{"source_call_id": "c1", "content": "a leaf"}] == steps["steps"][2]["observation"]["results"]


@pytest.mark.parametrize(
    ("route", "body", "reply"),
    [
        ("/chat/completions", {"messages": [QUESTION]}, {"choices": [{"message": {"content": "x" * LARGEST_VALUE}}]}),
        ("/messages", {"messages": [{"role": "user", "content": "x" * LARGEST_VALUE}]}, REPLIES["/messages"]),
    ],
    ids=["large-reply", "large-message"],
)
def test_incomplete(tmp_path: Path, route: str, body: Json, reply: Json) -> None:
    """There is no transcript if a message was too large to be kept."""
    assert () == completed(tmp_path, route, body, reply).messages
