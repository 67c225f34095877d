"""Computes the metrics that NVIDIA AIPerf 0.13 would report for the calls of a run."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise, repeat

from pytest_agentbench.metrics.other_tools import PeerTable
from pytest_agentbench.metrics.other_tools.measures import CLOCK, TOKENS, Extent, called_ns, columns, counts_as_success, rate
from pytest_agentbench.metrics.timings import output_tokens
from pytest_agentbench.records import LLMCall
from pytest_agentbench.stats.quantiles import series

COLUMNS = ("avg", "min", "max", "p99", "p90", "p50", "std")
TTFT, LATENCY, ITL = "Time to First Token (ms)", "Request Latency (ms)", "Inter Token Latency (ms)"
ADJUSTED = (TTFT, LATENCY, ITL)  # metrics with an adj_ row if calls failed
ROWS = (
    TTFT,
    "Time to Second Token (ms)",
    "Time to First Output Token (ms)",
    LATENCY,
    ITL,
    "Inter Chunk Latency (ms)",
    "Output Token Throughput Per User (tokens/sec/user)",
    "Output Sequence Length (tokens)",
    "Input Sequence Length (tokens)",
)
DIFFERS = (
    "Inter Token Latency is one number per call, (latency - TTFT) / (tokens - 1), which is our TPOT.",
    "Inter Chunk Latency is our ITL; only this metric shows a stall.",
    "Request Latency ends at the last event with text, not at the end of the stream.",
    "adj_ rows count every failed call as infinite; their percentiles are the nearest values. Other rows leave failed calls out.",
    "A stream with an error event counts as a success.",
    "Throughput is over the time from the first request to the last response, including ramp-up and drain.",
    TOKENS,
    CLOCK,
)


def aiperf(calls: Iterable[LLMCall]) -> PeerTable:
    values, extent = series(), Extent()
    good = failed = tokens = 0
    for call in calls:
        if not counts_as_success(call) or not call.output:
            failed += 1
            continue
        good += 1
        tokens += output_tokens(call)
        extent.add(called_ns(call), call.output[-1].at_ns)
        _add(values, call)
    rows: dict[str, list[float | None]] = {name: columns(values[name], COLUMNS) for name in ROWS if values[name]}
    if failed:
        rows |= {f"adj_ {name}": _adjusted(values[name], failed) for name in ADJUSTED if values[name]}
    rows |= {
        "Output Token Throughput (tokens/sec)": [rate(tokens, extent.ns)],
        "Request Throughput (requests/sec)": [rate(good, extent.ns)],
        "Request Count (requests)": [good],
        "Error Request Count (requests)": [failed],
    }
    return PeerTable("AIPerf 0.13", COLUMNS, rows, DIFFERS)


def _adjusted(values: Sequence[float], failed: int) -> list[float | None]:
    """Returns the statistics in a row `adj_...` of AIPerf, in which each of the `failed` calls counts as an infinite latency.

    Percentiles use numpy's method `nearest`; `std` is None.
    """
    ordered = [*sorted(values), *repeat(math.inf, failed)]
    cells = {"avg": math.inf, "min": ordered[0], "max": math.inf, "std": None}
    return [cells[name] if name in cells else ordered[round((len(ordered) - 1) * int(name[1:]) / 100)] for name in COLUMNS]


def _add(values: defaultdict[str, array[float]], call: LLMCall) -> None:
    """Adds the metrics of one call to `values`, which maps names of metrics to their values so far."""
    events, start, tokens = call.output, called_ns(call), output_tokens(call)
    first, last = events[0].at_ns, events[-1].at_ns
    values[TTFT].append((first - start) / 1e6)
    values[LATENCY].append((last - start) / 1e6)
    values["Inter Chunk Latency (ms)"].extend((later.at_ns - earlier.at_ns) / 1e6 for earlier, later in pairwise(events))
    values["Output Sequence Length (tokens)"].append(tokens)
    if len(events) > 1:
        values["Time to Second Token (ms)"].append((events[1].at_ns - first) / 1e6)
    if answer := [chunk.at_ns for chunk in events if chunk.kind != "reasoning"]:
        values["Time to First Output Token (ms)"].append((answer[0] - start) / 1e6)
    if call.prompt_tokens is not None:
        values["Input Sequence Length (tokens)"].append(call.prompt_tokens)
    if tokens > 1:
        values[ITL].append((last - first) / 1e6 / (tokens - 1))
        if last > first:
            values["Output Token Throughput Per User (tokens/sec/user)"].append((tokens - 1) * 1e9 / (last - first))
