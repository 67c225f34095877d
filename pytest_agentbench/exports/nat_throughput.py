"""Throughput as `throughput_analysis.py` of the NeMo Agent Toolkit's example counts it, from the events of the profiler.

By its definitions: within an example a call is a start and the next end in time, a token is an event, and a call without tokens is none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

from pytest_agentbench.exports.csv_files import write_rows
from pytest_agentbench.exports.nat_profile import ProfilerEvent, seconds
from pytest_agentbench.exports.nat_schema import CALL_COLUMNS, CALLS, GAP_COLUMNS, GAPS
from pytest_agentbench.metrics.other_tools.nat import WHOLE, Throughput


def add_events(throughput: Throughput, example: int, events: Iterable[ProfilerEvent]) -> None:
    """Adds the calls of an example, whose events are in the order of time."""
    timed = [(float(seconds(event.at)), event) for event in events if event.kind.startswith("LLM_")]
    tokens = [at for at, event in timed if event.kind == "LLM_NEW_TOKEN"]
    number, start = 0, None
    for at, event in timed:
        if event.kind == "LLM_START":
            number, start = number + 1, at
        elif event.kind == "LLM_END" and start is not None:
            throughput.add(example, number, event.name, (start, at), tokens[bisect_right(tokens, start) : bisect_right(tokens, at)])
            start = None


def write_calls(throughput: Throughput, job: Path, *, exact: bool) -> None:
    """Writes CALLS, `exact` as CsvFile has it, and GAPS."""
    write_rows(job / CALLS, CALL_COLUMNS, throughput.calls, exact=exact)
    write_rows(job / GAPS, GAP_COLUMNS, ((gap,) for gap in throughput.gaps))


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
