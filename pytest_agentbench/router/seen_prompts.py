"""A guess of how much of a prompt is in the prefix cache of an engine: the beginnings of the prompts that it got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import orjson

PIECE = 64  # bytes of a request that are one block, about 16 tokens
BYTES_PER_TOKEN = 4
DEFAULT_BLOCKS = 65_536  # blocks that are remembered of an engine whose cache has an unknown size
PROMPT_KEYS = ("system", "instructions", "tools", "messages", "prompt", "input")  # fields of a request, in the order of a prompt


def prompt_bytes(body: Mapping[str, Any]) -> bytes:
    """Returns the prompt of a request as text, tools first."""
    return b"".join(orjson.dumps(body[key]) for key in PROMPT_KEYS if body.get(key))


def blocks_of(prompt: bytes) -> list[int]:
    """Returns a number for each whole block of a prompt. It stands for the block and for all before it."""
    blocks, before = [], 0
    for start in range(0, len(prompt) - PIECE + 1, PIECE):
        before = hash((before, prompt[start : start + PIECE]))
        blocks.append(before)
    return blocks


class SeenPrompts:
    """The blocks of the prompts that an engine got. Those that were unused longest are forgotten first."""

    def __init__(self) -> None:
        self.size = DEFAULT_BLOCKS  # most blocks that are remembered
        self._blocks: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def overlap(self, blocks: Sequence[int]) -> float:
        """Returns the share of a prompt's blocks that are remembered, from its beginning."""
        return sum(1 for _ in takewhile(self._blocks.__contains__, blocks)) / len(blocks) if blocks else 0.0

    def add(self, blocks: Sequence[int]) -> None:
        """Remembers a prompt. Its beginning is forgotten last."""
        for block in reversed(blocks):
            self._blocks.pop(block, None)
            self._blocks[block] = None
        while len(self._blocks) > self.size:
            del self._blocks[next(iter(self._blocks))]

    def set_cache(self, blocks: int, block_size: int) -> None:
        """Adapts the size to a cache with this number of blocks, each of `block_size` tokens."""
        self.size = max(1, blocks * block_size * BYTES_PER_TOKEN // PIECE)

    def clear(self) -> None:
        """Forgets all prompts."""
        self._blocks.clear()
