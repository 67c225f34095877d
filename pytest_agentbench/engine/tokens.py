"""Tokens and the blocks that they fill: a rough model of both, so that usage and cache hits move as a real engine's do.

A token is up to six letters with the space before them, up to three digits, one sign, or a run of white space. That comes
within about a fifth of what a real tokenizer makes of English text and JSON, and no text is lost: the tokens joined are the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from pytest_agentbench.engine.chat import content_text

TOKEN = re.compile(r" ?[^\W\d_]{1,6}|\d{1,3}| ?[^\w\s]|_|\s+")


class Prompt(NamedTuple):
    """A tokenised prompt: its length, and one hash per full block that stands for all text up to that block's end."""

    tokens: int
    blocks: list[int]


def tokenise(text: str) -> list[str]:
    return TOKEN.findall(text)


def read_prompt(request: Mapping[str, Any], size: int) -> Prompt:
    """The prompt a chat template would make, in blocks of `size` tokens: the tools, then the messages, then the opening of the answer."""
    beginning = _tools_prompt(orjson.dumps(request.get("tools") or []), size)
    text = "".join(map(_render, request["messages"])) + "<|assistant|>\n"
    tokens = [*beginning.rest, *tokenise(text)]
    more = _chain(tokens, beginning.blocks[-1] if beginning.blocks else 0, size)
    return Prompt(len(beginning.blocks) * size + len(tokens), beginning.blocks + more)


class _Beginning(NamedTuple):
    blocks: list[int]
    rest: list[str]  # tokens behind the last full block


@lru_cache(maxsize=64)
def _tools_prompt(tools: bytes, size: int) -> _Beginning:
    tokens = tokenise(tools.decode())
    return _Beginning(_chain(tokens, 0, size), tokens[len(tokens) // size * size :])


def _render(message: Mapping[str, Any]) -> str:
    calls = "".join(orjson.dumps(call["function"]).decode() for call in message.get("tool_calls") or ())
    return f"<|{message['role']}|>\n{content_text(message)}{calls}<|end|>\n"


def _chain(tokens: Sequence[str], previous: int, size: int) -> list[int]:
    blocks = []
    for start in range(0, len(tokens) - size + 1, size):
        previous = hash((previous, *tokens[start : start + size]))
        blocks.append(previous)
    return blocks
