"""Writes benchmarks: files that compare several jobs of the NeMo Agent Toolkit, as scripts of its Dynamo example write them.

A benchmark is a CSV file and a Markdown report with a row for each concurrency, and an analysis of the throughput of each job.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytest_agentbench.exports.csv_files import write_rows
from pytest_agentbench.exports.nat_events import ProfilerEvent, seconds
from pytest_agentbench.exports.nat_profiler import BENCHMARK_COLUMNS, CALL_COLUMNS, CALLS, GAP_COLUMNS, GAPS
from pytest_agentbench.metrics.other_tools.nat import WHOLE, Throughput
from pytest_agentbench.records import Json
from pytest_agentbench.runs.run_file import Run


def add_events(throughput: Throughput, example: int, events: Iterable[ProfilerEvent]) -> None:
    """Adds the LLM calls of an example (an entry of the data set) to the throughput of a job. Events must be in order of time."""
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
    """Writes the CSV files CALLS (a row per LLM call) and GAPS (a row per gap between tokens).

    `exact`: texts in CALLS that spreadsheets treat as formulas are written unchanged.
    """
    write_rows(job / CALLS, CALL_COLUMNS, throughput.calls, exact=exact)
    write_rows(job / GAPS, GAP_COLUMNS, ((gap,) for gap in throughput.gaps))


#: Sections of an analysis: title, column, statistics and unit.
THROUGHPUT_SECTIONS = (
    ("Time To First Token (TTFT)", "ttft_{}_ms", WHOLE, "ms"),
    ("Global Statistics: Inter-Token Latency (ITL)", "itl_{}_ms", WHOLE, "ms"),
    ("Per-Call Average ITL:", "itl_percall_{}_ms", WHOLE[:4], "ms"),
    ("Per-Request Throughput", "per_request_throughput_{}_toks", WHOLE, "tok/s"),
)


def analysis(throughput: Throughput) -> str:
    """Returns the text of `analysis_<concurrency>.txt`, which shows the throughput of a job. Scripts find its numbers by their labels."""
    figures = throughput.figures()
    lines = [
        f"Total LLM Calls: {figures['total_llm_calls']}",
        f"Total Tokens Generated: {figures['total_tokens']:,}",
        f"Sum of LLM Durations: {figures['sum_of_durations_sec']:.2f}s",
        f"Wall-Clock Time: {figures['wall_clock_time_sec']:.2f}s",
        f"Concurrent Examples: {throughput.examples}",
    ]
    for title, column, statistics, unit in THROUGHPUT_SECTIONS:
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
    """Formats a value with two decimal places, as the scripts of the NeMo Agent Toolkit do. None becomes an empty text."""
    return "" if value is None else f"{value:.2f}"


WHOLE_NUMBERS = ("concurrency", "total_llm_calls", "total_tokens")

#: Sections of a concurrency level in the report: title, then lines of (label, column, unit).
SECTIONS: Sequence[tuple[str, Sequence[tuple[str, str, str]]]] = (
    (
        "**Dataset Overview:**",
        (
            ("Total LLM Calls", "total_llm_calls", ""),
            ("Total Tokens Generated", "total_tokens", ""),
            ("Sum of LLM Durations", "sum_of_durations_sec", "s"),
            ("Wall-Clock Time", "wall_clock_time_sec", "s"),
        ),
    ),
    ("**Time To First Token (TTFT):**", [(name.title(), f"ttft_{name}_ms", " ms") for name in WHOLE[:5]]),
    (
        "**Inter-Token Latency (ITL):**",
        [
            *((f"Global {name.title()}", f"itl_{name}_ms", " ms") for name in WHOLE[:2]),
            *((f"Per-Call {name.title()}", f"itl_percall_{name}_ms", " ms") for name in WHOLE[:2]),
        ],
    ),
    (
        "**Per-Request Throughput** (individual LLM call performance):",
        [(name.title(), f"per_request_throughput_{name}_toks", " tok/s") for name in WHOLE[:4]],
    ),
    (
        "**Aggregate Throughput** (total tokens / wall-clock time across all concurrent requests):",
        (("Aggregate", "aggregate_throughput_toks", " tok/s"), ("Speedup vs Per-Request Mean", "aggregate_speedup", "x")),
    ),
)

#: Columns of the table that the script prints: title, column and unit.
SUMMARY = (
    ("Per-Req (mean)", "per_request_throughput_mean_toks", " tok/s"),
    ("Aggregate", "aggregate_throughput_toks", " tok/s"),
    ("Speedup", "aggregate_speedup", "x"),
    ("TTFT (mean)", "ttft_mean_ms", " ms"),
    ("ITL (mean)", "itl_mean_ms", " ms"),
)


class Heading(NamedTuple):
    """The facts in the first lines of a benchmark's report."""

    name: str  # name of the benchmark
    date: str  # start of the run, ISO 8601
    configuration: str  # path of the suite.yaml

    @classmethod
    def of(cls, name: str, run: Run, group: str) -> Heading:
        """Returns the heading for the benchmark `name` of a run. `group` names a suite of the run, or a suite and variant."""
        suite = run.suites.get(group)
        return cls(name, run.started_at, f"{suite.folder}/suite.yaml" if suite and suite.folder else "unknown")


