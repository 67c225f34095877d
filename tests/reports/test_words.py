"""How reports say numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.backends.telemetry.engine_stats import CacheHits, Gauge, GpuUse, ServerCounts, ServingSummary
from pytest_agentbench.metrics.goodput import GoodputSummary
from pytest_agentbench.metrics.performance import PartOfTime, PerformanceSummary
from pytest_agentbench.metrics.stopwatch import Stopwatch
from pytest_agentbench.metrics.windows import InFlight
from pytest_agentbench.records import Chunk, Json, LLMCall, Rollout, Score
from pytest_agentbench.reports.markdown import write
from pytest_agentbench.reports.markup import table
from pytest_agentbench.reports.words import (
    calls_text,
    dataset_text,
    doubt_lines,
    failed_lines,
    few_text,
    goodput_text,
    mean_text,
    number,
    percent,
    range_text,
    retried_text,
    score_text,
    server_lines,
    significant,
    split_text,
    statuses_text,
    stopwatch_figures,
    stopwatch_text,
    throughput_text,
    tools_text,
)
from pytest_agentbench.runs.results import RetriedMeans
from pytest_agentbench.stats.percentiles import LatencySpread, latency_spread
from pytest_agentbench.suites.suite import DatasetInfo
from tests.made_runs import gate_result, mean, rule_result, run_of

NOTHING = run_of().performance


def nothing_but(**metrics: LatencySpread | float | None) -> PerformanceSummary:
    """Nothing but some metrics."""
    return replace(NOTHING, metrics={**NOTHING.metrics, **metrics})


def test_means() -> None:
    """A mean has its interval, or says that there is none, or that nothing was measured."""
    assert "0.612 [0.571, 0.653]" == mean_text(mean(0.6123, 0.5712, 0.6528))
    assert "0.500 (no interval)" == mean_text(mean(0.5, None, None))
    assert "0.000 [0.000, 0.000]" == mean_text(mean(0.0, 0.0, 0.0))
    assert "not measured" == mean_text(None)


def test_scores() -> None:
    """A score is said with what it is over; without an interval, or a value, nothing is said of one."""
    assert "0.500 [0.250, 0.750] mean, 95 % interval of the suite over 100 scenarios" == score_text(mean(scenarios=100))
    assert "0.500 mean over 1 scenario, no interval" == score_text(mean(low=None, high=None, scenarios=1))
    assert "not measured" == score_text(None)


def test_shares() -> None:
    """Less than all never says 100 %."""
    assert ("100.0 %", "99.9 %", "12.3 %", "below 0.1 %", "0.0 %") == tuple(map(percent, (1.0, 0.99999, 0.1234, 0.0001, 0.0)))
    assert "-" == percent(None)
    assert ("[1.0, 2.5]", "") == (range_text((1.0, 2.5)), range_text(None))


READING = Stopwatch(verdict="ok", clean_share=1.0, read_lag_ms=0.02, client_queue_ms=1.25, tap_cpu=0.2)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({}, "ok"),
        ({"verdict": "warn", "reasons": ("a queue",)}, "warn: a queue"),
        ({"verdict": "client-saturated", "reasons": ("a", "b")}, "client-saturated, timing gates are INCONCLUSIVE: a; b"),
        ({"verdict": None}, "no verdict: no call was measured"),
    ],
)
def test_stopwatch(keys: Json, text: str) -> None:
    """The verdict comes first, then why it is not better; what it stands on is for the page."""
    assert text == stopwatch_text(replace(READING, **keys))


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({}, "100.0 % of the stamps clean, read lag p99 0.02 ms, client queue p99 1.2 ms, tap at most 20.0 % of a core"),
        ({"read_lag_ms": None, "client_queue_ms": None, "tap_cpu": None}, "100.0 % of the stamps clean"),
        (
            {"clean_share": 0.9, "late_share": 0.05, "late_calls_share": 0.5, "client_queue_ms": None, "tap_cpu": None},
            "90.0 % of the stamps clean, 5.0 % shared because they were read late, those of 50.0 % of the calls, read lag p99 0.02 ms",
        ),
        ({"clean_share": None}, ""),
    ],
)
def test_figures_of_the_stopwatch(keys: Json, text: str) -> None:
    """What the verdict stands on, as far as it is known."""
    assert text == stopwatch_figures(replace(READING, **keys))


def test_failed_calls() -> None:
    """Failed calls by kind, with what the kind means; one of a newer version is unknown."""
    assert ["2 rate_limited: HTTP 429", "1 odd: unknown"] == failed_lines(replace(NOTHING, failed_calls={"rate_limited": 2, "odd": 1}))


def test_goodput() -> None:
    """Good calls of those that could be judged, what was missed, and what could not be judged."""
    found = GoodputSummary({"ttft": 500.0, "e2e": 30_000.0}, 9, 1, 0, {"ttft": 0}, 0.9, 1.5)

    assert "9 of 10 calls good (90.0 %), 1.50 good calls/s under ttft <= 500 ms, e2e <= 30000 ms" == goodput_text(found)
    assert goodput_text(replace(found, missed={"ttft": 1}, unknown_calls=2)).endswith("; missed: 1 ttft; 2 could not be judged")


def test_split() -> None:
    """Every part has its share."""
    parts = ("decoding", "first_token", "tools", "client_queue", "agent")
    split = {name: PartOfTime(share, 0.0, None) for share, name in enumerate(parts)}

    assert "decoding 0.0 %, waiting for the first token 100.0 %, tools 200.0 %, client queue 300.0 %, agent 400.0 %" == split_text(split)


def test_dashes_are_explained() -> None:
    """A percentile that is missing has a reason; where none is, there is nothing to explain."""
    full = latency_spread([1.0] * 100)
    assert full is not None

    assert "" == few_text(nothing_but(ttft_ms=full))
    assert "a dash is too few values: p90 needs 10, p95 needs 20, p99 needs 100" == few_text(nothing_but(ttft_ms=replace(full, p99=None)))


def test_statuses() -> None:
    """What happened is counted, what did not is left out."""
    assert "97 ok, 3 limit" == statuses_text({"ok": 97, "limit": 3, "agent_error": 0})
    assert "none" == statuses_text({"ok": 0})


def test_numbers() -> None:
    """Numbers have one digit and separated thousands unless told otherwise; nothing is a dash, zero is not nothing."""
    assert ("1,234.6", "1,235", "0.500", "0.0", "-") == (number(1234.56), number(1234.56, 0), number(0.5, 3), number(0), number(None))


def test_throughput() -> None:
    """One line on how much was served; what is not known is said to be unknown."""
    rates: Json = {"output_tokens_per_s": 840.04, "rollouts_per_hour": 1234.5, "speedup": 12.345, "call_prefix_cache_hit_ratio": 0.5}
    known, cold = (
        replace(nothing_but(**rates, prefix_cache_hit_ratio=each), rollouts_in_flight=InFlight(48, 40.26)) for each in (0.754, 0.0)
    )

    assert (
        "840.0 output tok/s (12.35 times the mean of a call), 1,234 rollouts/h, prefix cache hit ratio 0.75 (0.50 mean of calls), "
        "in flight 48 peak, 40.3 mean"
    ) == throughput_text(known)
    assert "- output tok/s, - rollouts/h, prefix cache hit ratio unknown, in flight 0 peak, 0.0 mean" == throughput_text(NOTHING)
    assert "prefix cache hit ratio 0.00" in throughput_text(cold)


def test_significant() -> None:
    """Four digits that count, however small a number is, and one behind the point at least."""
    assert ("0.0001235", "0.2500", "12.35", "12,345.7", "-12.35", "0.0", "-") == tuple(
        map(significant, (0.00012345678, 0.25, 12.3456, 12345.67, -12.3456, 0, None))
    )


def test_calls() -> None:
    """One line on the calls behind the numbers, failed ones by kind."""
    calls = replace(NOTHING, calls=350, span_s=12.34, token_sources={"usage": 350}, stamps={"user": 350})

    assert "350 LLM calls in 12.3 s, token counts from usage, stamps: user" == calls_text(calls)
    failed = replace(calls, failed_calls={"cut": 2, "connect": 1}, token_sources={"usage": 1, "chunks": 1}, stamps={})
    assert "350 LLM calls (2 cut, 1 connect) in 12.3 s, token counts from usage, chunks, stamps: none" == calls_text(failed)


def test_data_sets() -> None:
    """A data set is named with its size, its label source and the beginning of its hash."""
    data = DatasetInfo("agentbench banking", "f", "data.json", "0123456789abcdef", "hand", 100)
    suite = replace(run_of().suites["shop"], dataset=data)

    assert "agentbench banking: 100 scenarios, labels: hand, sha256 0123456789ab" == dataset_text(suite)


def test_tools() -> None:
    """Tools are listed in order, repeats included; no tools are none."""
    assert ("find, order, find", "none") == (tools_text(["find", "order", "find"]), tools_text([]))


def test_tables() -> None:
    """A table has a rule under its header; bars and line breaks do not break its cells."""
    assert ["| a | b |", "| --- | --- |", "| x \\| y | two lines |", "|  | 1 |"] == [
        *table(["a", "b"], [["x | y", "two\nlines"], ["", "1"]])
    ]


SERVING = ServingSummary(
    looks=12,
    every_s=1.0,
    cpu_s=0.1,
    longest_gap_s=1.2,
    rounds=9,
    resets=0,
    prefix_cache=CacheHits(0.625, 5.0, 8.0, "vllm:prefix_cache_hits_total"),
    kv_usage=Gauge(0.25, 0.5),
    running=Gauge(3.25, 8.0),
    waiting=Gauge(None, None),
    preemptions=3.0,
    server=ServerCounts(),
    gpus={},
    disagreements=(),
    notes=(),
)


def test_what_the_server_says() -> None:
    """Cache, load and preemptions are told where they are known, restarts where there were some, GPUs where there are any."""
    quiet = replace(SERVING, rounds=0, resets=2, prefix_cache=CacheHits(None, None, None), preemptions=None)
    gpu = GpuUse(looks=9, used_mib_max=70_000, total_mib=81_559, sm_percent_mean=87.5, power_w_mean=None)

    assert [
        ("server", "prefix cache hit ratio 0.62 (vllm:prefix_cache_hits_total), 3 preemptions"),
        ("server", "KV cache 25.0 % mean, 50.0 % peak; requests: running 3.2 mean 8 peak, waiting unknown"),
        ("GPU 0", "70,000 of 81,559 MiB at most, 87.5 % busy, power unknown"),
    ] == [*server_lines(replace(SERVING, gpus={"0": gpu}))]
    assert [
        ("server", "prefix cache hit ratio unknown"),
        ("server", "KV cache and requests: too short to sample, no look in the time of the calls (one comes every 1 s)"),
        ("server", "counters fell 2 times: something was started again"),
    ] == [*server_lines(quiet)]
    once = replace(gpu, looks=1, sm_percent_mean=0.0)
    assert [
        ("server", "KV cache and requests: too short to sample, 2 looks in the time of the calls (one comes every 1 s)"),
        ("GPU 0", "too short to sample, 1 look in the time of the calls (one comes every 1 s)"),
    ] == [*server_lines(replace(SERVING, rounds=2, kv_usage=Gauge(0.0, 0.0), gpus={"0": once}))][1:]
    late = ("server", "up to 3.9 s without a look, which should come every 1 s")
    assert [late] == [*server_lines(replace(SERVING, longest_gap_s=3.9))][2:]
    assert [("differs", "a"), ("sampling", "b")] == doubt_lines(replace(SERVING, disagreements=("a",), notes=("b",)))


ASKED = ({"role": "user", "content": "Is there a lamp?"},)


def test_a_report(tmp_path: Path) -> None:
    """The report names verdict, backend, data set and label source; a low score with its tools; an error with its first line."""
    low = Rollout("shop", "s|0", "default", 1, status="ok", scores={"tsq": Score(0.25)}, expected=({"tool": "find"},), messages=ASKED)
    lost = Rollout("shop", "s-1", "default", 1, status="agent_error", reason="KeyError: 'x'\nTraceback")

    lines = write(run_of(low, lost, backend=replace(run_of().backend, note="a baseline")), tmp_path).read_text().splitlines()

    facts = "shop tsq 0.125 [0.000, 1.000]; 1 of 2 rollouts (50 %) ended as agent_error; 1 of 3 planned rollouts (33.3 %) were not run"
    assert f"# Run 20260304-050607: PASS; {facts}" == lines[0]
    assert {
        "> a baseline",
        "Data set the shop: 3 scenarios, labels: hand, sha256 000000000000.",
        "Rollouts: 1 ok, 1 agent_error; none was tried more than once.",
        "| `s\\|0` | 0.250 | `Is there a lamp?` | `find` | `none` |",
        "| `s-1` | agent_error | `KeyError: 'x'` |",
    } <= set(lines)


def test_a_report_of_pass_rates(tmp_path: Path) -> None:
    """Scenarios whose trials did not all pass, the worst first, and how many others there are; nothing with one trial of each."""
    many = [Rollout("shop", f"s-{at}", "default", trial, "ok", scores={"tsq": Score(trial > at)}) for at in range(25) for trial in (1, 2)]

    text = write(run_of(*many), tmp_path).read_text()

    assert "### Pass rates\n\n0.060 [" in text
    assert " of the trials, those with tsq >= 0.5; pass@2 0.080 [0.000, " in text
    assert ", pass^2 0.040 [0.000, " in text
    assert "| `s-10` | 0 of 2 | 0.000 to 0.842 |" in text
    assert "1 scenario passed in all of their trials; 4 more are in run.json." in text
    assert "Pass rates" not in write(run_of(*many[::2]), tmp_path).read_text()


def test_a_report_of_timings(tmp_path: Path) -> None:
    """Intervals stand beside percentiles, dashes where values are too few; failed calls are infinite in a row of their own."""
    chunks = (Chunk(10_000_000, "content"), Chunk(30_000_000, "content"))
    good = LLMCall(0, 0, 40_000_000, chunks, called_ns=0, completion_tokens=2)
    cut = LLMCall(0, 0, 40_000_000, error_kind="cut")
    lines = write(run_of(Rollout("shop", "s", "default", 1, "ok", ended_ns=50_000_000, calls=(*[good] * 9, cut))), tmp_path).read_text()

    assert {
        "| milliseconds | n | mean | min | p50 | p90 | p95 | p99 | max |",
        "| TTFT | 9 | 10.0 | 10.0 | 10.0 [10.0, 10.0] | - | - | - | 10.0 |",
        "| TTFT, failed calls as never | 10 | - | - | 10.0 | never | - | - | never |",
        "| output tok/s of a call | 9 | 50.0 | 50.0 | 50.0 [50.0, 50.0] | - | - | - | 50.0 |",
        "| decoding | 60.0 % | 30.0 | 30.0 |",
        "- failed: 1 cut: the connection closed in the middle of the answer, or before it",
    } <= set(lines.splitlines())


def test_a_report_without_calls(tmp_path: Path) -> None:
    """A run in which no LLM was called has a sentence where others have a table of latencies."""
    text = write(run_of(Rollout("shop", "s", "default", 1, "ok")), tmp_path).read_text()

    assert "No LLM call was measured, so there are no latencies." in text
    assert "| milliseconds |" not in text


def test_a_report_says_what_it_stands_on(tmp_path: Path) -> None:
    """What was planned, asked for, changed and judged is in the report, and what failed; what did not happen is not."""
    quiet = write(run_of(), tmp_path).read_text()
    run = run_of(Rollout("shop", "s-0", "default", 1, status="ok", score_errors={"tsq": "KeyError: 'x'"}))
    run = replace(
        run,
        backend=replace(run.backend, failure="the engine died"),
        settings=replace(run.settings, changes={"agent.seed": 1}),
        gate=gate_result("INCONCLUSIVE", rule_result("tsq.mean >= 0.8 of run", "INCONCLUSIVE", reason="the scorer failed")),
    )

    text = write(run, tmp_path).read_text()

    assert {
        "Backend `embedded`, model `m`, 8 rollouts in flight asked for.",
        "Planned 3 rollouts, 2 finished, 1 not run. pytest's exit status: 0.",
        "Timings: **no verdict: no call was measured**.",
        "- command: `pytest -q`",
        "- Python 3.11, x, 2 CPUs, not in a git repository",
        "- packages: pytest 9",
    } <= set(text.splitlines()) & set(quiet.splitlines())
    told = (
        "the engine died",
        "- 1 rollout: scorer tsq failed: KeyError: 'x', first in s-0",
        "- **shop tsq.mean >= 0.8 of run: INCONCLUSIVE**\n  - the scorer failed",
        '- changed for this run: `{"agent.seed": 1}`',
    )
    for words in told:
        assert (True, False) == (words in text, words in quiet)
    assert "- changed for this run: none" in quiet


@pytest.mark.parametrize("reason", ["", "\n", "half a \ud83d letter"])
def test_odd_reasons_do_not_break_a_report(tmp_path: Path, reason: str) -> None:
    """An agent may fail without a word, or with one that no file can hold."""
    lost = Rollout("shop", "s-1", "default", 1, status="agent_error", reason=reason)

    assert "| `s-1` | agent_error |" in write(run_of(lost), tmp_path).read_text()


def test_a_report_of_nothing(tmp_path: Path) -> None:
    """A run without a rollout has a report as well."""
    assert "not measured" in write(run_of(), tmp_path).read_text()


def test_rollouts_that_were_tried_again() -> None:
    """Their scores are beside those of the others; where none of them was measured there is nothing to compare."""
    suite = run_of().suites["shop"]
    measured = replace(suite, retried=2, retried_scores={"tsq": RetriedMeans(mean(0.5, None, None), mean(0.6, None, None))})
    lost = replace(suite, retried=2, retried_scores={"tsq": RetriedMeans(None, mean(0.6, None, None))})

    assert "2 tried more than once: tsq 0.500 (no interval) against 0.600 (no interval) of the others" == retried_text(measured)
    assert "2 tried more than once" == retried_text(lost)
    assert not retried_text(suite)
