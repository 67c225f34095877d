"""Makes recordings for tests: files as `agentbench cassette trim` writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pytest_agentbench.lib import codec
from pytest_agentbench.lib.json_text import sealed
from pytest_agentbench.recordings.recording import CALL_RECORD, RecordedCall, Recording
from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.runs.message_file import MessageFile, with_changed_ids
from pytest_agentbench.tap.conversations import ConversationKeeper, KeptBytes
from pytest_agentbench.tap.http_messages import Request

FIRST, SECOND = RolloutKey("shop", "shop-0"), RolloutKey("shop", "shop-1")


class MadeCall(NamedTuple):
    """A call of a recording."""

    body: Json
    reply: Any
    key: RolloutKey = FIRST
    role: str = ""
    path: str = "/chat/completions"
    more: Json = {}  # other fields of RecordedCall


def asking(*texts: str, **fields: Any) -> Json:
    """Returns the body of a chat request with these messages, of user and assistant in turn."""
    roles = ("user", "assistant")
    return {"model": "m", "messages": [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)], **fields}


def saying(text: str) -> Json:
    """Returns a complete answer of Chat Completions."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"id": f"c-{text}", "created": 7, "model": "m", "object": "chat.completion", "choices": [choice]}


def made(directory: Path, calls: Sequence[MadeCall], redact: Callable[[str], str] = str) -> Recording:
    """Writes a recording with these calls to a file, redacted as a session does, and opens it."""
    records = []
    with MessageFile(directory, redact) as values:
        for call in calls:
            keeper = ConversationKeeper(KeptBytes())
            request = Request(b"POST", call.path, [], json.dumps(call.body).encode())
            kept = keeper.call(request, None, json.dumps(call.reply).encode())
            changed = values.add(keeper.end().split(b"\n"))
            recorded = replace(RecordedCall(call.key, call.role, kept), **call.more)
            records.append(with_changed_ids(json.dumps({CALL_RECORD: codec.plain(recorded)}, separators=(",", ":")).encode(), changed))
    file = directory / "made.cassette"
    file.write_bytes(b"".join(sealed(record) + b"\n" for record in records) + values.path.read_bytes())
    return Recording(file)
