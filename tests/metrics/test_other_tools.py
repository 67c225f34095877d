"""Metrics of streams as other tools define them, with values calculated by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.metrics.other_tools import PEERS, PeerTable, load_peer
from pytest_agentbench.records import Chunk, LLMCall

MS = 1_000_000  # nanoseconds

#: A role alone, reasoning, 4 + 4 tokens in two events, a pause, a tool call, the finish reason in an event of its own, and usage.
#: 11 tokens: 1 + 4 + 4 + 1 + 1.
STREAM = (
    (60, "role"),
    (220, "reasoning"),
    (260, "content"),
    (300, "content"),
    (800, "content"),
    (820, "tool_call"),
    (840, "finish"),
    (845, "usage"),
)


def call(*events: tuple[int, str], called: int | None = 0, sent: int | None = 20, end: int = 850, **keys: Any) -> LLMCall:
    """Returns a call. Times are milliseconds."""
    chunks = tuple(Chunk(at * MS, kind) for at, kind in events)
    return LLMCall(
        received_ns=5 * MS,
        sent_ns=None if sent is None else sent * MS,
        ended_ns=end * MS,
        chunks=chunks,
        called_ns=None if called is None else called * MS,
        **keys,
    )


ONE = call(*STREAM, completion_tokens=11, prompt_tokens=100, token_source="usage")
CUT = call((100, "content"), end=200, error_kind="cut")
ERROR_EVENT = call((120, "content"), (220, "content"), end=300, error_kind="error_event", completion_tokens=2)


def figures(tool: str, *calls: LLMCall) -> PeerTable:
    return load_peer(tool)(iter(calls))


def value(tool: str, row: str, column: str = "", calls: tuple[LLMCall, ...] = (ONE,)) -> float | None:
    found = figures(tool, *calls)
    return found.rows[row][found.columns.index(column)]


@pytest.mark.parametrize(
    ("tool", "row", "column", "expected"),
    [
        ("vllm-bench", "Mean TTFT (ms)", "", 60),  # to the bare role
        ("vllm-bench", "Mean E2EL (ms)", "", 840),  # to the finish reason
        ("vllm-bench", "Mean TPOT (ms)", "", (840 - 60) / 10),
        ("vllm-bench", "Mean ITL (ms)", "", (840 - 60) / 6),  # the gaps after the role and before the finish reason count
        ("vllm-bench", "Median ITL (ms)", "", 40),
        ("vllm-bench", "P99 ITL (ms)", "", 500 - 0.05 * (500 - 160)),
        ("vllm-bench", "Output token throughput (tok/s)", "", 11 / 0.85),
        ("vllm-bench", "Total token throughput (tok/s)", "", 111 / 0.85),
        ("aiperf", "Time to First Token (ms)", "avg", 220),
        ("aiperf", "Time to Second Token (ms)", "avg", 40),
        ("aiperf", "Time to First Output Token (ms)", "avg", 260),  # not the reasoning
        ("aiperf", "Request Latency (ms)", "avg", 820),  # to the last event with text
        ("aiperf", "Inter Token Latency (ms)", "p99", (820 - 220) / 10),  # one number per call hides the pause
        ("aiperf", "Inter Chunk Latency (ms)", "max", 500),
        ("aiperf", "Inter Chunk Latency (ms)", "std", math.sqrt((2 * 110**2 + 350**2 + 130**2) / 4)),
        ("aiperf", "Output Token Throughput Per User (tokens/sec/user)", "avg", 1000 / 60),
        ("aiperf", "Output Token Throughput (tokens/sec)", "avg", 11 / 0.82),
        ("guidellm", "TTFT (ms)", "mean", 200),  # from the send
        ("guidellm", "ITL (ms)", "p99", 60),
        ("guidellm", "TPOT (ms)", "mean", 800 / 11),  # including the TTFT
        ("guidellm", "Request Latency (s)", "median", 0.83),  # to the end of the body
        ("guidellm", "Output tokens/s", "mean", 11 / 0.83),
        ("nat", "TTFT (ms)", "mean", 60),
        ("nat", "ITL, global (ms)", "mean", (845 - 60) / 7),  # to the usage
        ("nat", "Total Tokens Generated", "mean", 8),  # events
        ("nat", "Throughput per call (tok/s)", "median", 8 / 0.85),
        ("mlperf", "ttft_ms", "p90", 220),
        ("mlperf", "tpot_ms", "p90", (850 - 220) / 10),  # from the first event to the end of the answer
        ("mlperf", "chunk_delta_ms", "p50", 40),
        ("mlperf", "tps_per_user", "mean", 1000 / 63),
    ],
)
def test_one_stream(tool: str, row: str, column: str, expected: float) -> None:
    """One stream has the expected metrics by the definitions of each tool."""
    assert value(tool, row, column) == pytest.approx(expected)


def test_nat_in_its_own_example() -> None:
    """The figures equal those of the toolkit's script for three calls with tokens. A call without tokens is left out."""
    token = "content"
    calls = [
        call((200, token), (250, token), (350, token), (400, token), end=500),
        call((1100, token), called=1000, sent=None, end=1200),
        call((400, token), (500, token), (600, token), called=100, end=700),
        call(called=1000, end=1400),
    ]
    found = figures("nat", *calls)

    rows = {
        "TTFT (ms)": (200, 200, 280, 290, 298, 100, 300),
        "ITL, global (ms)": (80, 100, 100, 100, 100, 50, 100),
        "ITL, mean per call (ms)": (83.333, 83.333, 96.667, 98.333, 99.667, 66.667, 100),
        "Throughput per call (tok/s)": (6, 5, 7.4, 7.7, 7.94, 5, 8),
        "Total LLM Calls": (3,),
        "Total Tokens Generated": (8,),
        "Sum of LLM Durations (s)": (1.3,),
        "Wall-Clock Time (s)": (1.2,),
        "Aggregate Throughput (tok/s)": (6.667,),
        "Speedup": (1.111,),
    }
    assert rows == {name: pytest.approx(found.rows[name], abs=1e-3) for name in rows}