def write_benchmark(heading: Heading, measured: Sequence[tuple[int | None, Throughput]], folder: Path) -> None:
    """Writes the files of a benchmark. `measured` has the (concurrency, throughput) of each job."""
    folder.mkdir(parents=True)
    rows: list[Json] = []
    used: set[str] = set()
    for concurrency, throughput in sorted(measured, key=lambda each: each[0] or 0):
        rows.append({"concurrency": concurrency, **throughput.figures()})
        name = next(name for name in _names(f"analysis_{concurrency}") if name not in used)
        used.add(name)
        (folder / f"{name}.txt").write_text(analysis(throughput), encoding="utf-8")
    (folder / "benchmark_report.md").write_text("\n".join(_report(heading, rows)) + "\n", encoding="utf-8")
    write_rows(
        folder / "benchmark_results.csv", BENCHMARK_COLUMNS, ([_cell(name, row[name]) for name in BENCHMARK_COLUMNS] for row in rows)
    )


def _report(heading: Heading, rows: Sequence[Json]) -> Iterator[str]:
    """Yields the lines of benchmark_report.md in the layout of the toolkit's script: heading, summary table, a section for each row."""
    yield "# Dynamo Concurrency Benchmark Report"
    yield ""
    yield f"**Benchmark Name:** {heading.name}  "
    yield f"**Date:** {heading.date}  "
    yield f"**Config:** {heading.configuration}"
    levels = ", ".join(str(row["concurrency"]) for row in rows)
    yield from ("", "## Summary", "", f"This benchmark evaluates performance across different concurrency levels ({levels}).", "")
    yield f"| Concurrency | {' | '.join(title for title, _, _ in SUMMARY)} |"
    yield f"|---|{'---|' * len(SUMMARY)}"
    for row in rows:
        yield f"| {row['concurrency']} | {' | '.join(_shown(row, column, unit) for _, column, unit in SUMMARY)} |"
    yield from ("", "## Results", "")
    for row in rows:
        yield from ("", f"### Concurrency = {row['concurrency']}")
        for title, figures in SECTIONS:
            yield from ("", title)
            yield from (f"- {label}: {_shown(row, column, unit)}" for label, column, unit in figures)
        yield from ("", "---", "")


def _shown(row: Json, column: str, unit: str) -> str:
    """Returns a value of a row as the report shows it: as in the CSV file, with its unit, or `N/A` if it is missing.

    `total_tokens` has commas for thousands.
    """
    value = _cell(column, row[column])
    if value in ("", None):
        return "N/A"
    return f"{value:,}{unit}" if column == "total_tokens" else f"{value}{unit}"


def _names(name: str) -> Iterator[str]:
    """Yields a name, then the name with numbers from 2 on."""
    yield name
    yield from (f"{name}_{number}" for number in range(2, 10_000))


def _cell(name: str, value: Any) -> object:
    return value if name in WHOLE_NUMBERS else rounded(value)
