"""Names of request fields and numbers of tokens that a model accepts. YAMLs and servers declare them, and refusals correct them."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_agentbench.lib import json_text
from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects.reader import error_message, is_error
from pytest_agentbench.tap.http_messages import REFUSALS

#: Characters per token in an ordinary text. It is an estimate, because the model's own tokenizer is not available.
CHARACTERS = 4

#: Characters per token in dense texts such as formulas, and in plain ones.
FEWEST, MOST = 3, 5

#: Tokens that a chat template may add to a prompt.
TEMPLATE = 256

#: Fields that limit the length of an answer. A server knows one of them or both.
OLD_LIMIT, NEW_LIMIT = "max_tokens", "max_completion_tokens"

#: Fields that are never left out, because the request would have another meaning without them.
NEEDED = frozenset({"model", "messages", "tools", "tool_choice", "response_format"})

# Error messages of OpenAI and Azure about fields, and of OpenAI, Azure, vLLM and SGLang about lengths.
_FIELD = re.compile(
    r"'(\w+)' (?:is not supported|does not support \S+) with this model|unrecognized request argument supplied: (\w+)", re.IGNORECASE
)
_INSTEAD = re.compile(r"use '(\w+)' instead", re.IGNORECASE)
_CONTEXT = re.compile(r"context length (?:is|of)(?: only)? (\d+)", re.IGNORECASE)
_PROMPT = re.compile(r"(?<!\d)(\d{1,12}) (?:in the (?:messages|functions)|input tokens|tokens from the input)", re.IGNORECASE)
_LONGEST = re.compile(r"supports at most (\d+) completion tokens", re.IGNORECASE)


class Correction(NamedTuple):
    """A changed request that the server may accept after it refused the original one."""

    fault: str  # name of the refused field, or `length`
    body: Json


@dataclass
class ModelFacts:
    """Facts about one model. All clients of a session that call this model share one object."""

    request_fields: dict[str, str | None] = field(default_factory=dict)  # field -> accepted name, or None if the field is refused
    context_length: int | None = None  # tokens of prompt and answer together
    longest_answer: int | None = None  # tokens

    def fitted(self, body: Json) -> Json:
        """Returns the request with the accepted field names, and with limits that leave room for the prompt."""
        taken = {name: self.request_fields.get(name, name) for name in body}
        named = {new: body[name] for name, new in taken.items() if new is not None and (new == name or new not in body)}
        bounds = [self.longest_answer, *(self._room(named, limit) for limit in _limits(named).values())]
        return _with_limit(named, min((bound for bound in bounds if bound is not None), default=None))

    def _room(self, body: Json, limit: int) -> int | None:
        """Returns the length of the longest possible answer, in tokens, if the requested length certainly does not fit, else None.

        It also returns None if little room is left. The estimate is too coarse then, and the server's refusal has the exact number.
        """
        characters = _prompt_characters(body)
        if self.context_length is None or characters // MOST + limit <= self.context_length:
            return None
        room = self.context_length - characters // FEWEST - TEMPLATE
        return room if room > self.context_length // 8 else None

    def corrected(self, body: Json, status: int, content: bytes) -> Correction | None:
        """Returns the request that the server's error message suggests, or None if the message does not suggest one.

        It also keeps the new fact about the model.
        """
        if status not in REFUSALS:
            return None
        message = _words(content)
        if (room := self._room_by(message)) is not None:
            return Correction("length", _with_limit(body, room)) if room > 0 else None
        refused = _FIELD.search(message)
        name = next(filter(None, refused.groups())) if refused else ""
        if name not in body or name in NEEDED:
            return None
        instead = _INSTEAD.search(message)
        self.request_fields[name] = instead[1] if instead else OLD_LIMIT if name == NEW_LIMIT else None
        logging.getLogger(__name__).warning("%s does not accept %s: %s", body.get("model"), name, message)
        return Correction(name, self.fitted(body))

    def _room_by(self, message: str) -> int | None:
        """Returns the length of the longest possible answer according to an error message, or None if it is about something else."""
        if (longest := _LONGEST.search(message)) is not None:
            self.longest_answer = int(longest[1])
            return self.longest_answer
        context, prompt = _CONTEXT.search(message), _PROMPT.findall(message)
        if context is None:
            return None
        self.context_length = int(context[1])
        return self.context_length - sum(map(int, prompt)) if prompt else 0


def estimated_tokens(text: str) -> int:
    """Estimates the number of tokens in a text."""
    return -(-len(text) // CHARACTERS)


def _words(content: bytes) -> str:
    answer = json_text.json_object(content)
    return error_message(answer) if is_error(answer) else content.decode(errors="replace")


def _prompt_characters(body: Json) -> int:
    """Counts the characters of a request's texts and tools. Pictures are not counted."""
    tools = body.get("tools")
    texts = [text for message in body["messages"] for text in _texts(message)]
    return sum(map(len, texts)) + (len(json_text.dumps(tools)) if tools else 0)


def _texts(message: Json) -> list[str]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    calls = message.get("tool_calls")
    return [str(part["text"]) for part in parts if isinstance(part, Mapping) and part.get("text")] + ([str(calls)] if calls else [])


def _with_limit(body: Json, most: int | None) -> Json:
    """Returns the request with limits of at most `most` tokens."""
    return body if most is None else {**body, **{name: min(limit, most) for name, limit in _limits(body).items()}}


def _limits(body: Json) -> dict[str, int]:
    """Returns the fields of a request that limit its answer, with their values."""
    return {name: body[name] for name in (OLD_LIMIT, NEW_LIMIT) if isinstance(body.get(name), int)}
