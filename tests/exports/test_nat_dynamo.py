"""`dynamo_metrics` of inference_optimization.json, from samples of Dynamo's metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_agentbench.backends.telemetry.engine_calls import EngineCalls
from pytest_agentbench.backends.telemetry.engine_use import EngineUse
from pytest_agentbench.backends.telemetry.kv_cache import KvCacheUse
from pytest_agentbench.exports.nat_dynamo import COUNTERS, FRONTEND, GAUGES, ITL, NAMES, RATES, TTFT, dynamo_metrics, histogram_quantile
from pytest_agentbench.records import Json, Rollout
from tests.made_runs import run_of

ROLLOUT = Rollout("shop", "s0", "default", 1, "ok", started_at=1.0, started_ns=1, ended_ns=1_000_000_001)
INFLIGHT, QUEUED = f"{FRONTEND}inflight_requests", f"{FRONTEND}queued_requests"

#: Series of a frontend, and their values in three rounds of samples, two seconds apart.
SERIES: list[tuple[str, dict[str, str], tuple[float, float, float]]] = [
    (f"{FRONTEND}cached_tokens_sum", {}, (100, 300, 500)),
    (f"{FRONTEND}input_sequence_tokens_sum", {}, (1000, 1000, 1800)),
    (f"{FRONTEND}requests_total", {"status": "success"}, (10, 12, 16)),
    (f"{FRONTEND}requests_total", {"status": "error"}, (0, 0, 2)),
    (f"{FRONTEND}output_tokens_total", {}, (0, 40, 80)),
    (INFLIGHT, {}, (0, 3, 0)),
    (QUEUED, {}, (0, 0, 0)),
    (TTFT, {"le": "0.1"}, (5, 5, 5)),
    (TTFT, {"le": "0.2"}, (5, 8, 13)),
    (TTFT, {"le": "+Inf"}, (5, 9, 15)),
]


def sampled(directory: Path, service: str = "frontend") -> Path:
    """Writes samples of a frontend's metrics to a run directory."""
    lines: list[Json] = []
    for number in range(3):
        line: Json = {"round": number, "at": 100.0 + 2 * number, "ns": number, "service": service, "replica": 0}
        line["values"] = [[place, values[number]] for place, (_, _, values) in enumerate(SERIES)]
        lines.append(line | ({"first": True, "series": [[name, labels] for name, labels, _ in SERIES]} if number == 0 else {}))
    with (directory / "samples.jsonl").open("a") as file:
        file.write("".join(f"{json.dumps(line)}\n" for line in lines))
    return directory


def test_numbers(tmp_path: Path) -> None:
    """Rates are increases over the time of all samples, gauges are means, and quantiles are Prometheus'. What is not known is null."""
    cache = KvCacheUse("worker", 0, 16, 9, 0, 0, 0, 9, 0, calls=3, prompt_tokens=800, hit_tokens=400, joined=9)
    found = dynamo_metrics(run_of(ROLLOUT, kv_cache=(cache,)), sampled(tmp_path), "")
    assert found is not None
    known = {name: value for name, value in found.items() if value is not None}

    assert [*NAMES, "collection_timestamp", "prometheus_url", "errors"] == [*found]
    assert {
        "kve_cached_tokens_rate": 100.0,
        "kve_prompt_tokens_rate": 200.0,
        "kve_device_blocks_rate": 25 / 4,
        "ttft_p50": pytest.approx(0.1 + 0.1 * 5 / 8),
        "ttft_p95": 0.2,
        "ttft_p99": 0.2,
        "inflight_requests_frontend": 1.0,
        "queued_requests": 0.0,
        "requests_per_minute": 120.0,
        "token_throughput": 20.0,
        "collection_timestamp": 104.0,
        "errors": [],
    } == known


def test_numbers_of_an_arm(tmp_path: Path) -> None:
    """If arms have a stack each, an arm has the numbers of its own services. Other runs have those of all."""
    sampled(sampled(tmp_path, "a.frontend"), "b.frontend")
    uses = [EngineUse(arm, (EngineCalls(f"{arm}.frontend", 0, "dynamo", 1),), {}, 1, 0, 1, 0, 0) for arm in ("a", "b")]
    rates = [
        numbers["token_throughput"]
        for run in (run_of(ROLLOUT, engines=tuple(uses)), run_of(ROLLOUT))
        for arm in ("a", "c")
        if (numbers := dynamo_metrics(run, tmp_path, arm))
    ]

    assert [20.0, 40.0, 40.0, 40.0] == rates


def test_other_backends(tmp_path: Path) -> None:
    """A run without Dynamo's frontend has no such numbers."""
    line = {"round": 0, "at": 1.0, "ns": 1, "service": "vllm", "replica": 0, "first": True, "series": [["sglang:num_running_reqs", {}]]}
    assert None is dynamo_metrics(run_of(ROLLOUT), tmp_path, "")

    (tmp_path / "samples.jsonl").write_text(json.dumps({**line, "values": [[0, 1.0]]}) + "\n")
    assert None is dynamo_metrics(run_of(ROLLOUT), tmp_path, "")


def test_names() -> None:
    """Each number that is read from metrics is one of the toolkit's, and all of its names have a source."""
    percentiles = {f"{name}_p{q}" for name in ("ttft", "itl") for q in (50, 95, 99)}

    assert {*NAMES} == {*RATES} | {*GAUGES} | percentiles
    assert {TTFT, ITL} < COUNTERS


@pytest.mark.parametrize(
    ("buckets", "median"),
    [
        ({}, None),
        ({1.0: 0.0, float("inf"): 0.0}, None),
        ({1.0: 4.0, 2.0: 4.0, float("inf"): 4.0}, 0.5),
        ({1.0: 1.0, 2.0: 3.0, float("inf"): 4.0}, 1.5),
        ({1.0: 1.0, float("inf"): 4.0}, 1.0),
        ({1.0: 1.0}, None),
    ],
)
def test_quantiles(buckets: dict[float, float], median: float | None) -> None:
    """A quantile is linear within a bucket, and at most the highest finite limit. Histograms without observations have none."""
    assert median == histogram_quantile(0.5, buckets)
