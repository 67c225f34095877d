"""hints: learnt hints against static ones and none, in latency, before two routers with simulated workers"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from benchmarks.hints import project
from benchmarks.hints.blocks import Block, Step, block_of
from benchmarks.hints.page import Measured, page, table
from benchmarks.measurement import BenchmarkError, BenchmarkSkipped, Command, Options, Result, Surroundings, run_pytest
from benchmarks.timing.table import processor
from pytest_agentbench import load
from pytest_agentbench.backends.machine.virtual_environments import resolve_python
from pytest_agentbench.errors import MissingError
from pytest_agentbench.reports.routing_phrases import hints_were
from pytest_agentbench.runs.run_file import read_run

CONCURRENCY = 24  # all sessions at a time
LEARNT_FROM, COMPARED = 1, 2  # seeds of the sessions that hints are learnt from, and of those that are compared
REPEATS = 9  # blocks of each arm
WARM_UP = 1  # of them, which are left out
QUICK_REPEATS = 3


def measure(options: Options) -> Result:
    try:
        resolve_python("dynamo", project.ROOT)
    except MissingError as error:
        raise BenchmarkSkipped(str(error)) from error
    repeats = options.repeat or (QUICK_REPEATS if options.quick else REPEATS)
    measured = []
    for router in project.ROUTERS:
        around = Surroundings()
        with tempfile.TemporaryDirectory() as folder:
            project.make(Path(folder), router)
            learn(Path(folder))
            measured.append(Measured(router, *compare(Path(folder), repeats), str(around)))
    if options.table is not None:
        extra = (" --quick" if options.quick else "") + (f" --repeat {options.repeat}" if options.repeat else "")
        versions = f"{os.cpu_count()} cores ({processor()}), Linux {platform.release()}, Python {platform.python_version()}"
        made = f"Made by `python -m benchmarks hints{extra} --table {options.table}` on {versions}."
        options.table.write_text(page(measured, made), encoding="utf-8")
    return Result([], [f"{each.router}: {each.surroundings}; timings {each.judgement}" for each in measured], table(measured))


def learn(folder: Path) -> None:
    """Runs the sessions once without hints, and learns a table of hints from them."""
    run_sessions(folder, LEARNT_FROM, "--agentbench-backend=none")
    words = ["-m", "pytest_agentbench.cli", "hints", "learn", "latest", "-o", f"backends/{project.TABLE}"]
    Command([sys.executable, *words], folder).cost()


def compare(folder: Path, repeats: int) -> tuple[dict[str, list[Block]], dict[str, str], str]:
    """Runs all arms in one session, in interleaved blocks of other sessions than those that hints were learnt from.

    Returns the blocks of each arm, how right its hints were, and the timing quality.
    """
    arms = [f"--agentbench-ab={','.join(project.ARMS)}", f"--agentbench-trials={repeats}", "--agentbench-cache=cold"]
    directory = run_sessions(folder, COMPARED, *arms)
    run = read_run(directory)
    blocks = {arm: [*_blocks(directory, arm)][WARM_UP:] for arm in project.ARMS}
    if odd := {arm: len(each) for arm, each in blocks.items() if len(each) != repeats - WARM_UP}:
        raise BenchmarkError(f"each arm needs {repeats - WARM_UP} blocks after the first, but some have other numbers: {odd}")
    return blocks, {use.arm: hints_were(use) for use in run.hints}, run.stopwatch.verdict or "unknown"


def run_sessions(folder: Path, seed: int, *options: str) -> Path:
    """Runs the suite, and returns the directory of the run."""
    load = [f"--agentbench-concurrency={CONCURRENCY}", f"--agentbench-set=dataset.options.seed={seed}"]
    run_pytest(folder, "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "scenarios/sessions", *load, *options)
    return (folder / "reports" / "latest").resolve()


def _blocks(directory: Path, arm: str) -> Iterator[Block]:
    """Yields the blocks of an arm in the order of time. Each trial is one block."""
    calls = load(directory).calls
    mine = calls[(calls["variant"] == arm) & calls["measured"]].sort_values("trial")
    if lost := int(mine["ttft_ms"].isna().sum()):
        raise BenchmarkError(f"{arm}: {lost} calls have no first token")
    columns = (mine[name].tolist() for name in ("trial", "scenario", "sent_s", "ended_s", "ttft_ms"))
    for _, rows in groupby(zip(*columns, strict=True), key=itemgetter(0)):
        yield block_of([Step(*row[1:]) for row in rows])
