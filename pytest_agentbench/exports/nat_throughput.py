"""Throughput as `throughput_analysis.py` of the NeMo Agent Toolkit's example counts it, from the events of the profiler.

By its definitions: within an example a call is a start and the next end in time, a token is an event, and a call without tokens is none.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pytest_agentbench.exports.csv_files import write_rows
from pytest_agentbench.exports.nat_profile import ProfilerEvent, seconds
from pytest_agentbench.exports.nat_schema import CALL_COLUMNS, CALLS, GAP_COLUMNS, GAPS, WHOLE
from pytest_agentbench.metrics.timings import speedup


class TimedCall(NamedTuple):
    """One call, as CALL_COLUMNS have it; seconds."""

    example: int
    number: int
    model: str
    start: float
    end: float
    duration: float
    tokens: int
    rate: float  # tokens per second
    first: float
    mean_gap: float | None
    median_gap: float | None


@dataclass
class Throughput:
    """The calls of a job and the gaps between their tokens. The latter take eight bytes each: their percentiles are exact."""

    calls: list[TimedCall] = field(default_factory=list)
    gaps: array[float] = field(default_factory=lambda: array("d"))  # seconds
    wall_s: float | None = (
        None  # seconds of the turns in which they were made, where others had turns between; None: from first start to last end
    )

    def add(self, example: int, events: Iterable[ProfilerEvent]) -> None:
        """Takes the events of an example, in the order of time."""
        timed = [(float(seconds(event.at)), event) for event in events if event.kind.startswith("LLM_")]
        tokens = [at for at, event in timed if event.kind == "LLM_NEW_TOKEN"]
        number, start = 0, None
        for at, event in timed:
            if event.kind == "LLM_START":
                number, start = number + 1, at
            elif event.kind == "LLM_END" and start is not None:
                self._add_call(example, number, event.name, (start, at), tokens[bisect_right(tokens, start) : bisect_right(tokens, at)])
                start = None

    def _add_call(self, example: int, number: int, model: str, span: tuple[float, float], tokens: Sequence[float]) -> None:
        start, end = span
        if end <= start or not tokens:
            return
        gaps = [later - earlier for earlier, later in pairwise(tokens)]
        self.gaps.extend(gaps)
        middle = (float(np.mean(gaps)), float(np.median(gaps))) if gaps else (None, None)
        rate = len(tokens) / (end - start)
        self.calls.append(TimedCall(example, number, model, start, end, end - start, len(tokens), rate, tokens[0] - start, *middle))

    def write(self, job: Path, *, exact: bool) -> None:
        """Writes CALLS, `exact` as CsvFile has it, and GAPS."""
        write_rows(job / CALLS, CALL_COLUMNS, self.calls, exact=exact)
        write_rows(job / GAPS, GAP_COLUMNS, ((gap,) for gap in self.gaps))

    def figures(self) -> dict[str, float | int | None]:
        """The columns of a benchmark but for its concurrency; None where there is no call."""
        calls = self.calls
        extent = max(call.end for call in calls) - min(call.start for call in calls) if calls else 0.0
        wall = extent if self.wall_s is None else self.wall_s
        tokens = sum(call.tokens for call in calls)
        rates = [call.rate for call in calls]
        aggregate = tokens / wall if wall else None
        return {
            "total_llm_calls": len(calls),
            "total_tokens": tokens,
            "sum_of_durations_sec": sum(call.duration for call in calls),
            "wall_clock_time_sec": wall,
            **_spread("ttft_{}_ms", [call.first * 1e3 for call in calls], WHOLE),
            **_spread("itl_{}_ms", np.frombuffer(self.gaps) * 1e3 if self.gaps else (), WHOLE),
            **_spread("itl_percall_{}_ms", [call.mean_gap * 1e3 for call in calls if call.mean_gap is not None], WHOLE[:4]),
            **_spread("per_request_throughput_{}_toks", rates, WHOLE),
            "aggregate_throughput_toks": aggregate,
            "aggregate_speedup": speedup(aggregate, float(np.mean(rates)) if rates else None),
        }

    @property
    def examples(self) -> int:
        """How many examples have a call."""
        return len({call.example for call in self.calls})


def _spread(
    name: str, values: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]], statistics: Sequence[str]
) -> Mapping[str, float | None]:
    """The statistics of values under their columns' names; percentiles by linear interpolation."""
    return {name.format(each): _statistic(np.asarray(values), each) if len(values) else None for each in statistics}


def _statistic(values: np.ndarray[tuple[int], np.dtype[np.float64]], name: str) -> float:
    match name:
        case "mean":
            return float(values.mean())
        case "min":
            return float(values.min())
        case "max":
            return float(values.max())
        case "median":
            return float(np.percentile(values, 50))
    return float(np.percentile(values, int(name.removeprefix("p"))))


#: Sections of an analysis: title, column, statistics and unit.
SECTIONS = (
    ("Time To First Token (TTFT)", "ttft_{}_ms", WHOLE, "ms"),
    ("Global Statistics: Inter-Token Latency (ITL)", "itl_{}_ms", WHOLE, "ms"),
    ("Per-Call Average ITL:", "itl_percall_{}_ms", WHOLE[:4], "ms"),
    ("Per-Request Throughput", "per_request_throughput_{}_toks", WHOLE, "tok/s"),
)


def analysis(throughput: Throughput) -> str:
    """The text of `analysis_<concurrency>.txt`, under the labels by which scripts find its numbers."""
    figures = throughput.figures()
    lines = [
        f"Total LLM Calls: {figures['total_llm_calls']}",
        f"Total Tokens Generated: {figures['total_tokens']:,}",
        f"Sum of LLM Durations: {figures['sum_of_durations_sec']:.2f}s",
        f"Wall-Clock Time: {figures['wall_clock_time_sec']:.2f}s",
        f"Concurrent Examples: {throughput.examples}",
    ]
    for title, column, statistics, unit in SECTIONS:
        lines += ["", title]
        lines += [f"  {name.title()}: {rounded(figures[column.format(name)])} {unit}" for name in statistics]
    lines += [
        "",
        "Aggregate Throughput (All Concurrent Requests)",
        f"  Aggregate Throughput: {rounded(figures['aggregate_throughput_toks'])} tok/s",
        f"  Speedup vs Per-Request: {rounded(figures['aggregate_speedup'])}x",
    ]
    return "\n".join(lines) + "\n"


def rounded(value: float | None) -> str:
    """Two digits behind the point, as scripts have it; nothing for nothing."""
    return "" if value is None else f"{value:.2f}"
