"""Metrics of settings: measured, and read from the simulator's report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.records import Json
from pytest_agentbench.simulation.figures import measured, replayable, simulated, supported
from pytest_agentbench.tables import read_tables
from tests.made_runs import run_directory
from tests.tables.shop import ALL, call, rollout

#: The report of Dynamo 1.4.2 on 309 calls of the banking suite, with two workers, 800 blocks of 16 tokens and a KV router.
REPORT: Json = json.loads((Path(__file__).parent / "report.json").read_text(encoding="utf-8"))


def test_report_of_the_simulator() -> None:
    """Every metric is read by its name, durations in seconds. Without objectives there is no goodput."""
    figures = simulated(REPORT, 309, {"ttft": 300})

    assert (309, 70_138.01114890625) == (REPORT["completed_requests"], REPORT["duration_ms"])
    assert 70.138 == pytest.approx(figures.duration_s, abs=0.001)
    assert (REPORT["median_ttft_ms"], REPORT["p99_ttft_ms"]) == (figures.ttft_p50_ms, figures.ttft_p99_ms)
    assert (REPORT["median_tpot_ms"], REPORT["median_e2e_latency_ms"]) == (figures.tpot_p50_ms, figures.e2e_p50_ms)
    assert (REPORT["prefix_cache_reused_ratio"], REPORT["goodput_request_throughput_rps"]) == (figures.hit_ratio, figures.goodput_per_s)
    assert simulated(REPORT, 309, {}).goodput_per_s is None


def test_p99_of_few_calls_is_none() -> None:
    """p99 is missing for fewer than 100 calls, because it would be the maximum."""
    assert simulated({**REPORT, "completed_requests": 99}, 99, {}).ttft_p99_ms is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"completed_requests": 12}, "replayed only 12 of 309 calls"), ({"median_ttft_ms": None}, "does not have the format of Dynamo 1.4.2")],
)
def test_incomplete_reports(changes: Json, sentence: str) -> None:
    """A report with dropped calls or missing numbers is refused."""
    with pytest.raises(BackendError, match=sentence):
        simulated({**REPORT, **changes}, 309, {})


def test_measured_calls_are_the_replayed_ones(tmp_path: Path) -> None:
    """Judge calls and failed calls do not count.

    The duration is from the first request to the last answer, and hits are those of the usage.
    """
    calls = replayable(read_tables([run_directory(tmp_path / "run", *ALL)]).calls)
    figures = measured(calls, {"ttft": 150}, server_hits=0.1)

    assert 3 == len(calls)
    assert 200 == figures.ttft_p50_ms
    assert 1.3 == pytest.approx(figures.duration_s)
    assert 0.6 == pytest.approx(figures.hit_ratio)
    assert 1 / 1.3 == pytest.approx(figures.goodput_per_s)


def test_hits_without_usage(tmp_path: Path) -> None:
    """The hit ratio is that of the calls' usage, or else that of the server's counters, or else unknown."""
    calls = read_tables([run_directory(tmp_path / "run", rollout(calls=(call(0, 10, end=20, cached_tokens=None),)))]).calls

    assert [0.25, None] == [measured(calls, {}, server).hit_ratio for server in (0.25, None)]


@pytest.mark.parametrize(
    ("objectives", "sentence"),
    [
        ({"itl": 50}, "does not support the objective itl; use --slo with"),
        ({"ttft": 1, "e2e": 2}, "either the objective e2e, or ttft and tpot"),
    ],
)
def test_objectives_that_the_simulator_lacks(objectives: dict[str, Any], sentence: str) -> None:
    """Objectives that the simulator does not support are refused, not ignored."""
    with pytest.raises(ConfigError, match=sentence):
        supported(objectives)
