"""tables: time and memory of reading runs with 10,000, 100,000 and a million calls as tables"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measurement import Command, Cost, Figure, Options, Result
from pytest_agentbench.lib.json_text import sealed
from pytest_agentbench.records import Chunk, LLMCall, Rollout, Score
from pytest_agentbench.runs.journal import FILE, record_line

SIZES = (10_000, 100_000, 1_000_000)  # calls
CALLS = 10  # of a rollout
CHUNKS = 20  # events of a call
LIMIT_MB = 1_500
LINEAR = 1.5  # CPU a call of the largest run, over that of the smallest

READ = """
import json, sys
from pathlib import Path
from pytest_agentbench.tables import read_tables
tables = read_tables([Path(sys.argv[1])])
print(json.dumps({"calls": len(tables.calls), "mb": sum(values.nbytes for values in tables.calls.columns.values()) / 1e6}))
"""


def measure(options: Options) -> Result:
    sizes = SIZES[:2] if options.quick else SIZES
    costs = {size: cost_of(size) for size in sizes}
    empty, largest = cost_of(0), costs[sizes[-1]]
    each = {size: (cost.cpu_s - empty.cpu_s) / size * 1e6 for size, cost in costs.items()}
    return Result(
        [
            Figure("tables.linear", each[sizes[-1]] / each[sizes[0]], "x", LINEAR, f"{each[sizes[-1]]:.0f} us a call"),
            Figure(
                "tables.memory", largest.peak_mb, "MB", LIMIT_MB, f"{(largest.peak_mb - empty.peak_mb) * 1e6 / sizes[-1]:.0f} bytes a call"
            ),
        ],
        [
            f"{size:,} calls: {cost.cpu_s:.1f} s of CPU, {each[size]:.0f} us a call, {cost.peak_mb:.0f} MB at the peak, "
            f"{json.loads(cost.output)['mb']:.0f} MB of columns"
            for size, cost in costs.items()
        ],
    )


def cost_of(calls: int) -> Cost:
    """Returns the cost of a process that reads a journal with this number of calls as tables."""
    with tempfile.TemporaryDirectory(prefix="agentbench-benchmark-") as name:
        with (Path(name) / FILE).open("wb") as file:
            file.writelines(lines(calls // CALLS))
        return Command([sys.executable, "-c", READ, name], Path.cwd()).cost()


def lines(rollouts: int, events: int = CHUNKS) -> Iterator[bytes]:
    """Yields the lines of a journal: the same record under different keys. Its calls have `events` events each."""
    start = 10**12
    record = Rollout(
        suite="bench",
        scenario="bench-0",
        variant="default",
        trial=1,
        status="ok",
        started_at=1.7e9,
        started_ns=start,
        ended_ns=start + 10**8,
        calls=tuple(call(start + each * 10**7, events) for each in range(CALLS)),
        scores={"tsq": Score(0.5, {"precision": 0.5}, "precision 0.50")},
    )
    before, key, after = record_line(record).partition(b'"trial":1')
    for number in range(rollouts):
        yield sealed(b"%b%b%d%b" % (before, key[:-1], number + 1, after)) + b"\n"


def call(start: int, events: int) -> LLMCall:
    chunks = tuple(Chunk(start + each * 10**5, "content", lag_ns=20_000) for each in range(1, events + 1))
    return LLMCall(start, start, start + 10**7, chunks, start, "chat", model="bench", completion_tokens=events, prompt_tokens=900)
