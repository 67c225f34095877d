"""A rough model of vLLM's tokens, blocks and KV cache, so that usage and cache hits change as in a real engine.

A token is up to six letters with the space before them, up to three digits, one punctuation mark, or a run of white space. For English
text and JSON, the number of tokens is within about a fifth of a real tokenizer's. The joined tokens are exactly the text.
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
    """A tokenised prompt: its length, and for each full block of the KV cache a hash of all text up to the end of that block."""

    tokens: int
    blocks: list[int]


def tokenise(text: str) -> list[str]:
    return TOKEN.findall(text)


def read_prompt(request: Mapping[str, Any], size: int) -> Prompt:
    """Returns the prompt that a chat template would make (tools, messages, start of the answer), in cache blocks of `size` tokens."""
    return _read(request, tokenise(_prompt_text(request)), size)


def read_answered(request: Mapping[str, Any], answer: Mapping[str, Any], size: int) -> list[int]:
    """Returns the blocks with which the next request of a conversation begins: those of the prompt and of the message `answer`.

    The last token is left out, because an engine returns it without computing its KV values.
    """
    return _read(request, tokenise(_prompt_text(request) + _content_and_calls(answer))[:-1], size).blocks


def prompt_tokens(request: Mapping[str, Any]) -> list[str]:
    """Returns the tokens of the prompt that a chat template would make, as `read_prompt` counts them."""
    return [*tokenise(orjson.dumps(request.get("tools") or []).decode()), *tokenise(_prompt_text(request))]


class _Beginning(NamedTuple):
    blocks: list[int]
    rest: list[str]  # tokens after the last full block


@lru_cache(maxsize=64)
def _tools_prompt(tools: bytes, size: int) -> _Beginning:
    tokens = tokenise(tools.decode())
    return _Beginning(_chain(tokens, 0, size), tokens[len(tokens) // size * size :])


def _read(request: Mapping[str, Any], message_tokens: list[str], size: int) -> Prompt:
    """Returns the prompt that consists of the request's tools and these tokens."""
    beginning = _tools_prompt(orjson.dumps(request.get("tools") or []), size)
    tokens = [*beginning.rest, *message_tokens]
    more = _chain(tokens, beginning.blocks[-1] if beginning.blocks else 0, size)
    return Prompt(len(beginning.blocks) * size + len(tokens), beginning.blocks + more)


def _prompt_text(request: Mapping[str, Any]) -> str:
    """Returns the messages of a request and the beginning of the answer."""
    return "".join(map(_render, request["messages"])) + "<|assistant|>\n"


def _render(message: Mapping[str, Any]) -> str:
    return f"<|{message['role']}|>\n{_content_and_calls(message)}<|end|>\n"


def _content_and_calls(message: Mapping[str, Any]) -> str:
    calls = "".join(orjson.dumps(call["function"]).decode() for call in message.get("tool_calls") or ())
    return f"{content_text(message)}{calls}"


def _chain(tokens: Sequence[str], previous: int, size: int) -> list[int]:
    blocks = []
    for start in range(0, len(tokens) - size + 1, size):
        previous = hash((previous, *tokens[start : start + size]))
        blocks.append(previous)
    return blocks


class HeldBlocks(NamedTuple):
    """The result of reserving blocks of the KV cache for a request: how much of its prompt was cached, and whether it had to wait."""

    cached: int  # tokens of its prompt that were in the cache
    waited: bool  # whether it had to wait for free blocks


class BlockCache:
    """A cache of `capacity` blocks with `size` tokens each.

    Requests whose prompts are equal up to the end of a full block share that block. The last part of a prompt and the answer are in
    blocks of their own. When no request holds a shared block any more, it stays in the cache until its space is needed; the least
    recently used blocks are removed first. The blocks of an answer stay only if `keep` is called.
    """

    def __init__(self, capacity: int, size: int) -> None:
        self.capacity, self.size = capacity, size
        self.waiting = 0  # number of requests that wait for free blocks
        self._held: Counter[int] = Counter()  # shared block -> requests that hold it
        self._own = 0  # number of blocks that are not shared
        self._known: OrderedDict[int, None] = OrderedDict()  # cached blocks that no request holds, least recently used first
        self._queue = asyncio.Lock()  # makes waiting requests start in the order of their arrival
        self._freed = asyncio.Event()

    @property
    def used(self) -> int:
        """Number of blocks that running requests hold. Shared blocks count once."""
        return len(self._held) + self._own

    def clear(self) -> None:
        """Removes all blocks from the cache that no request holds."""
        self._known.clear()

    def keep(self, blocks: Sequence[int]) -> None:
        """Adds the blocks of a finished request and its answer to the cache, until their space is needed."""
        for block in reversed(blocks):
            if block not in self._held:
                self._known.pop(block, None)
                self._known[block] = None
        self._evict()

    def fits(self, tokens: int) -> bool:
        """Returns whether a request with this number of tokens, including the answer, can ever run."""
        return self._count(tokens) <= self.capacity

    @asynccontextmanager
    async def reserve(self, prompt: Prompt, answer: int) -> AsyncIterator[HeldBlocks]:
        """Waits until the blocks for a prompt and `answer` tokens are free, and holds them until the context manager exits."""
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
        """Reserves the cache blocks of a prompt and `own` unshared ones. Returns the number of prompt tokens that were cached.

        As in vLLM the last token is always computed, so a prompt is never cached completely.
        """
        hits = sum(1 for _ in takewhile(self._is_known, prompt.blocks[: (prompt.tokens - 1) // self.size]))
        for block in prompt.blocks:
            self._known.pop(block, None)
            self._held[block] += 1
        self._own += own
        self._evict()
        return hits * self.size

    def _evict(self) -> None:
        """Removes the least recently used blocks that no request holds, until the others fit."""
        while len(self._known) + self.used > self.capacity:
            self._known.popitem(last=False)

    def _is_known(self, block: int) -> bool:
        return block in self._held or block in self._known

    def _release(self, prompt: Prompt, own: int) -> None:
        """Releases the cache blocks of a finished request. They stay in the cache until their space is needed.

        The blocks at the end of the prompt are released first, so that they are also removed from the cache first: a block is useless
        if the blocks before it are missing.
        """
        self._own -= own
        for block in reversed(prompt.blocks):
            self._held[block] -= 1
            if not self._held[block]:
                del self._held[block]
                self._known[block] = None
        self._freed.set()
