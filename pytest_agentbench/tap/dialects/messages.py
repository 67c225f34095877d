"""Anthropic's Messages: https://docs.anthropic.com/en/docs/build-with-claude/streaming"""

from __future__ import annotations

from typing import Any

from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects import chat_form
from pytest_agentbench.tap.dialects.pieces import Fields, TextPieces, grown, settled
from pytest_agentbench.tap.dialects.reader import DialectReader, Fault, ToolCallText, count, expect, id_of, in_front, model_of, stream_body

#: Stop reasons of answers that may be empty: the model had finished, or its answer was truncated.
_MAY_BE_EMPTY = frozenset({"end_turn", "stop_sequence", "max_tokens", "model_context_window_exceeded", "refusal"})

_BAD_CALL = "bad_tool_call"

#: Types of deltas that are output, with the field of the text and the kind of chunk.
_OUTPUT = {"text_delta": ("text", "content"), "thinking_delta": ("thinking", "reasoning")}


class ContentBlock:
    """One content block of an answer, which arrives in pieces."""

    def __init__(self, start: Json) -> None:
        self._is_call = str(start.get("type")).endswith("tool_use")  # tool_use, server_tool_use, mcp_tool_use
        self._fields: Fields = grown(Fields(), start)
        self._input = TextPieces()  # input of a tool call, JSON text
        if self._is_call and not (isinstance(start.get("name"), str) and start["name"]):
            raise Fault(_BAD_CALL, f"a tool call has no valid name: {start.get('name')!r:.100}")

    @property
    def is_agents_call(self) -> bool:
        """Whether the block is a tool call for the agent. The server carries out the other kinds itself."""
        return bool(settled(self._fields.get("type")) == "tool_use")

    @property
    def opening_kind(self) -> str:
        """The kind of chunk of the block's first event: `tool_call`, or `content` or `reasoning` if it contains text, else `other`."""
        if self._is_call:
            return "tool_call"
        return next((kind for field, kind in _OUTPUT.values() if settled(self._fields.get(field))), "other")

    def merge(self, delta: Json) -> str:
        """Adds a piece. Returns the kind of chunk that it is, for example `content` or `tool_call`."""
        event = str(delta.get("type"))
        if event == "input_json_delta":
            return self._merge_input(delta.get("partial_json"))
        if event == "citations_delta":
            self._fields["citations"] = grown(self._fields.get("citations"), [delta.get("citation")])
            return "other"
        for name, value in delta.items():
            if name != "type":
                self._fields[name] = grown(self._fields.get(name), value)
        if event not in _OUTPUT:
            return "other"
        field, kind = _OUTPUT[event]
        return kind if expect(str, delta.get(field) or "") else "other"

    def settled(self) -> Json:
        """Returns the complete block as JSON. If the input of a tool call is not a complete JSON object, its first event's input stays."""
        block: Json = settled(self._fields)
        value = self._object()
        return block if value is None else {**block, "input": value}

    def tool_call(self) -> ToolCallText:
        """Returns the id, name and input of a tool call. Input that is not a JSON object is returned as the model wrote it."""
        block = self.settled()
        written = "".join(self._input) if self._object() is None else ""
        return str(block.get("id") or ""), block["name"], written or json_text.dumps(block.get("input") or {}).decode()

    def _object(self) -> Json | None:
        """Returns the input that arrived in pieces, or None if it is not a JSON object."""
        return json_text.json_object("".join(self._input).encode(errors="surrogatepass")) if self._input else None

    def _merge_input(self, text: Any) -> str:
        if not isinstance(text, str | None):
            raise Fault(_BAD_CALL, f"the input of a tool call is not a text: {text!r:.100}")
        if text:
            if not self._is_call:
                raise Fault(_BAD_CALL, f"input of a tool call arrived outside of a tool call: {beginning(text, 100)}")
            self._input.append(text)
        return "tool_call" if text else "other"


