"""The conversation that ends with a call, across calls for which the server keeps the history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_agentbench.records import Json, KeptCall
from pytest_agentbench.runs.conversations import Conversations
from pytest_agentbench.runs.message_file import MessageFile
from pytest_agentbench.tap.conversations import ConversationKeeper, KeptBytes
from pytest_agentbench.tap.http_messages import Request


class Kept(NamedTuple):
    """A call of which only the ids are known."""

    kept: KeptCall


def kept(directory: Path, *calls: tuple[str, Json, Any]) -> tuple[Conversations, list[Kept]]:
    """Keeps calls (path, request, reply) of one address in messages.jsonl of a directory."""
    keeper = ConversationKeeper(KeptBytes())
    done = [
        Kept(keeper.call(Request(b"POST", path, [], json.dumps(body).encode()), None, json.dumps(reply).encode()))
        for path, body, reply in calls
    ]
    with MessageFile(directory, str) as file:
        file.add(keeper.end().split(b"\n"))
    return Conversations(directory), done


def turn(number: int, before: int | None = None) -> tuple[str, Json, Json]:
    """Returns a call of the Responses API that refers to an earlier one."""
    body = {"input": f"question {number}", **({} if before is None else {"previous_response_id": f"r{before}"})}
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"answer {number}"}]}
    return "/responses", body, {"id": f"r{number}", "output": [text]}


def talk(number: int, name: str) -> tuple[str, Json, Json]:
    """Returns a call of the Responses API whose history the server keeps under a name."""
    path, body, reply = turn(number)
    return path, {**body, "conversation": name}, reply


def texts(messages: list[Json]) -> list[str]:
    return [message["content"] for message in messages]


@pytest.mark.parametrize(
    ("calls", "numbers"),
    [
        ([turn(1), turn(2)], [2]),
        ([turn(1), turn(2, before=1), turn(3, before=2)], [1, 2, 3]),
        ([turn(1), turn(2, before=1), turn(3, before=1)], [1, 3]),  # the second call was another branch
        ([turn(1), turn(2, before=7)], [2]),  # an answer from before the rollout
        ([turn(1, before=1)], [1]),
        ([talk(1, "a"), talk(2, "b"), talk(3, "a")], [1, 3]),
    ],
)
def test_history_on_the_server(tmp_path: Path, calls: list[tuple[str, Json, Json]], numbers: list[int]) -> None:
    """A conversation begins with the calls to whose answers the later ones refer. Calls of other branches are no part of it."""
    conversations, done = kept(tmp_path, *calls)

    assert [f"{what} {number}" for number in numbers for what in ("question", "answer")] == texts(conversations.conversation(done))


@pytest.mark.parametrize(
    "call",
    [("/embeddings", {"input": "x"}, {"data": []}), ("/chat/completions", {"messages": []}, "busy")],
    ids=["another API", "a reply that is no object"],
)
def test_no_conversation(tmp_path: Path, call: tuple[str, Json, Any]) -> None:
    """Requests that are no LLM calls, and replies that are no answers, have no conversation."""
    conversations, done = kept(tmp_path, call)

    assert [] == conversations.conversation(done)
