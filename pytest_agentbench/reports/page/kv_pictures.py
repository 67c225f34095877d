"""The lines of report.html about KV cache events: blocks stored, removed and hit by each engine, over time."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

from pytest_agentbench.backends.telemetry.kv_cache import DEVICE, WORKER_METRIC, CachedCalls, engines_by_name
from pytest_agentbench.backends.telemetry.kv_events import read_kv_events
from pytest_agentbench.backends.telemetry.samples import Sample, SampleSource, read_samples
from pytest_agentbench.records import Json

MOST = 600  # maximum points of a line; more would not be visible

TITLES = {name: f"KV cache blocks {name} per second" for name in ("stored", "removed", "hit")}


def kv_series(directory: Path, began: float, calls: CachedCalls | None = None) -> list[Json]:
    """Returns the lines of a run's KV cache events in the format of `server_series`. Empty if the run has none.

    `calls` are the calls that may have hit the caches. A hit counts at the time at which its call was sent.
    """
    amounts: defaultdict[tuple[SampleSource, str], list[tuple[float, float]]] = defaultdict(list)  # -> (seconds after `began`, blocks)
    sizes: dict[SampleSource, int] = {}
    clock = 0.0  # Unix time at which the monotonic clock was 0
    for event in read_kv_events(directory):
        clock = event.at - event.at_ns / 1e9
        if event.block_size:
            sizes[event.source] = event.block_size
        if event.kind in TITLES and event.medium in DEVICE:
            amounts[event.source, event.kind].append((event.at - began, len(event.blocks)))
    for source, found in (calls.at(_engines(directory)) if calls and sizes else {}).items():
        if source in sizes:
            hits = [(call.sent_ns / 1e9 + clock - began, call.cached_tokens // sizes[source]) for call in found]
            amounts[source, "hit"].extend(hits)
    end = max((at for points in amounts.values() for at, _ in points), default=0.0)
    width = max(1, math.ceil(end / MOST))
    return [
        {"title": TITLES[kind], "unit": "", "source": " ".join(map(str, source)), "points": per_second(amounts[source, kind], end, width)}
        for kind in TITLES
        for source in sorted(sizes)
        if (source, kind) in amounts
    ]


def _engines(directory: Path) -> dict[str, SampleSource]:
    """Returns name of a worker in answers -> engine, from the samples of a run."""
    samples = (sample for sample in read_samples(directory, {WORKER_METRIC.name}) if isinstance(sample, Sample))
    return engines_by_name({series for sample in samples for series in sample.values})


def per_second(amounts: list[tuple[float, float]], end: float, width: int) -> list[tuple[float, float]]:
    """Returns (start, amount per second) of each interval of `width` seconds from 0 to `end`. What was before 0 is in the first one."""
    sums = [0.0] * (math.floor(max(0.0, end) / width) + 1)
    for at, amount in amounts:
        sums[math.floor(max(0.0, at) / width)] += amount
    return [(number * width, round(each / width, 3)) for number, each in enumerate(sums)]
