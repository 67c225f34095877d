"""Tokens and the prefix cache: a rough model of both, so that usage and cache hits move as a real engine's do.

A token is up to six letters with the space before them, up to three digits, one sign, or a run of white space. That comes
within about a fifth of what a real tokenizer makes of English text and JSON, and no text is lost: the tokens joined are the text.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple

import orjson

from pytest_agentbench.engine.chat import content_text

TOKEN = re.compile(r" ?[^\W\d_]{1,6}|\d{1,3}| ?[^\w\s]|_|\s+")
BLOCK = 16  # tokens per cache block, as in vLLM
CAPACITY = 65_536  # blocks in the cache, about a million tokens


class Prompt(NamedTuple):
    """A tokenised prompt: its length, and one hash per full block that stands for all text up to that block's end."""

    tokens: int
    blocks: list[int]


class PrefixCache:
    """Which blocks of earlier prompts are still known; the least recently used ones go first."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def clear(self) -> None:
        self._blocks.clear()

    def admit(self, prompt: Prompt) -> int:
        """Tokens of `prompt` that were cached; all of its full blocks are from now on.

        As in vLLM the last token of a prompt is always computed, so a prompt is never cached as a whole.
        """
        hits = sum(1 for _ in takewhile(self._blocks.__contains__, prompt.blocks[: (prompt.tokens - 1) // BLOCK]))
        # A prompt's end is older than its start, or the cache would forget beginnings and keep ends that nothing can reach.
        for block in reversed(prompt.blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self.capacity:
            self._blocks.popitem(last=False)
        return hits * BLOCK


def tokenise(text: str) -> list[str]:
    return TOKEN.findall(text)


def read_prompt(request: Mapping[str, Any]) -> Prompt:
    """The prompt a chat template would make: the tools, then the messages, then the opening of the answer."""
    beginning = _tools_prompt(orjson.dumps(request.get("tools") or []))
    text = "".join(map(_render, request["messages"])) + "<|assistant|>\n"
    tokens = [*beginning.rest, *tokenise(text)]
    return Prompt(
        len(beginning.blocks) * BLOCK + len(tokens), beginning.blocks + _chain(tokens, beginning.blocks[-1] if beginning.blocks else 0)
    )


class _Beginning(NamedTuple):
    blocks: list[int]
    rest: list[str]  # tokens behind the last full block


@lru_cache(maxsize=64)
def _tools_prompt(tools: bytes) -> _Beginning:
    tokens = tokenise(tools.decode())
    return _Beginning(_chain(tokens, 0), tokens[len(tokens) // BLOCK * BLOCK :])


def _render(message: Mapping[str, Any]) -> str:
    calls = "".join(orjson.dumps(call["function"]).decode() for call in message.get("tool_calls") or ())
    return f"<|{message['role']}|>\n{content_text(message)}{calls}<|end|>\n"


def _chain(tokens: Sequence[str], previous: int) -> list[int]:
    blocks = []
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        previous = hash((previous, *tokens[start : start + BLOCK]))
        blocks.append(previous)
    return blocks
