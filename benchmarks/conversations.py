"""conversations: CPU of the tap with and without keeping requests and replies, the size of what is kept, and a store of 10,000 rollouts"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measurement import Figure, Options, Result, run_pytest
from benchmarks.workplace import Workplace, workplace
from pytest_agentbench.lib.kept_values import FILE
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.records import Json
from pytest_agentbench.runs.journal import FILE as JOURNAL
from pytest_agentbench.runs.journal import read_journal
from pytest_agentbench.runs.message_file import MessageFile
from pytest_agentbench.runs.run_file import read_run
from pytest_agentbench.tap.conversations import ConversationKeeper, KeptBytes
from pytest_agentbench.tap.http_messages import Request

LEVELS = ("none", "all")
RUNS = 5
LIMIT_CPU = 1.10
LIMIT_BYTES = 2_500  # for each call of banking, whose requests have 28 kB
ROLLOUTS, CALLS = 10_000, 10
LIMIT_MS = 2.0  # CPU for each rollout in the store
LIMIT_MB = 200
SESSION = ("scenarios/banking", "--agentbench-agent=react", "--agentbench-set", "backend.ttft_ms=0", "--agentbench-set", "backend.itl_ms=1")


def measure(options: Options) -> Result:
    runs = options.repeat or (1 if options.quick else RUNS)
    cpu: dict[str, list[float]] = {level: [] for level in LEVELS}
    with workplace() as place:
        subprocess.run([sys.executable, "-m", "pytest_agentbench.cli", "init", "banking"], cwd=place.root, check=True, capture_output=True)
        for number in range(runs):
            for level in LEVELS if number % 2 == 0 else reversed(LEVELS):
                cpu[level].append(_tap_cpu(place, level))
        directory = (place.root / "reports" / "latest").resolve()
        calls = sum(len(rollout.all_calls) for rollout in read_journal(directory))
        kept = (directory / FILE).stat().st_size / calls if (directory / FILE).exists() else 0.0
        journal = (directory / JOURNAL).stat().st_size / calls
    ratio = statistics.median(cpu["all"]) / statistics.median(cpu["none"])
    each_ms, peak_mb, size_mb = _store()
    return Result(
        [
            Figure("conversations.tap_cpu", ratio, "x", LIMIT_CPU, f"{statistics.median(cpu['all']):.2f} s against {_s(cpu['none'])}"),
            Figure("conversations.bytes", kept, "bytes/call", LIMIT_BYTES, f"the journal has {journal:,.0f} more"),
            Figure("conversations.store_cpu", each_ms, "ms/rollout", LIMIT_MS, f"{CALLS} calls each"),
            Figure("conversations.store_peak", peak_mb, "MB", LIMIT_MB, f"of a file of {size_mb:.0f} MB"),
        ],
        [f"medians of {runs} sessions of banking with the agent react; a store of {ROLLOUTS:,} rollouts of {CALLS} calls"],
    )


def _s(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} s"


def _tap_cpu(place: Workplace, level: str) -> float:
    """Runs banking and returns the CPU seconds of the tap."""
    run_pytest(place.root, *SESSION, f"--agentbench-keep={level}")
    used = read_run((place.root / "reports" / "latest").resolve()).processes["tap"].cpu_s
    assert used is not None
    return used


def _store() -> tuple[float, float, float]:
    """Writes many rollouts. Returns CPU milliseconds for each, the growth of memory in MB, and the size of the file in MB."""
    used = 0.0
    with tempfile.TemporaryDirectory() as name, MessageFile(Path(name), Redactor()) as file:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(ROLLOUTS):
            lines = _lines(number)
            started = time.process_time()
            file.add(lines)
            used += time.process_time() - started
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used / ROLLOUTS * 1e3, (after - before) * 1024 / 1e6, file.size / 1e6


def _lines(number: int) -> list[bytes]:
    """Returns the lines of one rollout, in which each message has a text of its own."""
    keeper, history = ConversationKeeper(KeptBytes()), list[Json]()
    for turn in range(CALLS):
        history += [{"role": "user", "content": f"{number} {turn} " + "x" * 900}, {"role": "assistant", "content": f"{number} {turn} yes"}]
        body: Json = {"model": "m", "messages": history[:-1]}
        reply = json.dumps({"id": f"{number}-{turn}"}).encode()
        keeper.call(Request(b"POST", "/chat/completions", [], json.dumps(body).encode()), body, reply)
    return keeper.end().split(b"\n")
