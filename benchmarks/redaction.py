"""redact: CPU time of redacting a megabyte of records, relative to parsing it as JSON"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measurement import Figure, Options, Result
from pytest_agentbench.lib.redact import Redactor

TEXT = Path(__file__).parents[1] / "scenarios" / "banking" / "banking.json"
SECRETS = 10  # variables, as a job in CI has them
RUNS = 7
LIMIT_MS = 60  # for a megabyte without a secret, which most are


def measure(options: Options) -> Result:
    del options  # one size
    names = [f"BENCHMARK_{number}_TOKEN" for number in range(SECRETS)]
    os.environ.update({name: os.urandom(20).hex() for name in names})
    redactor = Redactor()
    value = os.environ[names[0]]
    for name in names:
        del os.environ[name]
    entries = json.loads(TEXT.read_text(encoding="utf-8"))
    clean = [json.dumps(entry) for entry in entries]
    dirty = [json.dumps({**entry, "question": f"My key is {value}."}) for entry in entries]
    megabytes = sum(map(len, clean)) / 1e6
    reading = _milliseconds(json.loads, clean) / megabytes
    nothing, found = (_milliseconds(redactor, lines) / megabytes for lines in (clean, dirty))
    return Result(
        [
            Figure("redact.clean", nothing, "ms/MB", LIMIT_MS, f"{nothing / reading:.1f}x json.loads"),
            Figure("redact.found", found, "ms/MB", 3 * LIMIT_MS, f"{found / reading:.1f}x json.loads"),
        ],
        [f"medians of {RUNS}; {SECRETS} secret variables; redact.found has one of them in every record"],
    )


def _milliseconds(work: Callable[[str], object], lines: list[str]) -> float:
    """Returns the CPU time of a function for all lines, in milliseconds."""
    times = []
    for _ in range(RUNS):
        started = time.process_time()
        for line in lines:
            work(line)
        times.append(time.process_time() - started)
    return statistics.median(times) * 1e3
