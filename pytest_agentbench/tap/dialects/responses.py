"""Responses: https://platform.openai.com/docs/api-reference/responses-streaming"""

from __future__ import annotations

import json

from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects import chat_form
from pytest_agentbench.tap.dialects.reader import (
    DialectReader,
    Fault,
    ToolCallText,
    count,
    error_message,
    expect,
    id_of,
    in_front,
    model_of,
    server_report,
    stream_body,
)

_KINDS = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "content",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.function_call_arguments.delta": "tool_call",
    "response.mcp_call_arguments.delta": "tool_call",
    "response.custom_tool_call_input.delta": "tool_call",
}
_ENDS = ("response.completed", "response.incomplete", "response.failed")

#: Types of output items that are tool calls.
_CALLS = ("function_call", "mcp_call", "custom_tool_call")

#: Types of tool calls that the agent must carry out. The server carries out the others itself.
_AGENTS_CALLS = ("function_call", "custom_tool_call")

#: Statuses of the first answer to a background request. The agent polls for the result.
_UNFINISHED = ("queued", "in_progress")

#: Statuses of answers that may be empty: the model had finished, or its answer was truncated.
_MAY_BE_EMPTY = ("completed", "incomplete")


class ResponsesReader(DialectReader):
    """Reads an answer of Responses. The last event of a stream repeats the whole answer."""

    name = "responses"

    def __init__(self) -> None:
        super().__init__()
        self._response: Json | None = None  # the final response
        self._items: list[Json] = []  # output items in the order in which they were completed
        self._has_named_call = False  # whether a tool call with a name was opened

    @staticmethod
    def as_stream(request: Json) -> bytes | None:
        """Returns a body that requests the same answer as a stream, or None if it already streams or cannot be streamed."""
        return stream_body(request, ("background",))

    @staticmethod
    def with_usage(request: Json) -> bytes | None:
        """Returns None, because every stream reports its usage."""
        del request
        return None

    @staticmethod
    def salted(request: Json, salt: str) -> Json:
        """Puts the salt (a text that prevents cache hits) before `instructions`."""
        return {**request, "instructions": in_front(salt, request.get("instructions"))}

    @staticmethod
    def chat_request(request: Json) -> list[Json]:
        given = request.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else chat_form.objects(given)
        return [*chat_form.instructions(request.get("instructions")), *chat_form.merged(map(_chat_message, items), "assistant")]

    @staticmethod
    def chat_reply(reply: Json) -> list[Json]:
        return chat_form.merged(map(_chat_message, chat_form.objects(reply.get("output"))), "assistant")

    @property
    def finish_reason(self) -> str | None:
        """The reason why the response is incomplete, or else its status."""
        response = self._response or {}
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        status = reason or response.get("status")
        return None if status is None else str(status)

    @property
    def prompt_tokens(self) -> int | None:
        return count(self.usage, "input_tokens")

    @property
    def cached_tokens(self) -> int | None:
        return count(self.usage, "input_tokens_details", "cached_tokens")

    @property
    def response_id(self) -> str | None:
        return id_of(self._response or {})

    @property
    def server(self) -> Json | None:
        return server_report(self._response or {})

    @property
    def model(self) -> str:
        return model_of(self._response or {})

    @property
    def _counted_tokens(self) -> int | None:
        return count(self.usage, "output_tokens")

    def _merge(self, data: Json) -> tuple[str, int | None]:
        event = data.get("type")
        if isinstance(event, str) and event in _KINDS:
            return self._merge_delta(data, _KINDS[event]), None
        if event in _ENDS:
            self._take(expect(dict, data.get("response")), failed=event == "response.failed")
            self.done = self._over = True
            return "finish", None
        if event == "response.output_item.added":
            item = expect(dict, data.get("item"))
            self._has_named_call |= item.get("type") in _CALLS and bool(item.get("name"))
        elif event == "response.output_item.done":
            self._items.append(expect(dict, data.get("item")))
        return "other", None

    def _merge_delta(self, data: Json, kind: str) -> str:
        delta = data.get("delta")
        if kind != "tool_call":
            return kind if expect(str, delta or "") else "other"
        if not isinstance(delta, str | None):
            raise Fault("bad_tool_call", f"arguments of a tool call are not a text: {delta!r:.100}")
        if not isinstance(data.get("output_index", 0), int):
            raise Fault("bad_tool_call", f"the index of a tool call is not a number: {data['output_index']!r:.100}")
        if delta and not self._has_named_call:
            raise Fault("bad_tool_call", f"arguments of a tool call came before its name: {beginning(delta, 100)}")
        return kind if delta else "other"

    def _take(self, response: Json, failed: bool) -> None:
        """Stores the final response. If it has no output, adds what was streamed. Raises Fault if the server reports a failure."""
        if failed:
            raise Fault("error_event", error_message(response) if response.get("error") else "the response failed")
        self._response = response if response.get("output") else {**response, "output": self._items}
        if isinstance(response.get("usage"), dict):
            self.usage = response["usage"]

    def _read_whole(self, data: Json) -> None:
        self._take(data, failed=data.get("status") == "failed")

    def _check(self) -> None:
        response = self._response
        if response is None:
            raise Fault("incomplete", f"{self._without} response.completed")
        if response.get("status") in _UNFINISHED and response.get("background"):
            return
        if response.get("status") in (*_UNFINISHED, "cancelled"):
            raise Fault("incomplete", f"the response is {response['status']}")
        items = [expect(dict, item) for item in expect(list, response["output"])]
        if any(item.get("type") in _CALLS and not item.get("name") for item in items):
            raise Fault("bad_tool_call", "a tool call has no name")
        if not any(map(_has_output, items)) and response.get("status") not in _MAY_BE_EMPTY:
            raise Fault("empty", f"{self._without} text and without a tool call")

    def _text_and_calls(self) -> tuple[str, list[ToolCallText]]:
        items = (self._response or {}).get("output") or []
        text = "".join(_text_of(item) for item in items if item.get("type") == "message")
        calls = [(item, item.get("arguments") or item.get("input") or "") for item in items if item.get("type") in _AGENTS_CALLS]
        return text, [(str(item.get("call_id") or ""), item["name"], str(given)) for item, given in calls]

    def _answer(self) -> Json:
        return self._response or {}


