"""Compressed blocks of report.html: whole rollouts, and the values that they refer to by number, each distinct value once."""

from __future__ import annotations

import base64
import gzip
import json
from bisect import bisect_right
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import orjson

from pytest_agentbench.lib.json_text import whole_characters
from pytest_agentbench.records import Json

LEVEL = 6  # level of gzip; the next one takes 50 % longer and saves 1 % of the size


class ValueTable:
    """Numbers distinct JSON values, and divides them into blocks: a block has the values that no earlier block has.

    `close` ends a block, and `drop` removes the values of the open one. Each value is written once on a page, however many requests
    contain it.
    """

    def __init__(self) -> None:
        self._numbers: dict[str | bytes, int] = {}  # hash of the JSON text, or an id in messages.jsonl -> number
        self._new: list[str] = []  # JSON texts of the open block
        self._keys: list[str | bytes] = []  # keys that were added since the open block began
        self._starts = [0]  # number of the first value of each block, the open one last
        self._used: set[int] = set()  # earlier blocks that contain a value which was requested since the last call of `used`

    def number(self, value: Any, id: str = "") -> int:
        """Returns the number of a value. `id` is its id in messages.jsonl, if it has one."""
        text = encoded(value)
        number = self._numbers.get(key := sha256(text.encode()).digest())
        if number is None:
            number = self._starts[-1] + len(self._new)
            self._new.append(text)
            self._add(key, number)
        if id:
            self._add(id, number)
        return self._seen(number)

    def known(self, id: str) -> int | None:
        """Returns the number of the value with this id, or None if it has none yet."""
        number = self._numbers.get(id)
        return None if number is None else self._seen(number)

    def used(self) -> list[int]:
        """Returns the numbers of earlier blocks with values that were requested since the last call."""
        used, self._used = sorted(self._used), set()
        return used

    @property
    def open_size(self) -> int:
        """Characters of the values in the open block."""
        return sum(map(len, self._new))

    def texts(self) -> list[str]:
        """Returns the JSON texts of the values in the open block."""
        return self._new

    def close(self) -> None:
        """Ends the open block and begins another one."""
        self._starts.append(self._starts[-1] + len(self._new))
        self._new, self._keys = [], []

    def drop(self) -> None:
        """Removes the values of the open block."""
        for key in self._keys:
            del self._numbers[key]
        self._new, self._keys = [], []

    @property
    def starts(self) -> list[int]:
        """The number of the first value of each closed block."""
        return self._starts[:-1]

    def _add(self, key: str | bytes, number: int) -> None:
        if key not in self._numbers:
            self._numbers[key] = number
            self._keys.append(key)

    def _seen(self, number: int) -> int:
        if number < self._starts[-1]:
            self._used.add(bisect_right(self._starts, number) - 1)
        return number


def block_text(rollouts: Sequence[Json], values: Sequence[str]) -> str:
    """Returns the JSON of a block. `values` are JSON texts."""
    return f'{{"rollouts":{encoded(rollouts)},"values":[{",".join(values)}]}}'


def packed(text: str) -> str:
    """Compresses a text, and returns it as base64. Equal texts give equal results."""
    return base64.b64encode(gzip.compress(text.encode(), LEVEL, mtime=0)).decode()


def encoded(value: Any) -> str:
    """Encodes a value as JSON in valid UTF-8. Objects of user code are converted to strings."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # objects in settings of an agent, lone surrogates, or integers longer than 64 bits
        return whole_characters(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))
