"""The numbers of the pictures in report.html: distributions of latencies, intervals of differences, and server metrics over time."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_agentbench.backends.telemetry.engine_stats import SERVERS
from pytest_agentbench.backends.telemetry.kv_cache import CachedCalls
from pytest_agentbench.backends.telemetry.samples import GpuSample, Sample, read_samples
from pytest_agentbench.records import Json
from pytest_agentbench.reports.page.kv_pictures import MOST, kv_series
from pytest_agentbench.runs.directory import name_of
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.stats.decisions import Decision

if TYPE_CHECKING:
    from pytest_agentbench.gate.run_comparison import ReferenceComparison, RunComparison
    from pytest_agentbench.metrics.frame import Frame, Slice
    from pytest_agentbench.stats.series import Counts, Floats


BINS = 96  # bins in each power of ten, each 2.4 % wide; the picture merges them
LEAST = 1e-2  # Smaller values are counted as this one.
LEAST_BIN = round(math.log10(LEAST)) * BINS  # the bin of these values, which a picture does not draw


class Distributions:
    """Histograms for each suite and variant: TTFT and ITL in milliseconds, and output tokens per second of a call."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, defaultdict[str, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))

    def add(self, frame: Frame, by: int = 1) -> None:
        """Counts all calls in a frame (a table of rollouts and their calls), including earlier attempts. With `by=-1`, subtracts them."""
        part = frame.scenarios()
        for group in dict.fromkeys(part.rollouts["group"].tolist()):
            for name, values in _values(part.where(group=group)).items():
                counts = self._counts[group][name]
                for each, count in Counter(bins_of(values).tolist()).items():
                    counts[each] += by * count

    def plain(self) -> Json:
        """Returns suite or `suite-variant` -> metric -> [[bin, count], ...], the lowest bin first."""
        return {group: {name: _counted(bins) for name, bins in metrics.items()} for group, metrics in self._counts.items()}


def bins_of(values: Floats) -> Counts:
    """Returns the number of the bin that contains each value. Bins are logarithmic; bin 0 starts at 1."""
    import numpy as np

    bins: Counts = np.floor(np.log10(np.maximum(values, LEAST)) * BINS + 1e-9).astype(np.int64)
    return bins


def _counted(bins: Counter[int]) -> list[tuple[int, int]]:
    return [(each, bins[each]) for each in sorted(bins) if bins[each]]


def _values(part: Slice) -> dict[str, Floats]:
    gaps = part.frame.events("itl").of(part.successful_calls.mask) / 1e6
    return {"ttft": part.known("ttft_ms"), "itl": gaps, "call_output_tokens_per_s": part.known("call_output_tokens_per_s")}


METRICS = ("ttft", "itl", "e2e")


def intervals(run: Run) -> list[Json]:
    """Returns the intervals of a run's gate rules, and of the comparisons of its arms, for the page's script."""
    rules = run.gate.rules if run.gate else ()
    ruled = [
        {**_interval(f"{each.suite} {each.rule}", each, each.threshold, each.verdict), "rule": True, "least": ">" in each.rule}
        for each in rules
    ]
    arms = run.ab.comparisons if run.ab else ()
    compared = [
        _interval(f"{each.suite} {each.metric}: {each.new_arm} against {each.base_arm}", each, _even(each.metric), each.finding)
        for each in arms
    ]
    return [each for each in (*ruled, *compared) if "title" in each]


def compared_runs(directories: Sequence[Path]) -> RunComparison:
    """Returns the comparison of several runs with the first one. Raises ConfigError if a run cannot be read."""
    from pytest_agentbench.gate.run_comparison import RunComparison, distinct
    from pytest_agentbench.gate.run_pair import read  # imported late, because a session does not need the statistics

    names = distinct([name_of(directory.resolve()) or directory.resolve().name for directory in directories])
    return RunComparison(names, tuple(map(read, directories)))


def intervals_against_reference(runs: RunComparison) -> list[Json]:
    """Returns the intervals of all differences between the reference run and the others, for the page's script."""
    return [each for each in _interval_of_each_difference(runs) if each]


def _interval_of_each_difference(runs: RunComparison) -> Iterator[Json]:
    from pytest_agentbench.gate.run_comparison import PERCENTILES, latency_against, score_against

    first = runs.reference.facts
    for group, suite in first.suites.items():
        for score in suite.scorers:
            yield from _against(runs, f"{group} {score}", score, score_against(runs, group, score))
    for metric in METRICS:
        for q in PERCENTILES:
            yield from _against(runs, f"{metric}.p{q}", f"{metric}.p{q}", latency_against(runs, metric, q))


def _against(runs: RunComparison, title: str, metric: str, comparisons: Sequence[ReferenceComparison]) -> Iterator[Json]:
    for name, each in zip(runs.names[1:], comparisons, strict=True):
        if each.decision:
            yield _interval(f"{title}: {name} against {runs.names[0]}", each.decision, _even(metric), "")


def _even(metric: str) -> float:
    """Returns the value that means no difference in a metric: 1 for ratios of latencies, 0 for differences of scores."""
    return 1.0 if "." in metric else 0.0


def _interval(title: str, decision: Decision, threshold: float, verdict: str) -> Json:
    """Returns an interval in the format that the page's script reads, or an empty dict without an estimate."""
    if decision.estimate is None:
        return {}
    ends = {"estimate": decision.estimate, "low": decision.low, "high": decision.high}
    return {"title": title, **ends, "threshold": threshold, "verdict": verdict, "confidence": decision.confidence}


SHARE, COUNT = "%", ""

#: Metric of a server -> (title, unit, factor).
GAUGES = {
    **{name: ("KV cache in use", SHARE, 100.0) for names in SERVERS.values() for name in names.kv_usage if name},
    **{names.waiting: ("requests waiting", COUNT, 1.0) for names in SERVERS.values() if names.waiting},
    **{names.running: ("requests running", COUNT, 1.0) for names in SERVERS.values() if names.running},
}
#: Metric of a server -> whether it counts prefix cache hits or queries.
HITS = {name: role for names in SERVERS.values() for role, name in (("hits", names.hits), ("queries", names.queries)) if name}

TimePoints = list[tuple[float, float]]


def server_series(directory: Path, began: float | None, calls: CachedCalls | None = None) -> list[Json]:
    """Returns the lines of the picture of server metrics. Their points are (seconds after `began`, value). Empty without samples.

    If the run has KV cache events, those are lines, too. `calls` are the calls that may have hit the caches.
    """
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
    sampled = [{"title": title, "unit": unit, "source": source, "points": thin(points)} for (title, unit, source), points in lines.items()]
    return sampled + kv_series(directory, began, calls)


def _of_gpu(sample: GpuSample) -> Iterator[tuple[tuple[str, str, str], float]]:
    yield ("GPU memory in use", "MiB", sample.gpu), float(sample.used_mib)
    if sample.sm_percent is not None:
        yield ("GPU busy", SHARE, sample.gpu), sample.sm_percent


def _of_service(sample: Sample, counts: dict[tuple[str, str], float]) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Yields ((title, unit, label), value) of each gauge in a service's sample, and of prefix cache hits since the previous sample."""
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
    """Returns at most MOST points. The highest of neighbouring points is kept, so that no peak is lost."""
    step = math.ceil(len(points) / MOST)
    return [max(points[place : place + step], key=lambda point: point[1]) for place in range(0, len(points), step or 1)]
