"""Writes the durations of each run, in seconds, as `RUN.json` of pytest-benchmark 5, for `pytest-benchmark compare`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.columns import FrameTable
from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.tables import Tables

VERSION = "5.1.0"  # version of pytest-benchmark whose file format this is
FENCE = 1.5  # interquartile ranges beyond a quartile from which on pytest-benchmark calls a value an outlier


def write(chosen: ChosenRuns, directory: Path) -> None:
    """Writes a file for each run. Each duration of a suite is a benchmark in it, and each call or rollout is a round of the benchmark."""
    for origin in chosen.origins:
        run = chosen.run_of(origin)
        file = {**_about(run), "benchmarks": [*_benchmarks(chosen.tables, origin.run)]}
        (directory / f"{origin.run}.json").write_text(json.dumps(file, indent=1, allow_nan=False), encoding="utf-8")


def _about(run: Run) -> Json:
    git = run.environment.git
    commit = {"id": git.commit, "dirty": git.dirty} if git else {}
    machine = {"system": run.environment.platform, "python_version": run.environment.python, "cpu": {"count": run.environment.cpus}}
    return {"machine_info": machine, "commit_info": commit, "datetime": run.started_at, "version": VERSION}


def _benchmarks(tables: Tables, run: str) -> Iterator[Json]:
    """Yields a benchmark for each suite and duration of a run. Calls of judges, and to other endpoints
    than the backend under test, are left out, as in all timings.
    """
    calls, rollouts = (_measured(table, run) for table in (tables.calls, tables.rollouts))
    agents = calls.where(calls["measured"])
    columns = [(agents, f"{name}_mean_ms", f"{name}_mean") for name in registry.latencies("event")]
    columns += [(agents, metric.key, metric.name) for metric in registry.latencies("call").values()]
    columns += [(rollouts, metric.key, metric.name) for metric in registry.latencies("rollout").values()]
    groups = {RolloutKey(suite, "", variant).group for suite, variant in zip(rollouts["suite"], rollouts["variant"], strict=True)}
    for group in sorted(groups):
        for table, column, name in columns:
            values = table[column][_of_group(table, group)] / 1e3
            if len(known := values[~np.isnan(values)]):
                yield _benchmark(group, name, known)


def _measured(table: FrameTable, run: str) -> FrameTable:
    return table.where((table["run"] == run) & (table["kind"] == "scenario"))


def _of_group(table: FrameTable, group: str) -> NDArray[np.bool_]:
    pairs = zip(table["suite"], table["variant"], strict=True)
    return np.fromiter((RolloutKey(suite, "", variant).group == group for suite, variant in pairs), np.bool_, len(table))


def _benchmark(group: str, name: str, seconds: NDArray[np.float64]) -> Json:
    names: Json = {"group": name, "name": f"{group}: {name}", "fullname": f"{group}::{name}"}
    return {**names, "params": None, "param": None, "extra_info": {}, "options": {}, "stats": statistics(seconds)}


def statistics(seconds: NDArray[np.float64]) -> dict[str, Any]:
    """Returns the statistics that pytest-benchmark stores for these durations. Quartiles are interpolated linearly."""
    low, median, high = (float(value) for value in np.percentile(seconds, (25, 50, 75)))
    mean, deviation = float(seconds.mean()), float(seconds.std(ddof=1)) if len(seconds) > 1 else 0.0
    inside = (seconds >= low - FENCE * (high - low)) & (seconds <= high + FENCE * (high - low))
    far = int((abs(seconds - mean) > deviation).sum())
    beyond = int((~inside).sum())
    return {
        "min": float(seconds.min()),
        "max": float(seconds.max()),
        "mean": mean,
        "stddev": deviation,
        "rounds": len(seconds),
        "median": median,
        "iqr": high - low,
        "q1": low,
        "q3": high,
        "iqr_outliers": beyond,
        "stddev_outliers": far,
        "outliers": f"{far};{beyond}",
        "ld15iqr": float(seconds[inside].min()),
        "hd15iqr": float(seconds[inside].max()),
        "ops": 1 / mean if mean else 0.0,
        "total": float(seconds.sum()),
        "iterations": 1,
    }
