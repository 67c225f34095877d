"""Writes sessions as spans with the attributes of OpenTelemetry's conventions for generative AI, as inference-perf replays them.

The spans have the form that inference-perf reads: an object with `spans`, whose attributes are a mapping. This is not OTLP.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from pytest_agentbench.exports.atif import iso, known
from pytest_agentbench.exports.files import ChosenRuns, FileNames
from pytest_agentbench.exports.sessions import KeptSessions, SentCall
from pytest_agentbench.records import Json, LLMCall
from pytest_agentbench.runs.message_file import Conversations, NotKept

APIS = ("chat", "responses", "messages")

TEXTS = ("input.messages", "output.messages", "tool.definitions")  # JSON texts, because attributes of spans are flat

#: Attribute -> fields of a request, one of which has its value.
PARAMETERS = {
    "request.max_tokens": ("max_completion_tokens", "max_tokens", "max_output_tokens"),
    "request.temperature": ("temperature",),
    "request.top_p": ("top_p",),
    "request.seed": ("seed",),
}


def write(chosen: ChosenRuns, directory: Path) -> None:
    """Writes `RUN/SESSION.json` for each session of each run. Raises ConfigError if a run kept no requests."""
    for origin in chosen.origins:
        kept, names = KeptSessions(origin, APIS), FileNames()
        (directory / origin.run).mkdir()
        for session in kept:
            trace = _hex(f"{origin.run}/{session.id}", 32)
            spans = [_span(call, trace, session.id, kept.conversations) for call in session.calls]
            text = json.dumps({"session_id": session.id, "trace_id": trace, "span_count": len(spans), "spans": spans})
            (directory / origin.run / f"{names.of(session.id)}.json").write_text(text, encoding="utf-8")
        chosen.notes += kept.note()


def _hex(text: str, digits: int) -> str:
    return sha256(text.encode()).hexdigest()[:digits]


def _span(sent: SentCall, trace: str, session: str, conversations: Conversations) -> Json:
    """Returns the span of a call. Values that the run does not know are left out."""
    call, body = sent.call, conversations.request(sent.call)["body"]
    instructions = body.get("system") or body.get("instructions")
    prompt = [*([{"role": "system", "content": instructions}] if instructions else []), *conversations.prompt(call)]
    attributes: Json = {
        "operation.name": "chat",
        "conversation.id": session,
        "request.model": call.model,
        **{name: next((body[field] for field in fields if field in body), None) for name, fields in PARAMETERS.items()},
        "response.model": call.answered_by or None,
        "response.id": call.response_id or None,
        "response.finish_reasons": [call.finish_reason] if call.finish_reason else None,
        "usage.input_tokens": call.prompt_tokens,
        "usage.output_tokens": call.completion_tokens,
        "input.messages": _messages(call, prompt),
        "output.messages": _answers(sent, conversations),
        "tool.definitions": [_tool(tool) for tool in body.get("tools") or ()] or None,
    }
    return {
        "trace_id": trace,
        "span_id": _hex(sent.id, 16),
        "name": f"chat {call.model}",
        "start_time": iso(sent.start),
        "end_time": iso(sent.end),
        "attributes": {f"gen_ai.{name}": json.dumps(value) if name in TEXTS else value for name, value in known(attributes).items()},
    }


def _answers(sent: SentCall, conversations: Conversations) -> list[Json] | None:
    """Returns the messages of a reply, or None if it was not kept."""
    try:
        answers = _messages(sent.call, conversations.reply_messages(sent.call))
    except NotKept:
        return None
    return [{**answer, "finish_reason": sent.call.finish_reason or ""} for answer in answers]


def _messages(call: LLMCall, items: Iterable[Any]) -> list[Json]:
    """Returns messages, or items of the Responses API, as messages with parts. Items that the model wrote in a row are one message."""
    messages: list[Json] = []
    for item in items:
        for message in _with_parts(item if isinstance(item, dict) else {"role": "user", "content": [item]}):
            if call.dialect == "responses" and messages and "assistant" == message["role"] == messages[-1]["role"]:
                messages[-1]["parts"] += message["parts"]
            else:
                messages.append(message)
    return messages


def _with_parts(item: Json) -> Iterator[Json]:
    """Yields the messages in a message or item. Each tool result is a message of its own, as in Chat Completions."""
    content = item.get("content") or []
    pieces: list[Any] = [content] if isinstance(content, str) else [*content]
    if "role" not in item:
        pieces = [item]
    elif item["role"] == "tool":
        pieces = [{**item, "type": "tool_result"}]
    if item.get("reasoning_content"):
        pieces.insert(0, {"type": "thinking", "thinking": item["reasoning_content"]})
    pieces += ({**call, **call.get("function", {})} for call in item.get("tool_calls") or ())
    parts = [_part(piece) for piece in pieces]
    others = [part for part in parts if part["type"] != "tool_call_response"]
    yield from ({"role": "tool", "parts": [part]} for part in parts if part["type"] == "tool_call_response")
    if others or not parts:
        yield {"role": item.get("role", "assistant"), "parts": others}


def _part(piece: Any) -> Json:
    """Returns a part of a message in the form of the conventions. Pictures and other parts stay as they are."""
    match piece:
        case str(text) | {"type": "text" | "input_text" | "output_text", "text": text} | {"type": "refusal", "refusal": text}:
            return {"type": "text", "content": text}
        case {"type": "thinking", "thinking": text} | {"type": "reasoning", "summary": [{"text": text}]}:
            return {"type": "reasoning", "content": text}
        case {"name": name, "arguments": arguments} | {"type": "tool_use", "name": name, "input": arguments}:
            return {"type": "tool_call", "id": piece.get("call_id") or piece.get("id"), "name": name, "arguments": arguments}
        case {"type": "tool_result"} | {"type": "function_call_output"}:
            id = next((piece[name] for name in ("tool_call_id", "tool_use_id", "call_id") if name in piece), None)
            return {"type": "tool_call_response", "id": id, "response": piece.get("output", piece.get("content"))}
    return dict(piece) if isinstance(piece, dict) and "type" in piece else {"type": "text", "content": json.dumps(piece)}


def _tool(tool: Json) -> Json:
    """Returns the definition of a tool in the form of the conventions. Tools that are not functions stay as they are."""
    function = tool.get("function") or tool
    if "name" not in function:
        return tool
    parameters = function.get("parameters") or function.get("input_schema")
    return known({"type": "function", "name": function["name"], "description": function.get("description"), "parameters": parameters})
