"""What a model takes: under which names request fields, and how many tokens. YAMLs and servers say it, refusals teach the rest."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_agentbench.lib import json_text
from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects.reader import error_message, is_error
from pytest_agentbench.tap.history import REFUSALS

CHARACTERS = 4  # of a token, as a rule of thumb: the model's own tokenizer is not asked
FEWEST, MOST = 3, 5  # of a token in dense texts such as formulas, and in plain ones
AROUND = 256  # tokens that a chat template may add

#: Fields that say how long an answer may be; a server knows one of them or both.
OLD_LIMIT, NEW_LIMIT = "max_tokens", "max_completion_tokens"

#: Fields without which a request is another one.
NEEDED = frozenset({"model", "messages", "tools", "tool_choice", "response_format"})

# What OpenAI and Azure say of fields, and OpenAI, Azure, vLLM and SGLang of lengths.
_FIELD = re.compile(
    r"'(\w+)' (?:is not supported|does not support \S+) with this model|unrecognized request argument supplied: (\w+)", re.IGNORECASE
)
_INSTEAD = re.compile(r"use '(\w+)' instead", re.IGNORECASE)
_CONTEXT = re.compile(r"context length (?:is|of)(?: only)? (\d+)", re.IGNORECASE)
_PROMPT = re.compile(r"(\d+) (?:in the (?:messages|functions)|input tokens|tokens from the input)", re.IGNORECASE)
_LONGEST = re.compile(r"supports at most (\d+) completion tokens", re.IGNORECASE)


class Correction(NamedTuple):
    """A request that a server has refused, as it may take it."""

    lesson: str  # what was wrong, in one word: it does not help to correct that twice
    body: Json


@dataclass
class ModelFacts:
    """One model, as all who call it in a session know it."""

    request_fields: dict[str, str | None] = field(default_factory=dict)  # field -> the name under which it is taken; None: not at all
    context_length: int | None = None  # tokens of prompt and answer together
    longest_answer: int | None = None  # tokens

    def fitted(self, body: Json) -> Json:
        """The request as the model takes it: fields under its names, and no more tokens asked for than it has room for."""
        taken = {name: self.request_fields.get(name, name) for name in body}
        named = {new: body[name] for name, new in taken.items() if new is not None and (new == name or new not in body)}
        bounds = [self.longest_answer, *(self._room(named, limit) for limit in _limits(named).values())]
        return _with_limit(named, min((bound for bound in bounds if bound is not None), default=None))

    def _room(self, body: Json, asked: int) -> int | None:
        """Tokens that an answer may have of which too many are asked for; None where they may fit.

        Where little is left the server has to count: a rule of thumb is too coarse, and the words of a refusal say it exactly.
        """
        characters = _prompt_characters(body)
        if self.context_length is None or characters // MOST + asked <= self.context_length:
            return None
        room = self.context_length - characters // FEWEST - AROUND
        return room if room > self.context_length // 8 else None

    def corrected(self, body: Json, status: int, content: bytes) -> Correction | None:
        """What a refusal of a request teaches, by the server's own words; None where that is nothing that this client can do better."""
        if status not in REFUSALS:
            return None
        said = _words(content)
        if (room := self._room_by(said)) is not None:
            return Correction("length", _with_limit(body, room)) if room > 0 else None
        found = _FIELD.search(said)
        name = next(filter(None, found.groups())) if found else ""
        if name not in body or name in NEEDED:
            return None
        instead = _INSTEAD.search(said)
        self.request_fields[name] = instead[1] if instead else OLD_LIMIT if name == NEW_LIMIT else None
        logging.getLogger(__name__).warning("%s takes no %s: %s", body.get("model"), name, said)
        return Correction(name, self.fitted(body))

    def _room_by(self, said: str) -> int | None:
        """Tokens that a server, which found too many asked for, says that an answer may have; None where it says nothing of it."""
        if (longest := _LONGEST.search(said)) is not None:
            self.longest_answer = int(longest[1])
            return self.longest_answer
        context, prompt = _CONTEXT.search(said), _PROMPT.findall(said)
        if context is None:
            return None
        self.context_length = int(context[1])
        return self.context_length - sum(map(int, prompt)) if prompt else 0


def reckoned_tokens(text: str) -> int:
    """How many tokens a text has, as a rule of thumb."""
    return -(-len(text) // CHARACTERS)


def _words(content: bytes) -> str:
    answer = json_text.json_object(content)
    return error_message(answer) if is_error(answer) else content.decode(errors="replace")


def _prompt_characters(body: Json) -> int:
    """Those of a request's texts and tools; a picture has none."""
    tools = body.get("tools")
    texts = [text for message in body["messages"] for text in _texts(message)]
    return sum(map(len, texts)) + (len(json_text.dumps(tools)) if tools else 0)


def _texts(message: Json) -> list[str]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    calls = message.get("tool_calls")
    return [str(part["text"]) for part in parts if isinstance(part, Mapping) and part.get("text")] + ([str(calls)] if calls else [])


def _with_limit(body: Json, most: int | None) -> Json:
    """The same with no longer an answer asked for."""
    return body if most is None else {**body, **{name: min(limit, most) for name, limit in _limits(body).items()}}


def _limits(body: Json) -> dict[str, int]:
    """The fields of a request that say how long its answer may be."""
    return {name: body[name] for name in (OLD_LIMIT, NEW_LIMIT) if isinstance(body.get(name), int)}