def _text_of(message: Json) -> str:
    parts = message.get("content")
    return "".join(str(part.get("text") or "") for part in parts or () if isinstance(part, dict)) if isinstance(parts, list) else ""


def _has_output(item: Json) -> bool:
    """Returns whether an item of the answer counts as output. Empty messages and empty reasoning do not, all other items do."""
    if item.get("type") == "message":
        parts = expect(list, item.get("content") or [])
        return any(part.get("text") or part.get("refusal") for part in parts if isinstance(part, dict))
    if item.get("type") == "reasoning":
        return any(item.get(name) for name in ("summary", "content", "encrypted_content"))
    return True


def _chat_message(item: Json) -> Json:
    """Converts an item of a request or an answer. Items that Chat Completions does not have become JSON text of the model."""
    match item.get("type", "message"):
        case "message":
            return {"role": item.get("role"), "content": chat_form.content(item.get("content"), chat_form.joint(item.get("role")))}
        case "reasoning":
            parts = [*chat_form.objects(item.get("summary")), *chat_form.objects(item.get("content"))]
            return chat_form.thought("assistant", str(chat_form.content(parts)))
        case "function_call":
            return chat_form.calling("assistant", item.get("call_id"), item.get("name"), item.get("arguments"))
        case "custom_tool_call":
            return chat_form.calling("assistant", item.get("call_id"), item.get("name"), item.get("input"))
        case "function_call_output" | "custom_tool_call_output":
            return chat_form.result(item.get("call_id"), item.get("output"))
        case _:
            return {"role": "assistant", "content": json.dumps(item, ensure_ascii=False)}
