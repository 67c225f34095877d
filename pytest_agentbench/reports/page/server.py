"""What the servers told while a run went on, as lines that stand under the rollouts in flight."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from pytest_agentbench.backends.telemetry.engine_stats import SERVERS
from pytest_agentbench.backends.telemetry.samples import GpuSample, Sample, read_samples
from pytest_agentbench.records import Json

MOST = 600  # points of a line: more are not seen
SHARE, COUNT = "%", ""

#: Metric of a server -> (title, unit, factor).
GAUGES = {
    **{name: ("KV cache in use", SHARE, 100.0) for names in SERVERS.values() for name in names.kv_usage if name},
    **{names.waiting: ("requests waiting", COUNT, 1.0) for names in SERVERS.values() if names.waiting},
    **{names.running: ("requests running", COUNT, 1.0) for names in SERVERS.values() if names.running},
}
#: Metric -> (what it counts: hits or queries).
HITS = {name: role for names in SERVERS.values() for role, name in (("hits", names.hits), ("queries", names.queries)) if name}

TimePoints = list[tuple[float, float]]


def server_series(directory: Path, began: float | None) -> list[Json]:
    """Title, unit, source and points (seconds after `began`, value) of each line; none where no samples were taken."""
    if began is None:
        return []
    lines: defaultdict[tuple[str, str, str], TimePoints] = defaultdict(list)
    counts: dict[tuple[str, str], float] = {}
    for sample in read_samples(directory, {*GAUGES, *HITS}):
        at = round(sample.at - began, 3)
        points = _of_gpu(sample) if isinstance(sample, GpuSample) else _of_service(sample, counts)
        for key, value in points:
            if math.isfinite(value):
                lines[key].append((at, round(value, 3)))
    return [{"title": title, "unit": unit, "source": source, "points": thin(points)} for (title, unit, source), points in lines.items()]


def _of_gpu(sample: GpuSample) -> Iterator[tuple[tuple[str, str, str], float]]:
    yield ("GPU memory in use", "MiB", sample.gpu), float(sample.used_mib)
    if sample.sm_percent is not None:
        yield ("GPU busy", SHARE, sample.gpu), sample.sm_percent


def _of_service(sample: Sample, counts: dict[tuple[str, str], float]) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Gauges, and of the prefix cache which share of the tokens that were looked up since the last look was found."""
    source = " ".join(map(str, sample.source))
    moved: dict[str, float] = {}
    for series, value in sample.values.items():
        if series.name in GAUGES:
            title, unit, factor = GAUGES[series.name]
            labels = ", ".join(text for name, text in series.labels if name not in ("model_name", "engine"))
            yield (title, unit, " ".join(filter(None, (source, labels)))), value * factor
        elif series.name in HITS:
            key = (source, series.name)
            moved[HITS[series.name]] = value - counts.get(key, value)
            counts[key] = value
    if moved.get("queries", 0) > 0:
        yield ("prefix cache hits", SHARE, source), min(100.0, max(0.0, moved.get("hits", 0.0)) / moved["queries"] * 100)


def thin(points: TimePoints) -> TimePoints:
    """At most MOST of the points: of neighbours the one with the greatest value, so that no peak is lost."""
    step = math.ceil(len(points) / MOST)
    return [max(points[place : place + step], key=lambda point: point[1]) for place in range(0, len(points), step or 1)]
