"""The NeMo Agent Toolkit: its profiler's events, as its Dynamo example's `throughput_analysis.py` reads them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from pytest_agentbench.metrics import timings
from pytest_agentbench.metrics.other_tools import PeerTable
from pytest_agentbench.metrics.other_tools.common import Extent, called_ns, columns, mean, rate
from pytest_agentbench.records import LLMCall
from pytest_agentbench.stats.percentiles import series

COLUMNS = ("mean", "median", "P90", "P95", "P99", "min", "max")
ROWS = ("TTFT (ms)", "ITL, global (ms)", "ITL, mean per call (ms)", "Throughput per call (tok/s)", "LLM latency (s)")
DIFFERS = (
    "A token is an event of the stream: bare role, finish reason and usage among them, and several tokens in one event are one.",
    "So TTFT ends at the first event of any kind, and ITL are the gaps between all events.",
    "Failed calls, and calls without events, are left out of every number. An agent that does not stream has no events there; here it has.",
    "Stamps are taken in the agent's own process with the wall clock; these are the tap's, so its numbers on a busy machine are larger.",
    "Throughput of a call is events / (end - start), with TTFT in it; the aggregate is over the time from the first start to the last end.",
    "Its latencies pair a start with the next end in time, and are wrong where calls overlap; these are right.",
)


def nat(calls: Iterable[LLMCall]) -> PeerTable:
    values, extent = series(), Extent()
    tokens = 0
    duration = 0
    for call in calls:
        start, stamps = called_ns(call), [chunk.at_ns for chunk in call.chunks]
        if call.error_kind or not stamps or call.ended_ns <= start:
            continue
        gaps = [(later - earlier) / 1e6 for earlier, later in pairwise(stamps)]
        extent.add(start, call.ended_ns)
        tokens += len(stamps)
        duration += call.ended_ns - start
        values["TTFT (ms)"].append((stamps[0] - start) / 1e6)
        values["ITL, global (ms)"].extend(gaps)
        if gaps:
            values["ITL, mean per call (ms)"].append(sum(gaps) / len(gaps))
        values["Throughput per call (tok/s)"].append(len(stamps) * 1e9 / (call.ended_ns - start))
        values["LLM latency (s)"].append((call.ended_ns - start) / 1e9)
    rows: dict[str, list[float | None]] = {name: columns(values[name], COLUMNS) for name in ROWS}
    aggregate, of_calls = rate(tokens, extent.ns), mean(values["Throughput per call (tok/s)"])
    rows |= {
        "Total LLM Calls": [len(values["TTFT (ms)"])],
        "Total Tokens Generated": [tokens],
        "Sum of LLM Durations (s)": [duration / 1e9],
        "Wall-Clock Time (s)": [extent.ns / 1e9],
        "Aggregate Throughput (tok/s)": [aggregate],
        "Speedup": [timings.speedup(aggregate, of_calls)],
    }
    return PeerTable("NeMo Agent Toolkit, throughput_analysis.py", COLUMNS, rows, DIFFERS)
