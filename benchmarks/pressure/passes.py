"""Reads the forward passes of Dynamo's mocker from the trace of its scheduler (`DYN_FPM_TRACE`): prompt tokens computed in each.

The mocker has no counters of prefix cache hits, and a router only estimates them. Prompt tokens that no pass computed are therefore hits.
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
    """One forward pass of a worker."""

    at: float  # seconds, time.time()
    computed: int  # tokens of prompts, those of a prompt that was preempted once more


def passes(folder: Path) -> list[Pass]:
    """Returns the passes of all workers in the order of time. Raises BenchmarkError if some are missing, which the trace allows."""
    workers: dict[str, dict[int, Pass]] = {}
    for file in sorted(folder.glob("*.jsonl.gz")):
        for event in _events(file):
            told = event["fpm"]
            each = Pass(event["observed_at_unix_ms"] / 1e3, told["scheduled_requests"]["sum_prefill_tokens"])
            workers.setdefault(told["worker_id"], {})[told["counter_id"]] = each
    if not workers:
        raise BenchmarkError(f"{folder}: contains no trace of the workers")
    for worker, known in workers.items():
        if lost := max(known) - min(known) + 1 - len(known):
            raise BenchmarkError(
                f"{folder}: {lost} of {len(known) + lost} passes of worker {worker} are missing in the trace; run the benchmark again"
            )
    return sorted(each for known in workers.values() for each in known.values())


def _events(file: Path) -> Iterator[Json]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["event"]
