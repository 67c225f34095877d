"""resume: how long a session waits for a journal of 100,000 rollouts, and the memory that its index takes"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pytest_agentbench.records import Chunk, LLMCall, Rollout, Score
from pytest_agentbench.runs.journal import FILE, record_line, sealed
from tests.benchmarks.measurement import Command, Figure, Options, Result

ROLLOUTS = 100_000
SCENARIOS = 1_000
CHUNKS = 40  # events of an answer, two answers each
LIMIT_S = 10
LIMIT_MB = 500

#: What a session does before anything else: open the journal, and decide what is kept.
TAKE_UP = """
import json, resource, sys, time
from pathlib import Path
from pytest_agentbench.suites.hashes import ContentHashes
from pytest_agentbench.runs.journal import Journal
from pytest_agentbench.records import Json
from pytest_agentbench.runs.resume import take_up

class Same(ContentHashes):
    def __init__(self) -> None: ...
    def of(self, key):
        return CONTENT

CONTENT = {"scenario": "a" * 16, "agent": "b" * 16, "scorers": {"tsq": "c" * 16}, "backend": "d" * 16}
began = time.monotonic()
with Journal(Path(sys.argv[1])) as journal:
    indexed = time.monotonic()
    stored = take_up(journal, Same(), {"bench": {}}, {}, [], ("infra_error", "cancelled"))
    wire = json.dumps([{"key": key, "status": status} for key, status in stored.kept.items()])
    taken = time.monotonic()
    some = [journal.line(key) for key in list(stored.kept)[::1000]]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
print(json.dumps({"index_s": indexed - began, "take_up_s": taken - indexed, "read_s": time.monotonic() - taken, "peak_mb": peak,
                  "kept": len(stored.kept), "again": len(stored.again), "wire_mb": len(wire) / 1e6}))
"""


def measure(options: Options) -> Result:
    del options  # one size
    with tempfile.TemporaryDirectory(prefix="agentbench-benchmark-") as name:
        folder = Path(name)
        with (folder / FILE).open("wb") as file:
            file.writelines(lines())
        size = (folder / FILE).stat().st_size
        cost = Command([sys.executable, "-c", TAKE_UP, str(folder)], Path.cwd()).cost()
    found = json.loads(cost.output)
    return Result(
        [
            Figure("resume.wall", cost.wall_s, "s", LIMIT_S, f"{found['index_s']:.2f} s of it the index"),
            Figure("resume.memory", found["peak_mb"], "MB", LIMIT_MB, f"{found['peak_mb'] * 1e6 / ROLLOUTS:.0f} bytes a rollout"),
        ],
        [
            f"{ROLLOUTS} rollouts in {size / 1e6:.0f} MB; {found['kept']} are kept, {found['again']} run again",
            f"deciding what is kept took {found['take_up_s']:.2f} s; what the pool is told has {found['wire_mb']:.1f} MB",
        ],
    )


def lines() -> Iterator[bytes]:
    """Records as a run writes them, one in a hundred an infra_error."""
    dice = random.Random(1)
    content = {"scenario": "a" * 16, "agent": "b" * 16, "scorers": {"tsq": "c" * 16}, "backend": "d" * 16}
    for number in range(ROLLOUTS):
        trial, scenario = divmod(number, SCENARIOS)
        record = Rollout(
            suite="bench",
            scenario=f"bench-{scenario:04}",
            variant="default",
            trial=trial + 1,
            status="infra_error" if dice.random() < 0.01 else "ok",
            content=content,
            calls=(call(number), call(number)),
            messages=({"role": "user", "content": "Where is the money that I sent last week? " * 20},),
            scores={"tsq": Score(0.5, {"precision": 0.5}, "precision 0.50")},
        )
        yield sealed(record_line(record)) + b"\n"


def call(number: int) -> LLMCall:
    start = 10**12 + number * 10**7
    chunks = tuple(Chunk(start + each * 10**6, "content", lag_ns=20_000) for each in range(CHUNKS))
    return LLMCall(start, start, start + CHUNKS * 10**6, chunks, model="bench", completion_tokens=CHUNKS)
