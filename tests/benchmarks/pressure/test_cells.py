"""Calculating the table of benchmarks/routing-results.md: blocks, their means, and their ratios."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.measurement import BenchmarkError
from benchmarks.pressure.cells import Block, Step, block_of, cell_of
from benchmarks.pressure.page import Level, table
from benchmarks.pressure.passes import Pass, passes

STEPS = [Step(100.0, 101.0, 0.1, 1000), Step(100.5, 102.0, 0.2, 1000), Step(102.0, 103.0, 0.3, 2000)]


def test_a_block() -> None:
    """Three steps in three seconds are sixty per minute. Passes before or after the block do not count."""
    block = block_of(STEPS, [Pass(99.0, 500), Pass(100.1, 1000), Pass(102.5, 200), Pass(104.0, 700)])

    assert 60 == pytest.approx(block.calls_per_minute)
    assert 1 - 1200 / 4000 == pytest.approx(block.hit_ratio)
    assert 0.29 == pytest.approx(block.ttft_p95)


@pytest.mark.parametrize(("steps", "computed"), [([], [Pass(100.1, 1)]), (STEPS, [Pass(99.0, 500)])])
def test_nothing_measured(steps: list[Step], computed: list[Pass]) -> None:
    """If no steps or no passes of the block were recorded, an error is raised instead of a ratio of 1."""
    with pytest.raises(BenchmarkError):
        block_of(steps, computed)


def test_a_cell() -> None:
    """Intervals are Student's t over blocks. The ratio is calculated per pair of blocks, so that drift does not affect it."""
    base = [Block(rate, 0.5, 0.1) for rate in (100.0, 200.0, 400.0)]
    twice = [Block(rate, 0.5, 0.1) for rate in (199.0, 400.0, 804.0)]

    cell = cell_of(twice, base)

    assert cell.ratio is not None
    ratio, low, high = cell.ratio
    assert 1.97 < low < ratio < high < 2.03
    assert cell.calls_per_minute.low is not None
    assert cell.calls_per_minute.low < 0
    assert None is cell.hit_ratio.low
    assert None is cell_of(base, None).ratio


def test_the_table() -> None:
    """The table has a row for each arm, with its ratio to the first arm."""
    cells = {"round_robin": cell_of([Block(100, 0.5, 0.1), Block(110, 0.6, 0.2)], None)}
    cells["kv"] = cell_of([Block(200, 0.5, 0.1), Block(231, 0.6, 0.2)], [Block(100, 0.5, 0.1), Block(110, 0.6, 0.2)])

    head, _, first, second = table([Level(8, cells, "ok", "quiet")]).splitlines()

    assert "| in flight | routing | LLM calls/min | x `round_robin` | prefix cache hits | TTFT p95 |" == head
    assert first.startswith("| 8 | `round_robin` | 105 (41 to 169) |  | 0.550 (")
    assert second.startswith("| 8 | `kv` | 216 (19 to 412) | 2.05 (")


def written(folder: Path, worker: str, counters: list[int]) -> None:
    """Writes the recorded passes of a worker, a hundred tokens each."""
    told = {"worker_id": worker, "scheduled_requests": {"sum_prefill_tokens": 100}}
    with gzip.open(folder / f"worker.{worker}.000000.jsonl.gz", "wt", encoding="utf-8") as file:
        for counter in counters:
            event = {"observed_at_unix_ms": 1000 * counter, "fpm": {**told, "counter_id": counter}}
            file.write(json.dumps({"event": event}) + "\n")


def test_passes_of_all_workers(tmp_path: Path) -> None:
    """Passes are sorted by time. A pass that was written twice counts once."""
    written(tmp_path, "a", [1, 3, 3, 2])
    written(tmp_path, "b", [2])

    assert [1.0, 2.0, 2.0, 3.0] == [each.at for each in passes(tmp_path)]
    assert {100} == {each.computed for each in passes(tmp_path)}


@pytest.mark.parametrize("counters", [[], [1, 3]])
def test_a_pass_is_missing(tmp_path: Path, counters: list[int]) -> None:
    """A missing pass is an error, because it would count as a cache hit."""
    if counters:
        written(tmp_path, "a", counters)

    with pytest.raises(BenchmarkError):
        passes(tmp_path)
