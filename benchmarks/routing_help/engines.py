"""The conditions of the comparison, and the built-in engines that stand behind all routers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import aiohttp
import orjson

from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening

MODEL = "tiny"
ENGINES = 5  # the last one is a reserve, which joins in one of the conditions
FIRST = range(4)  # engines of a router at the beginning of a block
FOURTH, RESERVE = 3, 4  # engine that is slow or leaves, and engine that joins
SLOWER = 4  # factor of all times of the slow engine
ANSWER = 16  # tokens

#: Settings of an engine. While an answer is computed, the engine sleeps.
SPEED = {"ttft_ms": 20.0, "itl_ms": 6.0, "prefill_ms_per_1k": 60.0}  # milliseconds
CACHE = {"kv_blocks": 800, "block_size": 16, "cache_answers": True}  # 12,800 tokens, which six of these sessions fill
AT_ONCE = 4  # requests that an engine answers at the same time

COUNTED = re.compile(r"^vllm:prefix_cache_(queries|hits)_total(?:\{[^}]*\})? (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Condition:
    """What distinguishes a part of the comparison from the others."""

    name: str
    title: str
    slow: Mapping[int, int]  # engine -> factor of its times
    is_changing: bool = False  # whether an engine leaves and another one joins in each block


CONDITIONS: Sequence[Condition] = (
    Condition("alike", "Engines alike", {}),
    Condition("slow", f"One of four engines is {SLOWER} times slower", {FOURTH: SLOWER}),
    Condition("changing", "One engine leaves and another one joins in each block", {}, is_changing=True),
)


class Counts(NamedTuple):
    """Prompt tokens of an engine since it started."""

    asked: float
    cached: float


@contextmanager
def engines(condition: Condition, folder: Path) -> Iterator[list[str]]:
    """Yields the URLs of the engines of a condition. They end with the block."""
    script = folder / "answers.yaml"
    script.write_bytes(orjson.dumps([{"text": " ".join(["word"] * ANSWER)}]))
    with ExitStack() as stack:
        children = []
        for number in range(ENGINES):
            factor = condition.slow.get(number, 1)
            settings = {name: value * factor for name, value in SPEED.items()}
            config = {**settings, **CACHE, "policy": "script", "script": str(script), "model": MODEL, "max_concurrency": AT_ONCE}
            child = Child("pytest_agentbench.engine", config, folder / f"engine-{number}.log")
            stack.callback(child.stop)
            children.append(child)
        yield [f"http://127.0.0.1:{child.ready(Listening).port}" for child in children]


async def reset(http: aiohttp.ClientSession, urls: Sequence[str]) -> None:
    """Empties the prefix cache of each engine."""
    for url in urls:
        async with http.post(f"{url}/reset_prefix_cache") as answer:
            answer.raise_for_status()


async def counts(http: aiohttp.ClientSession, urls: Sequence[str]) -> list[Counts]:
    """Returns the counts of each engine."""
    found = []
    for url in urls:
        async with http.get(f"{url}/metrics") as answer:
            values = {name: float(value) for name, value in COUNTED.findall(await answer.text())}
        found.append(Counts(values.get("queries", 0.0), values.get("hits", 0.0)))
    return found
