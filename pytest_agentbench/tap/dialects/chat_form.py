"""The form of Chat Completions: parts of messages, to which each dialect converts its requests and answers for people and judges.

Texts, reasoning, tool calls and their results are converted. Other content, such as an image, stays as it is. Answers with choices,
metadata and usage are common to Chat Completions and the older Completions.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects.pieces import renewed
from pytest_agentbench.tap.dialects.reader import (
    DialectReader,
    Fault,
    ToolCallText,
    count,
    expect,
    id_of,
    model_of,
    server_report,
    stream_body,
    usage_body,
    without_running_usage,
)


def objects(values: Any) -> list[Json]:
    """Returns the objects in a list, or an empty list if `values` is not a list."""
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


def joint(role: Any) -> str:
    """Returns the separator with which several texts of a message are joined: none if the model wrote them, else a line break."""
    return "" if role == "assistant" else "\n"


def content(value: Any, between: str = "\n") -> Any:
    """Returns the content of a message: one text for a text or a list of texts, otherwise a list of parts."""
    if isinstance(value, str):
        return value
    parts = [{"type": "text", "text": each["text"]} if isinstance(each.get("text"), str) else each for each in objects(value)]
    if all(part.get("type") == "text" for part in parts):
        return between.join(part["text"] for part in parts)
    return parts


def instructions(value: Any) -> list[Json]:
    """Returns a list with a system message for instructions that a request has in a separate field. Empty without instructions."""
    return [{"role": "system", "content": content(value)}] if value else []


def thought(role: Any, text: str) -> Json:
    """Returns a Chat Completions message that contains only reasoning."""
    return {"role": role, "content": "", "reasoning_content": text}


def calling(role: Any, id: Any, name: Any, arguments: Any) -> Json:
    """Returns a Chat Completions message that contains only a tool call. `arguments` is an object, or its JSON text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"role": role, "content": "", "tool_calls": [{"id": id, "type": "function", "function": {"name": name, "arguments": text}}]}


def result(id: Any, value: Any) -> Json:
    """Returns the message with the result of the tool call `id`."""
    return {"role": "tool", "tool_call_id": id, "content": content(value)}


def merged(messages: Iterable[Json], *roles: str, between: str = "\n") -> list[Json]:
    """Joins adjacent messages of the same role, if the role is one of `roles`. Returns all messages.

    `between` separates the texts of a joined message.
    """
    turns: list[Json] = []
    for message in messages:
        if turns and message["role"] in roles and message["role"] == turns[-1]["role"]:
            turns[-1] = _both(turns[-1], message, between)
        else:
            turns.append(message)
    return turns


def _both(one: Json, other: Json, between: str) -> Json:
    message = {**one, **other, "content": _both_contents(one["content"], other["content"], between)}
    if "reasoning_content" in one and "reasoning_content" in other:
        message["reasoning_content"] = f"{one['reasoning_content']}\n{other['reasoning_content']}"
    if "tool_calls" in one and "tool_calls" in other:
        message["tool_calls"] = [*one["tool_calls"], *other["tool_calls"]]
    return message


def _both_contents(one: Any, other: Any, between: str) -> Any:
    if isinstance(one, str) and isinstance(other, str):
        return between.join(filter(None, (one, other)))
    return [*_parts(one), *_parts(other)]


def _parts(value: Any) -> list[Json]:
    return value if isinstance(value, list) else [{"type": "text", "text": value}] if value else []


#: Kinds of chunks. If the choices of a chunk differ in kind, the first in this list counts.
_RANKS = ("tool_call", "content", "reasoning", "finish", "role", "other")

#: Finish reasons of answers that may be empty: the model had finished, or its answer was truncated.
_MAY_BE_EMPTY = frozenset({"stop", "length", "content_filter"})

#: Fields of requests that cannot be streamed: audio formats differ, vLLM refuses prompt_logprobs and beam search, and the best of several
#: answers is only known at the end.
_NOT_STREAMED = ("audio", "prompt_logprobs", "use_beam_search", "best_of")

_APART = frozenset({"choices", "usage", "object", "error"})  # fields of an answer that are not metadata


