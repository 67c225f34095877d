"""Transcripts of rollouts: made of the calls that the tap saw, and moved from records to messages.jsonl, which has most of them already."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from pytest_agentbench.lib.kept_values import NodeLine, ValueLine, parsed
from pytest_agentbench.records import Json, KeptCall, Rollout, kept_calls
from pytest_agentbench.runs.conversations import ConversationReader, KeptIds, NotKept
from pytest_agentbench.tap.conversations import ConversationKeeper, KeptBytes


class UnwrittenConversations(ConversationReader):
    """Reads requests and replies from lines that are not in messages.jsonl yet."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        super().__init__()
        self._lines = {line.id: line for line in map(parsed, lines)}

    def _line(self, id: str) -> ValueLine | NodeLine:
        if id not in self._lines:
            raise NotKept(f"the request or reply {id} was not kept")
        return self._lines[id]


def last_conversation(calls: Sequence[KeptCall], lines: Iterable[bytes]) -> list[Json]:
    """Returns the conversation that ends with the last of some calls, as messages of Chat Completions. Empty if it was not kept.

    Args:
        calls: Successful calls of an agent, in their order.
        lines: The lines for messages.jsonl to which the calls refer.
    """
    try:
        return UnwrittenConversations(lines).conversation([KeptIds(call) for call in calls])
    except NotKept:
        return []


def with_conversation(rollout: Rollout, lines: Sequence[bytes]) -> tuple[Rollout, list[bytes]]:
    """Returns the rollout with a reference to its transcript in messages.jsonl, and the lines to add to that file.

    If the agent left no transcript, the conversation that ends with its last successful call becomes the transcript.

    Args:
        rollout: A finished rollout.
        lines: The lines for messages.jsonl to which the rollout's calls refer.
    """
    messages = [*rollout.messages] or last_conversation(kept_calls(rollout.calls), lines)
    keeper = ConversationKeeper(KeptBytes())
    try:
        node = keeper.chain(messages) if messages else ""
    except TypeError:  # An agent may leave objects that JSON cannot express. The record has them as text.
        return rollout, []
    return dataclasses.replace(rollout, messages=(), conversation=node), [*filter(None, keeper.end().split(b"\n"))]
