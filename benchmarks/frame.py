"""frame: CPU and memory of computing the metrics of a run: 10,000 rollouts with 10 calls of 60 events, 40 metrics of 8 slices"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.measurement import Command, Figure, Options, Result
from benchmarks.tables import CALLS, lines
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.frame import Slice
from pytest_agentbench.metrics.performance import PerformanceSettings, objectives_of, summarize
from pytest_agentbench.metrics.stopwatch import CpuShares, stopwatch_of
from pytest_agentbench.metrics.terms import Terms
from pytest_agentbench.records import UNDECLARED
from pytest_agentbench.runs.journal import FILE, read_journal
from pytest_agentbench.session.results import MainScore, read_rollouts

ROLLOUTS, EVENTS = 10_000, 60
LIMIT_MB = 1_000
SLICES_S = 1.0
READING = 4.0  # CPU of reading into a frame, over that of reading alone


def measure(options: Options) -> Result:
    rollouts = ROLLOUTS // 10 if options.quick else ROLLOUTS
    with tempfile.TemporaryDirectory(prefix="agentbench-benchmark-") as name:
        with (Path(name) / FILE).open("wb") as file:
            file.writelines(lines(rollouts, EVENTS))
        cost = Command([sys.executable, "-m", __name__, name], Path.cwd()).cost()
    took = json.loads(cost.output)
    size = f"{rollouts:,} rollouts of {CALLS} calls of {EVENTS} events"
    return Result(
        [
            Figure("frame.reading", took["read"] / took["alone"], "x", READING, f"{took['read'] / (rollouts * CALLS) * 1e6:.0f} us a call"),
            Figure("frame.memory", cost.peak_mb, "MB", LIMIT_MB),
            Figure("frame.slices", took["slices"], "s", SLICES_S, f"{took['values']} values"),
        ],
        [f"{size}: CPU to read the journal {took['alone']:.1f} s, into a frame {took['read']:.1f} s, to sum up {took['summary']:.2f} s"],
    )


def cpu_seconds(directory: Path) -> dict[str, float]:
    """Returns the CPU seconds of each step: reading a journal, reading it into a frame, the summary, and the metrics of slices.

    The entry `values` is not a time, but the number of these metrics.
    """
    settings = PerformanceSettings(8, {}, {"ttft": 500.0}, (0.0, 30.0))
    terms = Terms(objectives_of(settings.slo))
    began = time.process_time()
    for _ in read_journal(directory):
        pass
    alone, began = time.process_time() - began, time.process_time()
    frame = read_rollouts(directory, defaultdict(lambda: MainScore("tsq", UNDECLARED)), 1).read.frame
    read, began = time.process_time() - began, time.process_time()
    summarize(frame, settings)
    stopwatch_of(frame.scenarios(terms).timed, CpuShares(), 2)
    summary, began = time.process_time() - began, time.process_time()
    names = [f"{name}.{statistic}" for name in registry.latencies() for statistic in ("mean", "p50", "p99")] + [*registry.single()]
    parts = [Slice(frame, frame.rollouts["trial"] % 8 == number, terms) for number in range(8)]
    values = [part.value(name) for part in parts for name in names[:40]]
    return {"alone": alone, "read": read, "summary": summary, "slices": time.process_time() - began, "values": len(values)}


if __name__ == "__main__":
    print(json.dumps(cpu_seconds(Path(sys.argv[1]))))