class Choice(ABC):
    """One choice of an answer, which arrives in pieces."""

    _OWN: ClassVar[frozenset[str]]  # fields that `_merge_content` handles, and fields that are dropped

    def __init__(self, index: int) -> None:
        self.index = index
        self.finish_reason: Any = None
        self._more: Json = {}

    def merge(self, data: Json) -> str:
        """Adds the next piece. Returns the kind of chunk that it is, for example `content` or `tool_call`."""
        for name, value in data.items():
            if name == "finish_reason":
                self.finish_reason = value or self.finish_reason
            elif name not in self._OWN and (value is not None or name not in self._more):
                self._more[name] = renewed(self._more.get(name), value)
        kind = self._merge_content(data)
        return "finish" if kind in ("role", "other") and data.get("finish_reason") else kind

    def settled(self) -> Json:
        """Returns the choice as in an answer without streaming."""
        return {"index": self.index, **self._content(), **self._more, "finish_reason": self.finish_reason}

    def text_and_calls(self) -> tuple[str, list[ToolCallText]]:
        """Returns the text and the tool calls of the choice."""
        return str(self._content().get("text") or ""), []

    @property
    @abstractmethod
    def has_output(self) -> bool:
        """Whether the choice has any output. Raises Fault for an invalid tool call."""

    @abstractmethod
    def _merge_content(self, data: Json) -> str:
        """Adds the content of a piece. Returns the kind of chunk that it is, for example `content` or `tool_call`."""

    @abstractmethod
    def _content(self) -> Json:
        """Returns the content of the choice as JSON: an object with only the field `message` (Chat Completions) or `text` (Completions)."""


class ChoicesReader(DialectReader):
    """Reads an answer with choices."""

    _OBJECT: ClassVar[str]  # value of `object` in an answer without streaming
    _CHOICE: ClassVar[type[Choice]]

    def __init__(self) -> None:
        super().__init__()
        self._head: Json = {}  # id, model, created, ...
        self._choices: dict[int, Choice] = {}
        self._listed = False  # whether the answer has a field `choices`

    @staticmethod
    def as_stream(request: Json) -> bytes | None:
        """Returns a body that requests the same answer as a stream, with the usage, which an answer without streaming always has."""
        options = without_running_usage(request).get("stream_options")
        if not isinstance(options, dict | None):  # Invalid: leave it to the backend to reject.
            return None
        return stream_body(request, _NOT_STREAMED, stream_options={**(options or {}), "include_usage": True})

    @staticmethod
    def with_usage(request: Json) -> bytes | None:
        """Returns a body that also requests the usage, or None if the request already does. Streams report it only on request."""
        return usage_body(request)

    @property
    def finish_reason(self) -> str | None:
        return next((str(choice.finish_reason) for choice in self._choices.values() if choice.finish_reason), None)

    @property
    def prompt_tokens(self) -> int | None:
        return count(self.usage, "prompt_tokens")

    @property
    def cached_tokens(self) -> int | None:
        return count(self.usage, "prompt_tokens_details", "cached_tokens")

    @property
    def response_id(self) -> str | None:
        return id_of(self._head)

    @property
    def server(self) -> Json | None:
        return server_report(self._head)

    @property
    def model(self) -> str:
        return model_of(self._head)

    @property
    def _counted_tokens(self) -> int | None:
        return count(self.usage, "completion_tokens")

    def _merge(self, data: Json) -> tuple[str, int | None]:
        for name, value in data.items():
            if name not in _APART and (value or name not in self._head):
                self._head[name] = renewed(self._head.get(name), value) if isinstance(value, dict) else value
        tokens = None
        if isinstance(data.get("usage"), dict):
            self.usage = data["usage"]
            tokens = self._counted_tokens
        self._listed |= "choices" in data
        kinds = [self._merge_choice(expect(dict, choice)) for choice in expect(list, data.get("choices") or [])]
        if not kinds:
            return "usage" if data.get("usage") else "other", tokens
        return kinds[0] if len(kinds) == 1 else min(kinds, key=_RANKS.index), tokens

    def _merge_choice(self, data: Json) -> str:
        index = expect(int, data.get("index", 0))
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = self._CHOICE(index)
        return choice.merge(data)

    def _read_whole(self, data: Json) -> None:
        choices = enumerate(expect(list, data.get("choices") or []))
        self._merge({**data, "choices": [self._as_piece({"index": index, **expect(dict, choice)}) for index, choice in choices]})
        self._listed = "choices" in data

    @staticmethod
    def _as_piece(choice: Json) -> Json:
        """Returns a choice of an answer without streaming in the form of a single streamed piece."""
        return choice

    def _check(self) -> None:
        if not self._choices:
            raise Fault("no_choices" if self._listed else "empty", f"{self._without} a choice")
        if not all(choice.finish_reason for choice in self._choices.values()):
            raise Fault("incomplete", f"{self._without} a finish_reason")
        outputs = [choice.has_output for choice in self._choices.values()]  # Check all of them, because `has_output` finds broken calls.
        if not any(outputs) and self.finish_reason not in _MAY_BE_EMPTY:
            raise Fault("empty", f"{self._without} text and without a tool call")

    def _text_and_calls(self) -> tuple[str, list[ToolCallText]]:
        return self._choices[min(self._choices)].text_and_calls()

    def _answer(self) -> Json:
        choices = [self._choices[index].settled() for index in sorted(self._choices)]
        usage = {"usage": self.usage} if self.usage else {}
        return {**self._head, "object": self._OBJECT, "choices": choices, **usage}