class MessagesReader(DialectReader):
    """Reads an answer of Messages."""

    name = "messages"

    def __init__(self) -> None:
        super().__init__()
        self._message: Json = {"type": "message", "role": "assistant"}  # the answer without its content
        self._blocks: dict[int, ContentBlock] = {}  # by index

    @staticmethod
    def as_stream(request: Json) -> bytes | None:
        """Returns a body that requests the same answer as a stream, or None if it already streams or cannot be streamed."""
        return stream_body(request, ())

    @staticmethod
    def with_usage(request: Json) -> bytes | None:
        """Returns None, because every stream reports its usage."""
        del request
        return None

    @staticmethod
    def salted(request: Json, salt: str) -> Json:
        """Puts the salt (a text that prevents cache hits) before `system`."""
        return {**request, "system": in_front(salt, request.get("system"))}

    @staticmethod
    def chat_request(request: Json) -> list[Json]:
        messages = [part for message in chat_form.objects(request.get("messages")) for part in _chat_messages(message)]
        return [*chat_form.instructions(request.get("system")), *messages]

    @staticmethod
    def chat_reply(reply: Json) -> list[Json]:
        return _chat_messages(reply) if reply.get("role") == "assistant" else []

    @property
    def finish_reason(self) -> str | None:
        reason = self._message.get("stop_reason")
        return None if reason is None else str(reason)

    @property
    def response_id(self) -> str | None:
        return id_of(self._message)

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the whole prompt: those after the cached ones (`input_tokens`), and those read from or written to the cache."""
        plain = count(self.usage, "input_tokens")
        cached = [count(self.usage, name) or 0 for name in ("cache_read_input_tokens", "cache_creation_input_tokens")]
        return None if plain is None else plain + sum(cached)

    @property
    def cached_tokens(self) -> int | None:
        return count(self.usage, "cache_read_input_tokens")

    @property
    def model(self) -> str:
        return model_of(self._message)

    @property
    def _counted_tokens(self) -> int | None:
        return count(self.usage, "output_tokens") if self.finish_reason else None  # Earlier counts are those of the first token.

    def _merge(self, data: Json) -> tuple[str, int | None]:
        match data.get("type"):
            case "content_block_delta":
                return self._merge_delta(data), None
            case "content_block_start":
                block = self._blocks[expect(int, data.get("index"))] = ContentBlock(expect(dict, data.get("content_block")))
                return block.opening_kind, None
            case "message_start":
                self._take(expect(dict, data.get("message")))
                return "role", None
            case "message_delta":
                delta = expect(dict, data.get("delta") or {})
                beside = {name: value for name, value in data.items() if name not in ("type", "delta")}
                self._take({**beside, **delta})
                return "finish" if delta.get("stop_reason") else "other", None
            case "message_stop":
                self.done = self._over = True
        return "other", None

    def _merge_delta(self, data: Json) -> str:
        delta, index = expect(dict, data.get("delta")), data.get("index")
        block = self._blocks.get(index) if isinstance(index, int) else None
        if block is None:
            kind = _BAD_CALL if delta.get("type") == "input_json_delta" else "bad_json"
            raise Fault(kind, f"a piece of a block arrived before the block was opened: {index!r:.100}")
        return block.merge(delta)

    def _take(self, message: Json) -> None:
        """Merges the fields, except the content, of a `message_start`, a `message_delta` or an answer without streaming.

        Token counts are totals, so later ones replace earlier ones.
        """
        for name, value in message.items():
            if name == "usage":
                counts = expect(dict, value or {}).items()
                self.usage |= {each: number for each, number in counts if number is not None or each not in self.usage}
            elif name != "content" and (value is not None or name not in self._message):
                self._message[name] = value

    def _read_whole(self, data: Json) -> None:
        self._take(data)
        self._blocks = {index: ContentBlock(expect(dict, block)) for index, block in enumerate(expect(list, data.get("content") or []))}

    def _check(self) -> None:
        if not self.finish_reason:
            raise Fault("incomplete", f"{self._without} a stop_reason")
        if not any(map(_has_output, self._content())) and self.finish_reason not in _MAY_BE_EMPTY:
            raise Fault("empty", f"{self._without} text and without a tool call")

    def _answer(self) -> Json:
        return {**self._message, "content": self._content(), "usage": self.usage}

    def _text_and_calls(self) -> tuple[str, list[ToolCallText]]:
        content = self._content()
        text = "".join(str(block.get("text") or "") for block in content if block.get("type") == "text")
        return text, [self._blocks[index].tool_call() for index in sorted(self._blocks) if self._blocks[index].is_agents_call]

    def _content(self) -> list[Json]:
        return [self._blocks[index].settled() for index in sorted(self._blocks)]


def _chat_messages(message: Json) -> list[Json]:
    """Converts a message to the form of Chat Completions, where each result of a tool is a message of its own."""
    role, blocks = message.get("role"), message.get("content")
    if isinstance(blocks, str):
        return [{"role": role, "content": blocks}]
    messages = (_chat_message(role, block) for block in chat_form.objects(blocks))
    return chat_form.merged(messages, "assistant", "user", between=chat_form.joint(role))


def _chat_message(role: Any, block: Json) -> Json:
    match block.get("type"):
        case "tool_use":
            return chat_form.calling(role, block.get("id"), block.get("name"), block.get("input"))
        case "tool_result":
            return chat_form.result(block.get("tool_use_id"), block.get("content"))
        case "thinking":
            return chat_form.thought(role, str(block.get("thinking")))
        case _:
            return {"role": role, "content": chat_form.content([block])}


def _has_output(block: Json) -> bool:
    """Returns whether a content block counts as output.

    Empty text does not, nor does thinking with neither text nor signature. All other blocks do.
    """
    match block.get("type"):
        case "text":
            return bool(block.get("text"))
        case "thinking":
            return bool(block.get("thinking") or block.get("signature"))
    return True
