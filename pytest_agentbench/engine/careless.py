"""The policy `careless`: `lexical`, but with wrong tools at a given rate. It makes regressions of a known size, to try gates with."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import orjson

from pytest_agentbench.engine.chat import PolicyReply, ReplyCall
from pytest_agentbench.engine.lexical.policy import Lexical


class Careless:
    """The policy `careless`: answers as `lexical` does, but a share of the tool calls (`error_rate`) names a wrong tool.

    The mistakes depend on the seed, the request and how often that request came before. So trials differ, and runs can be repeated.
    """

    def __init__(self, error_rate: float, seed: int) -> None:
        self._error_rate, self._seed = error_rate, seed
        self._policy = Lexical()
        self._counts: Counter[bytes] = Counter()

    def reply(self, request: Mapping[str, Any]) -> PolicyReply:
        reply = self._policy.reply(request)
        digest = sha256(orjson.dumps(request["messages"])).digest()
        self._counts[digest] += 1
        chance = random.Random(f"{self._seed} {self._counts[digest]} {digest.hex()}")
        names = [tool["function"]["name"] for tool in request.get("tools") or ()]
        return replace(reply, tool_calls=tuple(self._maybe_replaced(call, names, chance) for call in reply.tool_calls))

    def _maybe_replaced(self, call: ReplyCall, names: list[str], chance: random.Random) -> ReplyCall:
        others = [name for name in names if name != call.name]
        return call._replace(name=chance.choice(others)) if others and chance.random() < self._error_rate else call
