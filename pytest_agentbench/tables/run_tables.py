"""The tables `metrics` and `samples` of a run.

`metrics` has a row for each metric in run.json: those of the run, its window, its arms, its suites and their roles. `samples` has a row
for each value that a service or a GPU reported, if that differs from the value before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pytest_agentbench.backends.telemetry.samples import GpuSample, Sample, read_samples
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.columns import FrameColumn
from pytest_agentbench.metrics.frame import STATISTICS, MetricValue
from pytest_agentbench.records import arm_of, suite_of
from pytest_agentbench.runs.run_file import Run


class MetricRow(NamedTuple):
    """A row of the table `metrics`: one number of one part of a run."""

    run: str
    part: str
    suite: str | None = None
    variant: str | None = None
    arm: str | None = None
    role: str | None = None
    metric: str = ""
    statistic: str | None = None
    value: float | None = None
    unit: str | None = None


def rows_of_metrics(name: str, run: Run) -> Iterator[MetricRow]:
    """Yields the rows of a run in the table `metrics`. `name` is the name of the run's directory."""
    yield from _numbers(MetricRow(name, "run"), run.performance.metrics)
    if window := run.performance.window:
        yield from _numbers(MetricRow(name, "window"), {**window.latencies, **window.metrics})
    for arm in run.ab.arms if run.ab else ():
        yield from _numbers(MetricRow(name, "arm", arm=arm.name), arm.metrics)
    for group, suite in run.suites.items():
        own = MetricRow(name, "suite", suite_of(group, suite.variant), suite.variant, arm_of(suite.variant) if run.ab else None)
        yield from _numbers(own, suite.efficiency.metrics, suite.efficiency.currency)
        for role, use in suite.roles.items():
            numbers: Mapping[str, MetricValue] = {"ttft_ms": use.ttft_ms, "e2e_ms": use.e2e_ms, "cost": use.cost}
            yield from _numbers(own._replace(part="role", role=role), numbers, use.currency)


def _numbers(part: MetricRow, values: Mapping[str, MetricValue], currency: str | None = None) -> Iterator[MetricRow]:
    """Yields a row of the table `metrics` for each number, and one for each statistic of a duration. Unknown values have no row.

    `part` has the fields that all rows share: run, suite, arm and role.
    """
    for metric in registry.METRICS:
        value = values.get(metric.key)
        if value is None:
            continue
        row = part._replace(metric=metric.name)
        if isinstance(value, float | int):
            yield row._replace(value=value, unit=currency if metric.money else None)
            continue
        known = {statistic: number for statistic in STATISTICS if (number := getattr(value, statistic)) is not None}
        yield from (row._replace(statistic=name, value=number, unit=None if name == "n" else "ms") for name, number in known.items())


RUN_METRICS: tuple[FrameColumn[Any], ...] = (
    FrameColumn("run", "text", "name of the run directory", lambda row: row.run),
    FrameColumn("part", "text", "part of the run: `run`, `window`, `arm`, `suite` or `role`", lambda row: row.part),
    FrameColumn("suite", "text", "name of the suite, if the part is a suite or a role", lambda row: row.suite),
    FrameColumn("variant", "text", "name of the variant, `default` if the suite has none", lambda row: row.variant),
    FrameColumn("arm", "text", "name of the arm, if the run has arms", lambda row: row.arm),
    FrameColumn("role", "text", "name of the role, if the part is a role", lambda row: row.role),
    FrameColumn("metric", "text", "the [metric](metrics.md#serving-metrics)", lambda row: row.metric),
    FrameColumn(
        "statistic", "text", "statistic of a duration: `n`, `mean`, `p50`, ...; empty for a single number", lambda row: row.statistic
    ),
    FrameColumn("value", "number", "value of the metric", lambda row: row.value),
    FrameColumn("value_unit", "text", "unit of the value: `ms` for durations, the currency for costs", lambda row: row.unit),
)


class SampleRow(NamedTuple):
    """A row of the table `samples`: one value of one series in one sample."""

    run: str
    round: int
    at: float  # seconds since 1970
    service: str
    replica: int
    series: str
    labels: str
    value: float | None


class AllSeries:
    """A collection that contains every name. It makes `read_samples`, which reads only the series in a collection, read all of them."""

    def __contains__(self, name: object) -> bool:
        return True


GPU_SERIES = ("used_mib", "total_mib", "sm_percent", "power_w")


def rows_of_samples(run: str, directory: Path) -> Iterator[SampleRow]:
    """Yields the rows of a run in the table `samples`, in the order in which they were taken. `run` is the name of the run."""
    for sample in read_samples(directory, AllSeries()):
        yield from _of_gpu(run, sample) if isinstance(sample, GpuSample) else _of_service(run, sample)


def _of_service(run: str, sample: Sample) -> Iterator[SampleRow]:
    for series, value in sample.values.items():
        labels = ",".join(f'{name}="{text}"' for name, text in series.labels)
        yield SampleRow(run, sample.round, sample.at, *sample.source, series.name, labels, value)


def _of_gpu(run: str, sample: GpuSample) -> Iterator[SampleRow]:
    for name in GPU_SERIES:
        yield SampleRow(run, sample.round, sample.at, "gpu", 0, name, f'gpu="{sample.gpu}"', getattr(sample, name))


SAMPLES: tuple[FrameColumn[Any], ...] = (
    FrameColumn("run", "text", "name of the run directory", lambda row: row.run),
    FrameColumn("round", "count", "number of the sampling round; all values of a round belong together", lambda row: row.round),
    FrameColumn("at_s", "number", "when the value was received, since 1970", lambda row: row.at, "s"),
    FrameColumn("service", "text", "name of the service; `gpu` for a GPU", lambda row: row.service),
    FrameColumn("replica", "count", "index of the replica of the service, counted from 0", lambda row: row.replica),
    FrameColumn(
        "series",
        "text",
        "name of the series, which includes its unit; for a GPU: used_mib, total_mib, sm_percent or power_w",
        lambda row: row.series,
    ),
    FrameColumn("labels", "text", "labels of the series in the format of Prometheus", lambda row: row.labels),
    FrameColumn("value", "number", "value in the unit of the series", lambda row: row.value),
)
