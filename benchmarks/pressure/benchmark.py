"""pressure: routing in Dynamo if the KV caches are too small for the rollouts in flight, with simulated workers"""

from __future__ import annotations

import os
import platform
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from benchmarks.measurement import BenchmarkError, BenchmarkSkipped, Options, Result, Surroundings, run_pytest
from benchmarks.pressure import project
from benchmarks.pressure.cells import Block, Cell, Step, block_of, cell_of
from benchmarks.pressure.page import Level, page, table
from benchmarks.pressure.passes import passes
from benchmarks.timing.table import processor
from pytest_agentbench import load
from pytest_agentbench.backends.machine.virtual_environments import resolve_python
from pytest_agentbench.errors import MissingError
from pytest_agentbench.runs.run_file import read_run

CONCURRENCIES = (8, 16, 32)
TASKS = 1.5  # for each one in flight: fewer than two, so that a trial is one block
REPEATS = 7  # blocks of each arm
WARM_UP = 1  # of them, which are left out
QUICK_CONCURRENCIES, QUICK_REPEATS = (8,), 3


def measure(options: Options) -> Result:
    try:
        resolve_python("dynamo", project.ROOT)
    except MissingError as error:
        raise BenchmarkSkipped(str(error)) from error
    levels = []
    for concurrency in QUICK_CONCURRENCIES if options.quick else CONCURRENCIES:
        around = Surroundings()
        with tempfile.TemporaryDirectory() as folder:
            cells, judgement = session(Path(folder), concurrency, options.repeat or (QUICK_REPEATS if options.quick else REPEATS))
        levels.append(Level(concurrency, cells, judgement, str(around)))
    if options.table is not None:
        extra = (" --quick" if options.quick else "") + (f" --repeat {options.repeat}" if options.repeat else "")
        versions = f"{os.cpu_count()} cores ({processor()}), Linux {platform.release()}, Python {platform.python_version()}"
        made = f"Made by `python -m benchmarks pressure{extra} --table {options.table}` on {versions}."
        options.table.write_text(page(levels, made), encoding="utf-8")
    notes = [f"{level.concurrency} in flight: {level.surroundings}; timings {level.judgement}" for level in levels]
    return Result([], notes, table(levels))


def session(folder: Path, concurrency: int, repeats: int) -> tuple[dict[str, Cell], str]:
    """Runs all arms (ways of routing) in one session, in interleaved blocks. Returns the cell of each arm, and the timing quality."""
    project.make(folder, int(TASKS * concurrency))
    asked = {"ab": ",".join(project.ARMS), "concurrency": concurrency, "trials": repeats, "cache": "cold"}
    words = [f"--agentbench-{name}={value}" for name, value in asked.items()]
    run_pytest(folder, "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "scenarios/pressure", *words)
    directory = (folder / "reports" / "latest").resolve()
    run = read_run(directory)
    ran = Counter(block.arm for block in run.cache.blocks if block.seconds) if run.cache else Counter()
    if odd := {arm: ran[arm] for arm in project.ARMS if ran[arm] != repeats}:
        raise BenchmarkError(f"each arm needs {repeats} blocks, but some have other numbers: {odd}")
    blocks = {arm: [*_blocks(directory, arm, folder / "passes" / arm)][WARM_UP:] for arm in project.ARMS}
    return _cells(blocks), run.stopwatch.verdict or "unknown"


def _blocks(directory: Path, arm: str, folder: Path) -> Iterator[Block]:
    """Yields the blocks of an arm in the order of time. Each trial is one block."""
    calls, computed = load(directory).calls, passes(folder)
    mine = calls[(calls["variant"] == arm) & calls["measured"]].sort_values("trial")
    if lost := int(mine["ttft_ms"].isna().sum()):
        raise BenchmarkError(f"{arm}: {lost} calls have no first token")
    columns = (mine[name].tolist() for name in ("trial", "sent_s", "ended_s", "ttft_ms", "prompt_tokens"))
    for _, rows in groupby(zip(*columns, strict=True), key=itemgetter(0)):
        yield block_of([Step(sent, ended, ttft / 1e3, int(prompt)) for _, sent, ended, ttft, prompt in rows], computed)


def _cells(blocks: Mapping[str, list[Block]]) -> dict[str, Cell]:
    base = blocks[project.BASE]
    return {arm: cell_of(each, None if arm == project.BASE else base) for arm, each in blocks.items()}