def test_failed_calls_by_tool() -> None:
    """A stream with an error event counts as a success for two tools, and a closed connection for none."""
    calls = (ONE, CUT, ERROR_EVENT)

    assert {"vllm-bench": (2, 1), "aiperf": (2, 1), "guidellm": (1, 2), "mlperf": (1, 2)} == {
        tool: tuple(figures(tool, *calls).rows[name][0] for name in names)
        for tool, names in {
            "vllm-bench": ("Successful requests", "Failed requests"),
            "aiperf": ("Request Count (requests)", "Error Request Count (requests)"),
            "guidellm": ("Successful requests", "Errored requests"),
            "mlperf": ("n_samples_completed", "n_samples_failed"),
        }.items()
    }
    assert 1 == figures("nat", *calls).rows["Total LLM Calls"][0]


@pytest.mark.parametrize(
    ("kind", "good"),
    [
        ("error_event", True),
        ("incomplete", True),
        ("empty", True),
        ("bad_tool_call", True),
        ("cut", False),
        ("bad_json", False),
        ("server_error", False),
        ("timeout_idle", False),
    ],
)
def test_ends_that_vllm_bench_does_not_see(kind: str, good: bool) -> None:
    """After an event with choices, only a failed connection, HTTP status or JSON is a failure. Without one, every call failed."""
    spoken = figures("vllm-bench", call((100, "content"), error_kind=kind)).rows
    silent = figures("vllm-bench", call((100, "usage"), error_kind=kind)).rows

    assert ([int(good)], [int(not good)]) == (spoken["Successful requests"], spoken["Failed requests"])
    assert ([0], [1]) == (silent["Successful requests"], silent["Failed requests"])


def test_vllm_bench_has_a_version() -> None:
    """The definition of a failure changes between versions, so the table names the version and the definition."""
    found = figures("vllm-bench", ONE)

    assert "vllm bench serve of vLLM 0.32, backend openai-chat" == found.title
    assert 1 == sum(each.startswith("A call failed if it has no event with choices") for each in found.differs)


@pytest.mark.parametrize("failed", [1, 2, 5])
@pytest.mark.parametrize("name", ["Time to First Token (ms)", "Request Latency (ms)", "Inter Token Latency (ms)"])
def test_aiperf_adjusts_for_failures(name: str, failed: int) -> None:
    """Failed calls count as infinite.

    Percentiles use numpy's `nearest`; mean and maximum are infinite. Without failed calls there is no adjusted row.
    """
    good = [call((20 + 10 * each, "content"), (100 + 25 * each, "content"), completion_tokens=3) for each in range(7)]
    found = figures("aiperf", *good, *[CUT] * failed)
    values = [value("aiperf", name, "avg", (each,)) for each in good]
    expected = np.percentile([*values, *[math.inf] * failed], [99, 90, 50], method="nearest")

    assert [math.inf, min(value for value in values if value), math.inf, *expected, None] == found.rows[f"adj_ {name}"]
    assert f"adj_ {name}" not in figures("aiperf", *good).rows


def test_guidellm_weighs_by_tokens() -> None:
    """Calls are weighted by tokens (2 tokens of 100 ms and 9 of 10 ms), and percentiles are measured values."""
    slow = call((100, "content"), (200, "content"), completion_tokens=2, sent=0)
    fast = call((100, "content"), (190, "content"), completion_tokens=10, sent=0)

    assert (100 + 9 * 10) / 10 == pytest.approx(value("guidellm", "ITL (ms)", "mean", (slow, fast)))
    assert (10, 100) == tuple(value("guidellm", "ITL (ms)", column, (slow, fast)) for column in ("median", "p99"))


def test_an_unknown_start_of_a_call() -> None:
    """If the client did not report when it called, the clock starts when the request is sent."""
    silent = call(*STREAM, called=None, completion_tokens=11)

    assert (200, 200) == (value("aiperf", "Time to First Token (ms)", "avg", (silent,)), value("guidellm", "TTFT (ms)", "mean", (silent,)))


@pytest.mark.parametrize("tool", PEERS)
@pytest.mark.parametrize("calls", [(), (CUT,), (call(completion_tokens=3),), (call((30, "content"), end=30, completion_tokens=0),)])
def test_calls_without_values(tool: str, calls: tuple[LLMCall, ...]) -> None:
    """Without calls, successful calls, events or tokens, values are unknown, and no error is raised."""
    found = figures(tool, *calls)

    assert found.differs
    assert not any(math.isnan(value) for values in found.rows.values() for value in values if value is not None)


@pytest.mark.parametrize("tool", PEERS)
def test_tables(tool: str) -> None:
    """Each row has one value, or one per column. Each table lists its differences."""
    found = figures(tool, ONE, CUT)

    assert {True} == {len(row) in (1, len(found.columns)) for row in found.rows.values()}
    assert 3 <= len(found.differs)


def test_an_unknown_tool() -> None:
    """The error for an unknown tool lists the known ones."""
    with pytest.raises(ConfigError, match="no tool 'vllm'; known: aiperf, guidellm, mlperf, nat, vllm-bench"):
        load_peer("vllm")
