"""The time in which an engine computes prompts, so that hits in the prefix cache save time."""

from __future__ import annotations

import asyncio


class Prefill:
    """Computes prompts one after the other, in the order of their arrival, and takes time for the tokens that are not cached.

    For n thousand such tokens it takes `linear * n + square * n * n` milliseconds. This is the cost model of vllm-router's program
    scheduling (`prefill_cost_model` on the page `program_scheduling` of github.com/vllm-project/router). Its constant part is `ttft_ms`
    here. Three things are left out: new tokens also attend to the cached ones, an engine can compute several prompts in one step, and
    prefill and decoding slow each other down.
    """

    def __init__(self, linear: float, square: float) -> None:
        """Takes the milliseconds for a thousand tokens, and for the square of a thousand tokens."""
        self._linear, self._square = linear, square
        self._free = asyncio.Lock()
        self.waiting = 0  # number of prompts that wait because another one is computed

    def seconds(self, tokens: int) -> float:
        """Returns the time for this number of tokens."""
        thousands = tokens / 1000
        return (self._linear * thousands + self._square * thousands**2) / 1000

    async def compute(self, tokens: int) -> bool:
        """Waits for earlier prompts, and then for the time of this one. Returns False if prompts take no time, and so did not wait."""
        if not self._linear and not self._square:
            return False
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        try:
            await asyncio.sleep(self.seconds(tokens))
        finally:
            self._free.release()
        return True
