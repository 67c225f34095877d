"""The table `samples`: a row for each value that a service or a GPU told, where it is another than before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pytest_agentbench.backends.telemetry.samples import GpuSample, Sample, read_samples
from pytest_agentbench.metrics.columns import FrameColumn


class SampleRow(NamedTuple):
    """One value of one series at one look."""

    run: str
    round: int
    at: float  # seconds since 1970
    service: str
    replica: int
    series: str
    labels: str
    value: float | None


class AllSeries:
    """The names of all series."""

    def __contains__(self, name: object) -> bool:
        return True


GPU_SERIES = ("used_mib", "total_mib", "sm_percent", "power_w")


def rows(run: str, directory: Path) -> Iterator[SampleRow]:
    """The values of a run in the order in which they were told; none where no samples were taken."""
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
    FrameColumn("run", "text", "the run's directory", lambda row: row.run),
    FrameColumn("round", "count", "looks of one round belong together", lambda row: row.round),
    FrameColumn("at_s", "number", "when the answer was there, since 1970", lambda row: row.at, "s"),
    FrameColumn("service", "text", "the service; `gpu` for a GPU", lambda row: row.service),
    FrameColumn("replica", "count", "of the service, counted from 0", lambda row: row.replica),
    FrameColumn(
        "series",
        "text",
        "name of the series, which has its unit; of a GPU one of used_mib, total_mib, sm_percent, power_w",
        lambda row: row.series,
    ),
    FrameColumn("labels", "text", "of the series, as Prometheus writes them", lambda row: row.labels),
    FrameColumn("value", "number", "in the unit of the series", lambda row: row.value),
)
