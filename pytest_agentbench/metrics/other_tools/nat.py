"""Computes the metrics that the NeMo Agent Toolkit would report (`throughput_analysis.py` of its Dynamo example)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_agentbench.metrics.other_tools import PeerTable
from pytest_agentbench.metrics.other_tools.measures import called_ns
from pytest_agentbench.metrics.timings import speedup
from pytest_agentbench.records import LLMCall

if TYPE_CHECKING:
    from pytest_agentbench.stats.series import Floats

#: Statistics of each distribution.
WHOLE = ("mean", "median", "p90", "p95", "p99", "min", "max")

COLUMNS = ("mean", "median", "P90", "P95", "P99", "min", "max")
#: Row of the table -> pattern of the names of its figures.
ROWS: Mapping[str, str] = {
    "TTFT (ms)": "ttft_{}_ms",
    "ITL, global (ms)": "itl_{}_ms",
    "ITL, mean per call (ms)": "itl_percall_{}_ms",
    "Throughput per call (tok/s)": "per_request_throughput_{}_toks",
    "LLM latency (s)": "latency_{}_sec",
}
SINGLE: Mapping[str, str] = {
    "Total LLM Calls": "total_llm_calls",
    "Total Tokens Generated": "total_tokens",
    "Sum of LLM Durations (s)": "sum_of_durations_sec",
    "Wall-Clock Time (s)": "wall_clock_time_sec",
    "Aggregate Throughput (tok/s)": "aggregate_throughput_toks",
    "Speedup": "aggregate_speedup",
}
DIFFERS = (
    "A token is an event of the stream, including a bare role, a finish reason and usage; several tokens in one event count as one.",
    "Therefore TTFT ends at the first event of any kind, and ITL is the gap between any two consecutive events.",
    "No number includes failed calls or calls without events. Without streaming the tool has no events; here the tap provides them.",
    "The tool takes timestamps in the agent's process with the wall clock, so they are larger on a busy machine; these are the tap's.",
    "Throughput of a call is events / (end - start), including TTFT; the aggregate is over the time from the first start to the last end.",
    "The tool's latencies pair each start with the next end, which is wrong if calls overlap; these are right.",
)


class TimedCall(NamedTuple):
    """One LLM call with the data that the NeMo Agent Toolkit uses. Times are in seconds."""

    example: int  # index of the example
    number: int  # index of the call in the example
    model: str
    start: float
    end: float
    duration: float
    tokens: int  # number of tokens
    rate: float  # tokens per second
    first: float  # time from the start to the first token
    mean_gap: float | None  # mean gap between tokens; None if there is only one
    median_gap: float | None  # median gap between tokens; None if there is only one


@dataclass
class Throughput:
    """Collects the calls of a run and the gaps between their tokens. All gaps are kept (eight bytes each), so percentiles are exact."""

    calls: list[TimedCall] = field(default_factory=list)
    gaps: array[float] = field(default_factory=lambda: array("d"))  # gaps in seconds
    wall_s: float | None = None  # seconds of the blocks with these calls; None: from the first start to the last end

    def add(self, example: int, number: int, model: str, span: tuple[float, float], tokens: Sequence[float]) -> None:
        """Adds a call with the times of its start, end and tokens in seconds. Calls without tokens are ignored."""
        start, end = span
        if end <= start or not tokens:
            return
        gaps = [later - earlier for earlier, later in pairwise(tokens)]
        self.gaps.extend(gaps)
        mean_and_median = (float(np.mean(gaps)), float(np.median(gaps))) if gaps else (None, None)
        rate = len(tokens) / (end - start)
        self.calls.append(
            TimedCall(example, number, model, start, end, end - start, len(tokens), rate, tokens[0] - start, *mean_and_median)
        )

    def figures(self) -> dict[str, float | int | None]:
        """Returns the metrics by their names in the NeMo Agent Toolkit. Statistics are None if there is no call."""
        calls = self.calls
        extent = max(call.end for call in calls) - min(call.start for call in calls) if calls else 0.0
        wall = extent if self.wall_s is None else self.wall_s
        tokens = sum(call.tokens for call in calls)
        rates = np.array([call.rate for call in calls])
        aggregate = tokens / wall if wall else None
        return {
            "total_llm_calls": len(calls),
            "total_tokens": tokens,
            "sum_of_durations_sec": sum(call.duration for call in calls),
            "wall_clock_time_sec": wall,
            **_spread("ttft_{}_ms", np.array([call.first for call in calls]) * 1e3),
            **_spread("itl_{}_ms", np.array(self.gaps) * 1e3),
            **_spread("itl_percall_{}_ms", np.array([call.mean_gap for call in calls if call.mean_gap is not None]) * 1e3),
            **_spread("per_request_throughput_{}_toks", rates),
            **_spread("latency_{}_sec", np.array([call.duration for call in calls])),
            "aggregate_throughput_toks": aggregate,
            "aggregate_speedup": speedup(aggregate, float(rates.mean()) if calls else None),
        }

    @property
    def examples(self) -> int:
        """The number of examples (items of the data set) with a call."""
        return len({call.example for call in self.calls})


def _spread(name: str, values: Floats) -> dict[str, float | None]:
    """Returns the statistics of values by name, made from a pattern such as `ttft_{}_ms`. Percentiles are interpolated linearly."""
    return {name.format(each): _statistic(values, each) if len(values) else None for each in WHOLE}


def _statistic(values: Floats, name: str) -> float:
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


def nat(calls: Iterable[LLMCall]) -> PeerTable:
    throughput, zero = Throughput(), None
    for call in calls:
        if call.error_kind:
            continue
        start = called_ns(call)
        zero = start if zero is None else zero  # Times count from here, because floats since 1970 have a resolution of only a microsecond
        tokens = [(chunk.at_ns - zero) / 1e9 for chunk in call.chunks]
        throughput.add(0, 0, call.model, ((start - zero) / 1e9, (call.ended_ns - zero) / 1e9), tokens)
    figures = throughput.figures()
    rows: dict[str, list[float | None]] = {title: [figures[name.format(each)] for each in WHOLE] for title, name in ROWS.items()}
    rows |= {title: [figures[name]] for title, name in SINGLE.items()}
    return PeerTable("NeMo Agent Toolkit, throughput_analysis.py", COLUMNS, rows, DIFFERS)
