"""The results of a sweep at each concurrency, read from its directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.cache_state import CacheBlock
from pytest_agentbench.backends.telemetry.engine_stats import CacheHits
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import Rollout
from pytest_agentbench.runs.results import ArmResult, ArmsCompared, Cache
from pytest_agentbench.sweep.levels import read_sweep
from tests.made_runs import run_directory
from tests.tables.shop import call, rollout


def arm(name: str, concurrency: int) -> ArmResult:
    counts: Any = {"blocks": 2, "rollouts": {}, "calls": 0, "failed_calls": 0, "busy_s": 0.0, "metrics": {}}
    facts: Any = {"model": None, "load_s": None, "failure": "", "goodput": None, "prefix_cache": CacheHits(None, None, None)}
    return ArmResult(name=name, kind="set", value=f"concurrency={concurrency}", **counts, **facts)


def block(variant: str, at: int, seconds: int, count: int, *, tokens: int) -> Iterator[Rollout]:
    """Yields successive rollouts from `at` on, each with a call of this many tokens, one every 100 ms."""
    for number in range(count):
        start = (at + number * seconds) * 1_000
        stamps = [start + 100 * place for place in range(1, tokens + 1)]
        one = call(start, *stamps, end=start + seconds * 1_000)
        yield rollout(f"{at}-{number}", start, start + seconds * 1_000, variant=variant, calls=(one,))


ROLLOUTS = (
    *block("one", 0, 10, 2, tokens=50),  # a warm-up that is slower than the next blocks
    *block("four", 20, 20, 1, tokens=10),
    *block("one", 40, 5, 3, tokens=20),
    *block("four", 60, 2, 2, tokens=10),
)
BLOCKS = tuple(CacheBlock(name, count) for name, count in (("one", 2), ("four", 1), ("one", 3), ("four", 2)))


def sweep_directory(directory: Path, *rollouts: Rollout) -> Path:
    arms = ArmsCompared((arm("one", 1), arm("four", 4)), "interleaved", (), ())
    return run_directory(directory, *rollouts, ab=arms, cache=Cache("carry", BLOCKS))


def test_the_first_block_warms_up(tmp_path: Path) -> None:
    """A level has all rollouts except those of the first block of its arm. Its rates are over the time in which its rollouts ran."""
    sweep = read_sweep(sweep_directory(tmp_path / "run", *ROLLOUTS))

    assert {1: 2, 4: 1} == sweep.warm_up
    one, four = sweep.levels
    assert (1, 4) == (one.concurrency, four.concurrency)
    assert [3, 2] == [len(each.part.rollouts) for each in sweep.levels] == [len(each.trials) for each in sweep.levels]
    assert [15.0, 4.0] == [each.part.seconds for each in sweep.levels]
    assert [60 / 15, 20 / 4] == [each.part.value("output_tokens_per_s") for each in sweep.levels]
    assert [3 * 3600 / 15, 2 * 3600 / 4] == [each.part.value("rollouts_per_hour") for each in sweep.levels]
    assert [15.0, 4.0] == [each.throughput.wall_s for each in sweep.levels]
    assert [60, 20] == [each.throughput.figures()["total_tokens"] for each in sweep.levels]


def test_a_run_without_concurrencies(tmp_path: Path) -> None:
    """A run whose arms are not concurrency levels is refused."""
    with pytest.raises(ConfigError, match="are not concurrency levels; make such a run with `agentbench sweep`"):
        read_sweep(run_directory(tmp_path / "run", *(replace(each, variant="default") for each in ROLLOUTS)))
