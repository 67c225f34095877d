"""Computes the metrics that GuideLLM would report for the calls of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pytest_agentbench.metrics.other_tools import PeerTable
from pytest_agentbench.metrics.other_tools.measures import Extent, called_ns, rate
from pytest_agentbench.metrics.timings import output_tokens
from pytest_agentbench.records import LLMCall

COLUMNS = ("mean", "median", "p95", "p99")
DIFFERS = (
    "ITL is one number per call, (last - first token) / (tokens - 1), weighted by tokens - 1, so it does not show stalls.",
    "TPOT is (last token - start) / tokens, weighted by tokens, so it includes TTFT.",
    "Request latency ends with the body. The clock starts when the request is sent, as ours does.",
    "Percentiles are not interpolated: they are the least value with that share of the weight at or below it.",
    "Its throughputs are means of a distribution over the measured window; here they are totals over the time of the run.",
    "The tool uses the wall clock, which may jump; these timestamps are monotonic.",
)

Weighted = list[tuple[float, float]]  # pairs of value and weight


def guidellm(calls: Iterable[LLMCall]) -> PeerTable:
    latency: Weighted = []
    ttft: Weighted = []
    itl: Weighted = []
    tpot: Weighted = []
    extent = Extent()
    good = failed = total = 0
    for call in calls:
        events = call.output
        if call.error_kind or not events:
            failed += 1
            continue
        start = called_ns(call) if call.sent_ns is None else call.sent_ns
        tokens, first, last = output_tokens(call), events[0].at_ns, events[-1].at_ns
        good += 1
        total += tokens
        extent.add(start, call.ended_ns)
        latency.append(((call.ended_ns - start) / 1e9, 1))
        ttft.append(((first - start) / 1e6, 1))
        if tokens > 1:
            itl.append(((last - first) / 1e6 / (tokens - 1), tokens - 1))
        if tokens:
            tpot.append(((last - start) / 1e6 / tokens, tokens))
    rows: dict[str, list[float | None]] = {
        "Request Latency (s)": _columns(latency),
        "TTFT (ms)": _columns(ttft),
        "ITL (ms)": _columns(itl),
        "TPOT (ms)": _columns(tpot),
        "Requests/s": [rate(good, extent.ns)],
        "Output tokens/s": [rate(total, extent.ns)],
        "Successful requests": [good],
        "Errored requests": [failed],
    }
    return PeerTable("GuideLLM", COLUMNS, rows, DIFFERS)


def _columns(values: Weighted) -> list[float | None]:
    if not values:
        return [None] * len(COLUMNS)
    weight = math.fsum(weight for _, weight in values)
    center = math.fsum(value * weight for value, weight in values) / weight
    return [center, *(_percentile(sorted(values), share * weight) for share in (0.5, 0.95, 0.99))]


def _percentile(ordered: Sequence[tuple[float, float]], share: float) -> float:
    below = 0.0
    for value, weight in ordered:
        below += weight
        if below >= share:
            return value
    return ordered[-1][0]
