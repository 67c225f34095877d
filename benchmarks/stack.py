"""stack: boot, teardown and CPU of pool and tap for the banking suite on real Dynamo, relative to the embedded engine alone"""

from __future__ import annotations

import re
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.measurement import BenchmarkError, BenchmarkSkipped, Figure, Options, Result, run_pytest, seconds
from pytest_agentbench.backends.machine.virtual_environments import resolve_python
from pytest_agentbench.errors import MissingError
from pytest_agentbench.runs.run_file import read_run

ROOT = Path(__file__).parents[1]
WAYS = {"concurrency 48": ("--agentbench-concurrency=48",), "-n 8": ("-n", "8", "--agentbench-workers=8")}
RUNS = 3
LIMIT = 1.15


class Run(NamedTuple):
    """The measurements of one session."""

    wall_s: float
    harness_ms: float  # CPU of pool and tap for each rollout
    boot_s: float
    stop_s: float


def measure(options: Options) -> Result:
    try:
        resolve_python("dynamo", ROOT)
    except MissingError as error:
        raise BenchmarkSkipped(str(error)) from error
    figures, notes = [], []
    for way, arguments in WAYS.items():
        alone, behind = [], []
        for _ in range(options.repeat or RUNS):
            alone.append(_run("embedded", *arguments))
            behind.append(_run("dynamo-embedded", *arguments))
        ratio = statistics.median(mine.harness_ms / other.harness_ms for mine, other in zip(behind, alone, strict=True))
        medians = [statistics.median(run.harness_ms for run in runs) for runs in (behind, alone)]
        name = f"stack.harness, {way}"
        figures.append(Figure(name, ratio, "x", LIMIT, f"{medians[0]:.1f} ms over {medians[1]:.1f} ms a rollout"))
        notes.append(
            f"{way}: whole command {seconds([run.wall_s for run in behind])} through Dynamo, {seconds([run.wall_s for run in alone])} alone"
        )
        notes.append(f"{way}: boot {seconds([run.boot_s for run in behind])}, teardown {seconds([run.stop_s for run in behind])}")
    return Result(figures, ["stack.harness: CPU of pool and tap, median of the pairs' ratios; 100 scenarios", *notes])


def _run(backend: str, *arguments: str) -> Run:
    with tempfile.TemporaryDirectory() as reports:
        given = ("scenarios/banking", f"--agentbench-backend={backend}", f"--agentbench-reports={reports}", "-q", "-p", "no:cacheprovider")
        cost = run_pytest(ROOT, *given, *arguments)
        directory = Path(reports, "latest").resolve()
        run = read_run(directory)
        if run.plan.finished != 100 or run.backend.failure:
            raise BenchmarkError(f"{backend}: {run.plan.finished} of 100 rollouts finished; {run.backend.failure[:500]}")
        log = directory / "backend" / "stack_daemon.log"
        stopped = re.findall(r"stopped in ([\d.]+) s", log.read_text()) if log.exists() else []
    harness = sum(run.processes[name].cpu_s for name in ("pool", "tap"))
    boot = run.backend.boot.boot_s if run.backend.boot else 0.0
    return Run(cost.wall_s, harness / 100 * 1e3, boot, float(stopped[0]) if stopped else 0.0)
