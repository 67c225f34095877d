"""Tokens, the blocks that they fill, and the KV cache, a model of vLLM's: rough, so that usage and cache hits move as a real engine's
do.

A token is up to six letters with the space before them, up to three digits, one sign, or a run of white space. That comes within
about a fifth of what a real tokenizer makes of English text and JSON, and no text is lost: the tokens joined are the text.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from itertools import takewhile
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


class HeldBlocks(NamedTuple):
    """What a request holds while it runs."""

    cached: int  # tokens of its prompt that were known
    waited: bool  # whether there was no room at first


class BlockCache:
    """A cache of `capacity` blocks with `size` tokens each.

    A full block of a prompt is shared by all requests whose prompts begin alike up to its end; the last part of a prompt and its answer
    are a request's own. A block that nobody holds any more stays known until its place is needed; the least recently used ones go first.
    """

    def __init__(self, capacity: int, size: int) -> None:
        self.capacity, self.size = capacity, size
        self.waiting = 0  # requests that there is no room for yet
        self._held: Counter[int] = Counter()  # full block -> requests that hold it
        self._own = 0  # blocks that are one request's alone
        self._known: OrderedDict[int, None] = OrderedDict()  # that nobody holds, the least recently used one first
        self._queue = asyncio.Lock()  # first come, first served
        self._freed = asyncio.Event()

    @property
    def used(self) -> int:
        """Blocks that running requests hold, each counted once."""
        return len(self._held) + self._own

    def clear(self) -> None:
        """All that nobody holds."""
        self._known.clear()

    def fits(self, tokens: int) -> bool:
        """Whether a request of so many tokens, answer included, can ever run."""
        return self._count(tokens) <= self.capacity

    @asynccontextmanager
    async def reserve(self, prompt: Prompt, answer: int) -> AsyncIterator[HeldBlocks]:
        """Holds what a prompt and so many tokens of an answer need, for as long as the block lasts; waits until it is free."""
        own = self._count(prompt.tokens + answer) - len(prompt.blocks)
        self.waiting += 1
        try:
            async with self._queue:
                waited = not self._is_free(prompt, own)
                while not self._is_free(prompt, own):
                    self._freed.clear()
                    await self._freed.wait()
                cached = self._hold(prompt, own)
        finally:
            self.waiting -= 1
        try:
            yield HeldBlocks(cached, waited)
        finally:
            self._release(prompt, own)

    def _count(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def _is_free(self, prompt: Prompt, own: int) -> bool:
        return self.used + own + sum(block not in self._held for block in prompt.blocks) <= self.capacity

    def _hold(self, prompt: Prompt, own: int) -> int:
        """Tokens of the prompt that were known. As in vLLM its last token is always computed, so a prompt is never known as a whole."""
        hits = sum(1 for _ in takewhile(self._is_known, prompt.blocks[: (prompt.tokens - 1) // self.size]))
        for block in prompt.blocks:
            self._known.pop(block, None)
            self._held[block] += 1
        self._own += own
        while len(self._known) + self.used > self.capacity:
            self._known.popitem(last=False)
        return hits * self.size

    def _is_known(self, block: int) -> bool:
        return block in self._held or block in self._known

    def _release(self, prompt: Prompt, own: int) -> None:
        """A prompt's end is older than its start, or the cache would forget beginnings and keep ends that nothing can reach."""
        self._own -= own
        for block in reversed(prompt.blocks):
            self._held[block] -= 1
            if not self._held[block]:
                del self._held[block]
                self._known[block] = None
        self._freed.set()
