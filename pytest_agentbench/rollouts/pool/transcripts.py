"""Moves the transcript of a finished rollout from its record to messages.jsonl, where its calls have most of it already."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.chat_messages import chat_messages, reply_messages
from pytest_agentbench.lib.kept_values import MESSAGE, OMITTED, NodeLine, ValueLine, node_id, parsed, value_id
from pytest_agentbench.records import Json, KeptCall, Rollout
from pytest_agentbench.tap.conversations import ConversationKeeper, KeptBytes

Records: TypeAlias = Mapping[str, ValueLine | NodeLine]  # id -> line of messages.jsonl

#: APIs whose requests have a list of messages.
APIS = ("chat", "responses", "messages")


def with_conversation(rollout: Rollout, lines: Sequence[bytes]) -> tuple[Rollout, list[bytes]]:
    """Returns the rollout with a reference to its transcript in messages.jsonl, and the lines to add to that file.

    If the agent left no transcript, the prompt and the answer of its last successful call become the transcript. Calls of roles, such as
    a judge, do not count.

    Args:
        rollout: A finished rollout.
        lines: The lines for messages.jsonl to which the rollout's calls refer.
    """
    if rollout.messages:
        return _with_messages(rollout, rollout.messages)
    own = [call for call in rollout.calls if not call.role and call.error_kind is None and call.dialect in APIS]
    kept = own[-1].kept if own else None
    records = {record.id: record for record in map(parsed, lines)} if kept and kept.prompt else {}
    if kept is None or kept.reply not in records:
        return rollout, []
    try:
        if own[-1].dialect == "chat":
            return _with_answer(rollout, kept.prompt, _value(records, kept.reply)["choices"][0]["message"])
        return _with_messages(rollout, _conversation(own[-1].dialect, kept, records))
    except KeyError:  # A message was too large to be kept.
        return rollout, []


def _with_messages(rollout: Rollout, messages: Sequence[Json]) -> tuple[Rollout, list[bytes]]:
    if not messages:
        return rollout, []
    keeper = ConversationKeeper(KeptBytes())
    try:
        node = keeper.chain([*messages])
    except TypeError:  # An agent may leave objects that JSON cannot express. The record has them as text.
        return rollout, []
    return dataclasses.replace(rollout, messages=(), conversation=node), keeper.end().split(b"\n")


def _with_answer(rollout: Rollout, prompt: str, answer: Json) -> tuple[Rollout, list[bytes]]:
    """Adds a message to the node of a prompt, whose messages are kept already."""
    text = json_text.dumps(answer)
    message = ValueLine(value_id(MESSAGE, text), text)
    node = NodeLine(node_id(prompt, message.id), prompt, message.id)
    return dataclasses.replace(rollout, conversation=node.id), [message.written(), node.written()]


def _conversation(dialect: str, kept: KeptCall, records: Records) -> list[Json]:
    """Returns prompt and answer of a call in the form of Chat Completions. Empty if the prompt continues messages that the server has."""
    body = _value(records, kept.request).get("body", {})
    if body.get("previous_response_id") or body.get("conversation"):
        return []
    prompt: list[Any] = []
    node = kept.prompt
    while node:
        record = records[node]
        assert isinstance(record, NodeLine)
        prompt.append(_value(records, record.message))
        node = record.before
    answer = reply_messages(_value(records, kept.reply))
    return [*chat_messages(dialect, prompt[::-1]), *chat_messages(dialect, answer)]


def _value(records: Records, id: str) -> Any:
    """Returns a value. Raises KeyError if it was too large to be kept."""
    record = records[id]
    assert isinstance(record, ValueLine)
    value = json_text.loads(record.text)
    if isinstance(value, dict) and value.keys() == {OMITTED}:
        raise KeyError(id)
    return value
