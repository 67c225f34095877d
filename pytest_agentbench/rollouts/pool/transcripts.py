"""Moves the transcript of a finished rollout from its record to messages.jsonl.

That file contains most of its messages already, as parts of recorded calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.kept_values import MESSAGE, NodeLine, ValueLine, node_id, parsed, value_id
from pytest_agentbench.records import Rollout
from pytest_agentbench.tap.conversations import ConversationKeeper, KeptBytes


def with_conversation(rollout: Rollout, lines: Sequence[bytes]) -> tuple[Rollout, list[bytes]]:
    """Returns the rollout with a reference to its transcript in messages.jsonl, and the lines to add to that file.

    If the agent left no transcript, the prompt and the answer of its last successful Chat Completions call become the transcript. Calls of
    roles, such as a judge, do not count.

    Args:
        rollout: A finished rollout.
        lines: The lines for messages.jsonl to which the rollout's calls refer.
    """
    if not rollout.messages:
        return _last_call(rollout, lines)
    keeper = ConversationKeeper(KeptBytes())
    try:
        node = keeper.chain([*rollout.messages])
    except TypeError:  # An agent may leave objects that JSON cannot express. The record has them as text.
        return rollout, []
    return dataclasses.replace(rollout, messages=(), conversation=node), keeper.end().split(b"\n")


def _last_call(rollout: Rollout, lines: Sequence[bytes]) -> tuple[Rollout, list[bytes]]:
    own = [call.kept for call in rollout.calls if not call.role and call.error_kind is None and call.dialect == "chat"]
    kept = own[-1] if own else None
    reply = next((line for line in map(parsed, lines) if kept and line.id == kept.reply), None)
    if kept is None or not kept.prompt or not isinstance(reply, ValueLine):
        return rollout, []
    text = json_text.dumps(json_text.loads(reply.text)["choices"][0]["message"])
    message = ValueLine(value_id(MESSAGE, text), text)
    node = NodeLine(node_id(kept.prompt, message.id), kept.prompt, message.id)
    return dataclasses.replace(rollout, conversation=node.id), [message.written(), node.written()]
