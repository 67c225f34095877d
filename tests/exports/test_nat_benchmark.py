"""benchmark_report.md has a heading, a table of all concurrencies, and a section for each."""

from __future__ import annotations

from pathlib import Path

from tests.exports.test_nat_export import exported, vector

REPORT = """\
# Dynamo Concurrency Benchmark Report

**Benchmark Name:** shop\x20\x20
**Date:** 2026-03-04T05:06:07+00:00\x20\x20
**Config:** /repository/scenarios/shop/suite.yaml

## Summary

This benchmark evaluates performance across different concurrency levels (16).

| Concurrency | Per-Req (mean) | Aggregate | Speedup | TTFT (mean) | ITL (mean) |
|---|---|---|---|---|---|
| 16 | 6.00 tok/s | 6.67 tok/s | 1.11x | 200.00 ms | 80.00 ms |

## Results


### Concurrency = 16

**Dataset Overview:**
- Total LLM Calls: 3
- Total Tokens Generated: 8
- Sum of LLM Durations: 1.30s
- Wall-Clock Time: 1.20s

**Time To First Token (TTFT):**
- Mean: 200.00 ms
- Median: 200.00 ms
- P90: 280.00 ms
- P95: 290.00 ms
- P99: 298.00 ms

**Inter-Token Latency (ITL):**
- Global Mean: 80.00 ms
- Global Median: 100.00 ms
- Per-Call Mean: 83.33 ms
- Per-Call Median: 83.33 ms

**Per-Request Throughput** (individual LLM call performance):
- Mean: 6.00 tok/s
- Median: 5.00 tok/s
- P90: 7.40 tok/s
- P95: 7.70 tok/s

**Aggregate Throughput** (total tokens / wall-clock time across all concurrent requests):
- Aggregate: 6.67 tok/s
- Speedup vs Per-Request Mean: 1.11x

---

"""


def test_the_report(tmp_path: Path) -> None:
    """The report has the layout of the toolkit's report, and the numbers of the reference's example."""
    out = exported(tmp_path / "out", vector(tmp_path / "run"))

    assert REPORT == (out / "benchmarks/shop/benchmark_report.md").read_text(encoding="utf-8")
