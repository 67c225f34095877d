"""The mocker's forward passes, as its scheduler writes them down (`DYN_FPM_TRACE`): how many tokens of prompts each had to compute.

Of its prefix cache the mocker tells no counters, and a router knows what it expects. So hits are what is missing from the prompts.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.measurement import BenchmarkError
from pytest_agentbench.records import Json


class Pass(NamedTuple):
    """One step of a worker's scheduler."""

    at: float  # seconds, time.time()
    computed: int  # tokens of prompts, those of a prompt that was preempted once more


def passes(folder: Path) -> list[Pass]:
    """Of all workers, in the order of time; raises BenchmarkError where one is missing, for the trace is best-effort."""
    workers: dict[str, dict[int, Pass]] = {}
    for file in sorted(folder.glob("*.jsonl.gz")):
        for event in _events(file):
            told = event["fpm"]
            each = Pass(event["observed_at_unix_ms"] / 1e3, told["scheduled_requests"]["sum_prefill_tokens"])
            workers.setdefault(told["worker_id"], {})[told["counter_id"]] = each
    if not workers:
        raise BenchmarkError(f"{folder}: the workers wrote no pass down")
    for worker, known in workers.items():
        if lost := max(known) - min(known) + 1 - len(known):
            raise BenchmarkError(f"{folder}: {lost} of {len(known) + lost} passes of the worker {worker} are not written down")
    return sorted(each for known in workers.values() for each in known.values())


def _events(file: Path) -> Iterator[Json]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["event"]
