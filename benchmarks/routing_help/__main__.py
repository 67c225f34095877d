"""Compares the Thompson-sampling router with other routers on synthetic sessions, and writes the page of results.

It needs the environments `dynamo`, `smg` and `vllm-router`, and no GPU. It takes about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measurement import Surroundings
from benchmarks.routing_help.engines import CONDITIONS, Condition, engines
from benchmarks.routing_help.load import Block, delays, make_round, run_block
from benchmarks.routing_help.page import page
from benchmarks.routing_help.results import Blocks
from benchmarks.routing_help.routers import ARMS, Router
from pytest_agentbench.lib import codec

ROUNDS = 8


@dataclass(frozen=True)
class Part:
    """What was measured in one condition."""

    blocks: dict[str, tuple[Block, ...]]  # arm -> its blocks
    circumstances: str
    delays: dict[str, float] = field(default_factory=dict)  # arm -> milliseconds that its router adds to a short call


def order(round_: int) -> list[str]:
    """Returns the arms of a round in their order. Every second round has the reverse order. Two rounds later, another arm begins."""
    arms = [*ARMS]
    first = round_ // 2 % len(arms)
    rotated = arms[first:] + arms[:first]
    return rotated[::-1] if round_ % 2 else rotated


async def measure(condition: Condition, rounds: int, folder: Path) -> Part:
    """Measures all arms in a condition. The first round is not counted."""
    surroundings = Surroundings()
    blocks: dict[str, list[Block]] = {arm: [] for arm in ARMS}
    with engines(condition, folder) as urls, routers(urls, folder) as all_routers:
        for router in all_routers.values():
            await router.start()
        for number in range(rounds + 1):
            plan = make_round(number)
            for arm in order(number):
                block = await run_block(plan, condition, all_routers[arm], urls, f"{condition.name}-{number}-{arm.replace(' ', '-')}")
                if number:
                    blocks[arm].append(block)
            print(f"{condition.name}: round {number} of {rounds}", flush=True)
        added = await delays({arm: router.url for arm, router in all_routers.items()}, urls[0])
    return Part({arm: tuple(each) for arm, each in blocks.items()}, str(surroundings), added)


@contextmanager
def routers(urls: Sequence[str], folder: Path) -> Iterator[dict[str, Router]]:
    """Yields the routers of all arms, which are not started. They end with the block."""
    made: dict[str, Router] = {}
    for arm, (make, _) in ARMS.items():
        own = folder / arm.replace(" ", "-")
        own.mkdir()
        made[arm] = make(urls, own)
    try:
        yield made
    finally:
        for router in made.values():
            router.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing_help", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="pairs of blocks for each comparison")
    names = [condition.name for condition in CONDITIONS]
    parser.add_argument("--conditions", nargs="+", choices=names, default=names, help="conditions to measure (default: all)")
    parser.add_argument("--table", type=Path, help="file of the page of results (default: print it)")
    parser.add_argument("--blocks", type=Path, help="file to which what was measured is written as JSON")
    parser.add_argument("--from-blocks", type=Path, nargs="+", default=[], help="write the page from these files and measure nothing")
    options = parser.parse_args()
    parts: dict[str, Part] = {}
    for file in options.from_blocks:
        parts |= codec.read(dict[str, Part], json.loads(file.read_text(encoding="utf-8")))
    for condition in () if options.from_blocks else (each for each in CONDITIONS if each.name in options.conditions):
        with TemporaryDirectory() as folder:
            parts[condition.name] = asyncio.run(measure(condition, options.rounds, Path(folder)))
        if options.blocks:
            options.blocks.write_text(json.dumps(codec.plain(parts)), encoding="utf-8")
    blocks: dict[str, Blocks] = {name: part.blocks for name, part in parts.items()}
    machine = f"on {os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    command = "python -m benchmarks.routing_help --table benchmarks/routing-help-results.md"
    text = page(blocks, {name: (part.circumstances, part.delays) for name, part in parts.items()}, command, machine)
    if options.table:
        options.table.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
