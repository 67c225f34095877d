"""Keeps the requests and replies of LLM calls for messages.jsonl. Equal messages of a rollout are stored once."""

from __future__ import annotations

from typing import Any

from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.kept_values import (
    ALL,
    FORM,
    LARGEST_VALUE,
    MESSAGE,
    OMITTED,
    PART,
    REPLY,
    NodeLine,
    ValueLine,
    node_id,
    style_of,
    value_id,
)
from pytest_agentbench.records import Json, KeptCall
from pytest_agentbench.tap.http_messages import Request

#: Keys of a request that grow with each turn, in all APIs: a list of messages, or the text of a prompt.
GROWING = ("messages", "input", "prompt")

#: Headers that are kept. All others are not needed to send a request again, and may contain secrets.
HEADERS = frozenset((b"accept", b"content-type", b"anthropic-version", b"anthropic-beta", b"openai-beta"))

SMALL = 120  # bytes of JSON up to which a value stays in the form of its request
MOST_KEPT = 256_000_000  # bytes that a tap keeps for all open addresses


class KeptBytes:
    """The number of bytes (`now`) that all ConversationKeepers of a tap hold together, and its limit (`most`)."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self.now, self.most = 0, most


class ConversationKeeper:
    """Keeps the requests and replies of the LLM calls of one rollout (or of one role in it) until the tap closes its address.

    Messages are compared with those of the call before, so only new ones are serialised and hashed. When the tap has reached its memory
    limit (`KeptBytes`), further calls are not kept, and `KeptCall.missing` gives the reason.
    """

    def __init__(self, kept: KeptBytes, level: str = ALL) -> None:
        self.lines: list[bytes] = []  # lines for messages.jsonl, each after those that it refers to
        self._kept, self._with_parts = kept, level == ALL
        self._size = 0  # bytes of `lines`
        self._ids: set[str] = set()
        self._messages: list[Any] = []  # messages of the call before
        self._nodes: list[str] = []  # their nodes
        self._style = ""  # how the last request was written

    def call(self, request: Request, body: Json | None, reply: bytes) -> KeptCall:
        """Keeps the request and reply of an LLM call. Returns the ids of the lines for messages.jsonl that contain them.

        `body` is the parsed body of the request. If it is None, the body is parsed here. `reply` is empty without a reply.
        """
        if self._kept.now > self._kept.most:
            return KeptCall(missing="limit")
        form: Json = {"path": request.path, "headers": _kept_headers(request)}
        node = ""
        parsed = json_text.json_object(request.body) if body is None else body
        if parsed is None:
            form["text"] = request.body.decode("latin-1")
        else:
            self._style = style_of(parsed, request.body, self._style)
            node = self._fill(form, parsed)
        return KeptCall(self._value(FORM, form), node, self._text(REPLY, reply) if reply else "")

    def end(self) -> bytes:
        """Returns all lines for messages.jsonl, joined by newlines, and forgets them."""
        self._kept.now -= self._size
        self._size = 0
        lines, self.lines = self.lines, []
        return b"\n".join(lines)

    def _fill(self, form: Json, body: Json) -> str:
        """Adds the body of a request to `form`, the object that is kept for it, with null in place of messages and large values.

        The messages are kept in lines of their own, and with `--agentbench-keep=all` the large values as well. Returns the id of the
        last message's node (a message with all messages before it), or "" without messages.
        """
        kept, parts, node = dict(body), {}, ""
        growing = growing_field(body)
        for name, value in body.items():
            if name == growing and (messages := self._pieces(value)):
                form["joined" if isinstance(value, str) else "listed"] = name
                kept[name], node = None, self.chain(messages)
            elif isinstance(value, list | dict | str) and len(text := _dumps(value)) > SMALL:
                kept[name], parts[name] = None, self._text(PART, text) if self._with_parts else ""
        form |= {"written": self._style, "body": kept, "parts": parts}
        return node

    def _pieces(self, value: Any) -> list[Any]:
        """Returns the list of messages in `value`, the field of a request that contains the conversation.

        A prompt that is a text is split into messages. If it begins with the prompt of the call before, that one's messages come first,
        and the added text is the last message.
        """
        if not isinstance(value, str):
            return value if isinstance(value, list) else []
        before = self._messages if all(isinstance(each, str) for each in self._messages) else []
        start = "".join(before)
        return [*before, *([value[len(start) :]] if value != start else [])] if value.startswith(start) else [value]

    def chain(self, messages: list[Any]) -> str:
        """Keeps messages, at least one, as nodes (a message with all messages before it). Returns the id of the last node."""
        same = 0
        for old, new in zip(self._messages, messages, strict=False):
            if old != new:
                break
            same += 1
        nodes = self._nodes[:same]
        for message in messages[same:]:
            before, id = nodes[-1] if nodes else "", self._value(MESSAGE, message)
            nodes.append(node_id(before, id))
            self._add(NodeLine(nodes[-1], before, id))
        self._messages, self._nodes = messages, nodes
        return nodes[-1]

    def _value(self, kind: str, value: Any) -> str:
        return self._text(kind, _dumps(value))

    def _text(self, kind: str, text: bytes) -> str:
        if len(text) > LARGEST_VALUE:
            text = _dumps({OMITTED: len(text)})
        id = value_id(kind, text)
        self._add(ValueLine(id, text))
        return id

    def _add(self, record: ValueLine | NodeLine) -> None:
        if record.id not in self._ids:
            line = record.written()
            self._ids.add(record.id)
            self.lines.append(line)
            self._size += len(line)
            self._kept.now += len(line)


def growing_field(body: Json) -> str | None:
    """Returns the name of the field of a request that contains the conversation (`messages`, `input` or `prompt`), or None without one."""
    return next((name for name in GROWING if name in body), None)


def _dumps(value: Any) -> bytes:
    try:
        return json_text.dumps(value)
    except ValueError:
        return b'"(a value that is nested too deeply)"'


def _kept_headers(request: Request) -> dict[str, str]:
    return {name.lower().decode(): value.decode("latin-1") for name, value in request.headers if name.lower() in HEADERS}
