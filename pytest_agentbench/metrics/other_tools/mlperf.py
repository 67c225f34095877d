"""Computes the metrics that the reference client of MLPerf Endpoints would report for the calls of a run."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from pytest_agentbench.metrics.other_tools import PeerTable
from pytest_agentbench.metrics.other_tools.measures import CLOCK, TOKENS, Extent, called_ns, columns, rate
from pytest_agentbench.metrics.timings import later_tokens, output_tokens
from pytest_agentbench.records import LLMCall
from pytest_agentbench.stats.quantiles import percentile, series

COLUMNS = ("mean", "p50", "p90", "p99")
DIFFERS = (
    "TPOT is (end of the answer - first event) / tokens after the first event, so it includes the time after the last token.",
    "chunk_delta is our ITL; the targets of MLPerf are for 90th percentiles.",
    "Failed calls are counted, but no percentile includes them.",
    TOKENS,
    CLOCK,
)


def mlperf(calls: Iterable[LLMCall]) -> PeerTable:
    values, extent = series(), Extent()
    good = failed = tokens = 0
    for call in calls:
        events, start = call.output, called_ns(call)
        if call.error_kind or not events:
            failed += 1
            continue
        good += 1
        tokens += output_tokens(call)
        extent.add(start, call.ended_ns)
        values["ttft_ms"].append((events[0].at_ns - start) / 1e6)
        values["latency_ms"].append((call.ended_ns - start) / 1e6)
        values["chunk_delta_ms"].extend((later.at_ns - earlier.at_ns) / 1e6 for earlier, later in pairwise(events))
        if (later := later_tokens(call)) > 0:
            values["tpot_ms"].append((call.ended_ns - events[0].at_ns) / 1e6 / later)
    rows: dict[str, list[float | None]] = {
        name: columns(values[name], COLUMNS) for name in ("ttft_ms", "tpot_ms", "chunk_delta_ms", "latency_ms")
    }
    slowest = percentile(values["tpot_ms"], 90)
    rows |= {
        "tps_per_user": [1000 / slowest if slowest else None],
        "system_tps": [rate(tokens, extent.ns)],
        "n_samples_completed": [good],
        "n_samples_failed": [failed],
    }
    return PeerTable("MLPerf Endpoints", COLUMNS, rows, DIFFERS)
