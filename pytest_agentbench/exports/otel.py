"""Writes `RUN/SESSION.json` for each attempt at a rollout: spans of LLM calls, which inference-perf replays.

Their attributes are those of OpenTelemetry's conventions for generative AI.

The spans have the form that inference-perf reads: an object with `spans`, whose attributes are a mapping. This is not OTLP.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

from pytest_agentbench.exports.atif import iso, known
from pytest_agentbench.exports.files import ChosenRuns, FileNames
from pytest_agentbench.exports.sessions import KeptSessions, SentCall
from pytest_agentbench.records import Json
from pytest_agentbench.runs.conversations import Conversations, NotKept

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
    """Writes `RUN/SESSION.json` for each session (one attempt at a rollout) of each run. Raises ConfigError if a run kept no requests."""
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
        "input.messages": [*map(_message, conversations.chat_request(call))],
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
        answers = conversations.chat_reply(sent.call)
    except NotKept:
        return None
    return [{**_message(answer), "finish_reason": sent.call.finish_reason or ""} for answer in answers]


def _message(message: Json) -> Json:
    """Converts a message of Chat Completions to the form of OpenTelemetry, a list of parts. Pictures and the like stay as they are."""
    role, content = message.get("role"), message.get("content") or ""
    if role == "tool":
        return {"role": role, "parts": [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}]}
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    parts = [{"type": "text", "content": part["text"]} if part.get("type") == "text" else part for part in texts if part.get("text") != ""]
    if message.get("reasoning_content"):
        parts.insert(0, {"type": "reasoning", "content": message["reasoning_content"]})
    functions = ((call, call.get("function") or {}) for call in message.get("tool_calls") or ())
    parts += (
        {"type": "tool_call", "id": call.get("id"), "name": function.get("name"), "arguments": function.get("arguments")}
        for call, function in functions
    )
    return {"role": role, "parts": parts}


def _tool(tool: Json) -> Json:
    """Converts the definition of a tool to the form of OpenTelemetry. Tools that are not functions stay as they are."""
    function = tool.get("function") or tool
    if "name" not in function:
        return tool
    parameters = function.get("parameters") or function.get("input_schema")
    return known({"type": "function", "name": function["name"], "description": function.get("description"), "parameters": parameters})
