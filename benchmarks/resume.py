"""resume: time and memory that a resumed session and a new pool need to read the files of 100,000 rollouts"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measurement import Command, Figure, Options, Result
from pytest_agentbench.lib.json_text import sealed
from pytest_agentbench.lib.wire import header
from pytest_agentbench.records import Chunk, LLMCall, Rollout, RolloutKey, Score
from pytest_agentbench.runs import attempts
from pytest_agentbench.runs.journal import FILE, record_line

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
from pytest_agentbench.runs.sessions import resume_journal

class Same(ContentHashes):
    def __init__(self) -> None: ...
    def of(self, key):
        return CONTENT

CONTENT = {"scenario": "a" * 16, "agent": "b" * 16, "scorers": {"tsq": "c" * 16}, "backend": "d" * 16}
began = time.monotonic()
with Journal(Path(sys.argv[1])) as journal:
    indexed = time.monotonic()
    stored = resume_journal(journal, 2, Same(), {"bench": {}}, {}, [], ("infra_error", "cancelled"))
    taken = time.monotonic()
    some = [journal.line(key) for key in list(stored.kept)[::1000]]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
print(json.dumps({"index_s": indexed - began, "take_up_s": taken - indexed, "read_s": time.monotonic() - taken, "peak_mb": peak,
                  "kept": len(stored.kept), "again": len(stored.again)}))
"""

#: What a pool does first, of the session whose number is the second argument.
BEGIN_POOL = """
import sys
from pathlib import Path
from pytest_agentbench.runs.attempts import read_attempts
from pytest_agentbench.runs.journal import read_index
from pytest_agentbench.runs.journal import earlier_work

directory, session = Path(sys.argv[1]), int(sys.argv[2])
work = earlier_work(read_index(directory), session, ("infra_error", "cancelled"))
print(len(read_attempts(directory, session, work.recorded).plan or ()))
"""


def measure(options: Options) -> Result:
    del options  # one size
    with tempfile.TemporaryDirectory(prefix="agentbench-benchmark-") as name:
        folder = Path(name)
        with (folder / FILE).open("wb") as file:
            file.writelines(lines())
        with (folder / attempts.FILE).open("wb") as file:
            file.writelines(entries())
        size, log_size = ((folder / each).stat().st_size for each in (FILE, attempts.FILE))
        cost = Command([sys.executable, "-c", TAKE_UP, str(folder)], Path.cwd()).cost()
        pools = [Command([sys.executable, "-c", BEGIN_POOL, str(folder), session], Path.cwd()).cost() for session in ("1", "2")]
    found = json.loads(cost.output)
    return Result(
        [
            Figure("resume.wall", cost.wall_s, "s", LIMIT_S, f"{found['index_s']:.2f} s of it the index"),
            Figure("resume.pool", pools[0].wall_s, "s", LIMIT_S, "until a pool that replaces a dead one has read what is there"),
            Figure("resume.memory", found["peak_mb"], "MB", LIMIT_MB, f"{found['peak_mb'] * 1e6 / ROLLOUTS:.0f} bytes a rollout"),
        ],
        [
            f"{ROLLOUTS} rollouts in {size / 1e6:.0f} MB; {found['kept']} are kept, {found['again']} run again",
            f"deciding what is kept took {found['take_up_s']:.2f} s",
            f"attempts.jsonl has {log_size / 1e6:.0f} MB; the first pool of the next session reads for {pools[1].wall_s:.1f} s",
        ],
    )


def entries() -> Iterator[bytes]:
    """Yields the lines that a finished session has in attempts.jsonl, for all rollouts."""
    keys = [RolloutKey("bench", f"bench-{number % SCENARIOS:04}", "default", number // SCENARIOS + 1) for number in range(ROLLOUTS)]
    tally = attempts.RolloutTally()
    yield _line(attempts.RolloutsPlanned(tuple(keys)))
    for number, key in enumerate(keys):
        yield _line(attempts.AttemptBegun(key, number))
        yield _line(attempts.AddressOpened(f"1.{number}", key, lent=False, label=None, tally=tally))
        yield _line(attempts.AddressClosed(f"1.{number}", 3, unreleased=False, tally=tally))
        yield _line(attempts.RolloutRead(key))


def _line(entry: attempts.AttemptEntry) -> bytes:
    return sealed(json.dumps({"session": 1, "entry": header(entry)}).encode()) + b"\n"


def lines() -> Iterator[bytes]:
    """Yields the lines of a journal. One rollout in a hundred is an infra_error."""
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
