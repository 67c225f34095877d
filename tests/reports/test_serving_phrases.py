"""Phrases about serving speed, timing quality and server metrics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_agentbench.backends.telemetry.engine_stats import CacheHits, Gauge, GpuUse, ServerCounts, ServingSummary
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.performance import (
    GoodputSummary,
    PartOfTime,
    PerformanceSummary,
    SteadyCalls,
    SteadyRates,
    SteadyRollouts,
    WindowSummary,
)
from pytest_agentbench.metrics.stopwatch import SATURATED, Stopwatch
from pytest_agentbench.metrics.timeline import PART_NAMES, InFlight
from pytest_agentbench.records import Json
from pytest_agentbench.reports import serving_phrases
from pytest_agentbench.stats.quantiles import LatencySpread, latency_spread
from tests.amounts import amounts
from tests.made_runs import run_of

NOTHING = run_of().performance
READING = Stopwatch(verdict="ok", clean_share=1.0, read_lag_ms=0.02, client_queue_ms=1.25, tap_cpu=0.2)


def nothing_but(**metrics: LatencySpread | float | None) -> PerformanceSummary:
    """Returns a summary with only some metrics."""
    return replace(NOTHING, metrics={**NOTHING.metrics, **metrics})


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({}, ["ok"]),
        ({"verdict": "warn", "reasons": ("a queue",)}, ["warn", "a queue"]),
        ({"verdict": SATURATED, "reasons": ("a", "b")}, [f"{SATURATED}, timing gates are INCONCLUSIVE", "a; b"]),
        ({"verdict": None}, ["no verdict", "no call was streamed, so only the whole time of each call (E2E) was measured"]),
    ],
)
def test_timings(keys: Json, parts: list[str]) -> None:
    """The verdict comes first, then its reasons, without figures. A saturated client makes timing gates inconclusive."""
    stopwatch = replace(READING, **keys)

    assert parts == serving_phrases.timing(stopwatch).split(": ")
    assert serving_phrases.timing(stopwatch) in serving_phrases.timing_of_run(stopwatch)


def test_delayed_acknowledgements() -> None:
    """The sentence has the share of the calls. Without such calls there is none."""
    assert ["40 ", "23.6 %"] == [each for each in ("40 ", "23.6 %") if each in _delayed(0.236)]
    assert "" == _delayed(0.0)


def _delayed(share: float) -> str:
    return serving_phrases.delayed_acknowledgements(replace(READING, delayed_ack_share=share))


def test_unusable_timings() -> None:
    """The first page has the verdict, and different texts for a saturated client and for timings that are partly unusable."""
    warn, saturated = (serving_phrases.timing_trouble(replace(READING, verdict=verdict)) for verdict in ("warn", SATURATED))

    assert (True, True) == ("(warn)" in warn, f"({SATURATED})" in saturated)
    assert warn.replace("warn", "") != saturated.replace(SATURATED, "")


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({}, [["100.0 %"], ["0.02 ms"], ["1.2 ms"], ["20.0 %"]]),
        ({"read_lag_ms": None, "client_queue_ms": None, "tap_cpu": None}, [["100.0 %"]]),
        ({"tap_cpu": 0.0, "pool_cpu": 0.5}, [["100.0 %"], ["0.02 ms"], ["1.2 ms"], ["0.0 %"], ["50.0 %"]]),
        (
            {"clean_share": 0.9, "late_share": 0.05, "late_calls_share": 0.5, "client_queue_ms": None, "tap_cpu": None},
            [["90.0 %"], ["5.0 %"], ["50.0 %"], ["0.02 ms"]],
        ),
        ({"clean_share": None}, [[]]),
    ],
)
def test_evidence_of_timings(keys: Json, parts: list[list[str]]) -> None:
    """The text has the known figures behind the verdict."""
    text = serving_phrases.timing_evidence(replace(READING, **keys))

    assert parts == [amounts(part) for part in text.split(", ")]
    assert bool(text) == bool(parts[0])


def test_failed_calls() -> None:
    """Failed calls are counted by kind, with its meaning. A kind of a newer version is unknown."""
    assert ("2 rate_limited: HTTP 429", "1 odd: unknown") == (
        serving_phrases.failed_kind("rate_limited", 2),
        serving_phrases.failed_kind("odd", 1),
    )
    failed = replace(NOTHING, calls=15, failed_calls={"cut": 8, "connect": 1})
    assert ["9", "15", "8", "1"] == amounts(serving_phrases.failed_calls(failed))
    assert ["9", "15", "8", "1"] == amounts(serving_phrases.failed_of_all(failed))
    assert ("", "") == (serving_phrases.failed_calls(NOTHING), serving_phrases.failed_of_all(NOTHING))


def test_goodput() -> None:
    """The text counts good calls, missed objectives, and calls that could not be judged."""
    found = GoodputSummary({"ttft": 500.0, "e2e": 30_000.0}, 9, 1, 0, {"ttft": 0}, 0.9, 1.5)
    all_good, missed, unknown = ["9", "10", "90.0 %", "1.50", "500 ms", "30000 ms"], replace(found, missed={"ttft": 1}), 2

    assert all_good == amounts(serving_phrases.goodput(found))
    assert [*all_good, "1"] == amounts(serving_phrases.goodput(missed))
    assert [*all_good, "1", "2"] == amounts(serving_phrases.goodput(replace(missed, unknown_calls=unknown)))


def test_split() -> None:
    """Each known part has its share."""
    parts = ("decoding", "first_token", "tools", "client_queue", "agent")
    split = {name: PartOfTime(share, 0.0, None) for share, name in enumerate(parts)}

    texts = serving_phrases.split(split).split(", ")

    assert [f"{PART_NAMES[name]} {share}00.0 %".replace(" 000.0", " 0.0") for share, name in enumerate(parts)] == texts
    assert ["64.9 %"] == amounts(serving_phrases.time_of("tools", PartOfTime(0.649, 0.0, None)))


def test_a_run_without_streams() -> None:
    """Without a streamed call the speed is E2E, and the wait is for the answer, not for a token."""
    whole = latency_spread([300.0, 335.3, 400.0])
    assert whole is not None
    without = nothing_but(e2e_ms=whole)

    text = serving_phrases.speed(without, READING)

    assert text.startswith("E2E 335.3 ms (median)")
    assert (False, True) == tuple(map(serving_phrases.is_streamed, (without, nothing_but(ttft_ms=whole, e2e_ms=whole))))
    share = PartOfTime(0.586, 0.0, None)
    assert "58.6 % of the rollouts' time went to waiting for the answer" == serving_phrases.time_of("first_token", share, False)
    assert "waiting for the answer 58.6 %" == serving_phrases.split({"first_token": share}, False)


def test_dashes_are_explained() -> None:
    """Missing percentiles are explained. The text is empty if none is missing."""
    full = latency_spread([1.0] * 100)
    assert full is not None

    assert "" == serving_phrases.few_values(nothing_but(ttft_ms=full))
    assert ["10", "20", "100"] == amounts(serving_phrases.few_values(nothing_but(ttft_ms=replace(full, p99=None))))
    assert ("", ["12.0 ms"]) == (serving_phrases.high_latency(None), amounts(serving_phrases.high_latency(12.0)))


def test_throughput() -> None:
    """The text has the rates. Unknown values are called unknown, but zero is not."""
    rates: Json = {"output_tokens_per_s": 840.04, "rollouts_per_hour": 1234.5, "speedup": 12.345, "call_prefix_cache_hit_ratio": 0.5}
    known, cold = (
        replace(nothing_but(**rates, prefix_cache_hit_ratio=each), rollouts_in_flight=InFlight(48, 40.26)) for each in (0.754, 0.0)
    )

    assert ["840.0", "12.35", "1,234", "0.75", "0.50", "48", "40.3"] == amounts(serving_phrases.throughput(known))
    assert (["0", "0.0"], True) == (
        amounts(serving_phrases.throughput(NOTHING)),
        "hit ratio unknown" in serving_phrases.throughput(NOTHING),
    )
    assert "0.00" in amounts(serving_phrases.throughput(cold))


def test_rates_that_are_not_shown_elsewhere() -> None:
    """The throughput has each known rate that is not shown elsewhere."""
    named, others = (
        {name: value for value, name in enumerate(registry.rates(), 1001) if (name in serving_phrases.NAMED_METRICS) is is_named}
        for is_named in (True, False)
    )
    text = serving_phrases.throughput(nothing_but(**{name: float(value) for name, value in {**named, **others}.items()}))

    assert all(f"{value:,}" in text for value in others.values())
    assert f"{named['goodput_per_s']:,}" not in text
    assert f"{named['calls_per_minute']:,}" not in text


def test_calls() -> None:
    """The text has the number of calls, their time span, the sources of token counts, and the kinds of failed calls."""
    calls = replace(NOTHING, calls=350, span_s=12.34, token_sources={"usage": 350}, stamps={"user": 350})
    failed = replace(calls, failed_calls={"cut": 2, "connect": 1}, token_sources={"usage": 1, "chunks": 1}, stamps={})

    assert ["350", "12.3 s"] == amounts(serving_phrases.calls(calls))
    assert serving_phrases.calls(calls).endswith("from usage, timestamps: user")
    assert ["350", "2", "1", "12.3 s"] == amounts(serving_phrases.calls(failed))
    assert "(2 cut, 1 connect)" in serving_phrases.calls(failed)
    assert serving_phrases.calls(failed).endswith("from usage, chunks, timestamps: none")
    assert ["0", "350", "12.3 s"] == amounts(serving_phrases.tokens_and_calls(calls))


def test_steady() -> None:
    """Rates have the time in which the concurrency was reached, or the text says that it never was."""
    window = (3.56, 0.684, 1074.5)
    steady = SteadyRates(8, 0, SteadyRollouts(*window, rollouts_per_hour=2100.0), None)

    of_rollouts, of_calls = serving_phrases.steady(replace(NOTHING, steady=steady)).split("; ")
    assert ["1,074.5", "2,100", "3.6 s", "68.4 %", "90 %", "8"] == amounts(of_rollouts)
    assert (["90 %", "8"], True) == (amounts(of_calls), of_calls.startswith("at no time were "))
    _, of_calls = serving_phrases.steady(replace(NOTHING, steady=replace(steady, calls=SteadyCalls(*window)))).split("; ")
    assert ["1,074.5", "3.6 s", "68.4 %", "90 %", "8"] == amounts(of_calls)


@pytest.mark.parametrize(
    ("seconds", "calls", "numbers"),
    [(0.0, 0, ["5 s", "6 s", "4.0 s"]), (0.9, 0, ["5 s", "6 s", "0.9 s"]), (0.02, 2, ["2", "20.0 ms", "5 s", "6 s"])],
)
def test_empty_and_short_windows(seconds: float, calls: int, numbers: list[str]) -> None:
    """An empty window has its limits and the length of the run. A short window is not shown as 0.0 s."""
    unknown = dict.fromkeys(registry.rates())
    text = serving_phrases.chosen_window(WindowSummary(5.0, 6.0, seconds, 4.0, calls, 0, unknown, {}))

    assert numbers == amounts(text)
    assert text.startswith("- " if calls else "no")


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
GPU = GpuUse(looks=9, used_mib_max=70_000, total_mib=81_559, sm_percent_mean=87.5, power_w_mean=None)


def test_the_prefix_cache_of_a_server() -> None:
    """The hit ratio has the name of its counter. Preemptions are shown if they are known."""
    unknown = replace(SERVING, prefix_cache=CacheHits(None, None, None), preemptions=None)

    assert (["0.62", "3"], True) == (
        amounts(serving_phrases.server_cache(SERVING)),
        "(vllm:prefix_cache_hits_total)" in serving_phrases.server_cache(SERVING),
    )
    assert ([], True) == (amounts(serving_phrases.server_cache(unknown)), serving_phrases.server_cache(unknown).endswith(" unknown"))
    assert ["0.62", "0"] == amounts(serving_phrases.server_cache(replace(SERVING, preemptions=0.0)))


def test_the_load_of_a_server() -> None:
    """Known load is shown, unless there are too few samples."""
    assert ["25.0 %", "50.0 %", "3.2", "8"] == amounts(serving_phrases.server_load(SERVING))
    assert serving_phrases.server_load(SERVING).endswith("waiting unknown")
    none, two = (serving_phrases.server_load(replace(SERVING, rounds=rounds, kv_usage=Gauge(0.0, 0.0))) for rounds in (0, 2))
    assert (["1 s"], ["2", "1 s"]) == (amounts(none), amounts(two))
    assert serving_phrases.server_load(replace(SERVING, rounds=3)) == serving_phrases.server_load(SERVING)


def test_disturbances_of_a_server() -> None:
    """Decreases of counters are counted. A gap in the sampling has its length and the sampling interval."""
    assert ("", ["2"]) == (serving_phrases.counter_resets(SERVING), amounts(serving_phrases.counter_resets(replace(SERVING, resets=2))))
    assert ["3.9 s", "1 s"] == amounts(serving_phrases.sampling_gap(replace(SERVING, longest_gap_s=3.9)))


def test_gpus() -> None:
    """Known memory, load and power of a GPU are shown, unless there are too few samples."""
    assert (["70,000", "81,559 MiB", "87.5 %"], True) == (
        amounts(serving_phrases.gpu(GPU, 1.0)),
        "power unknown" in serving_phrases.gpu(GPU, 1.0),
    )
    assert ["70,000", "81,559 MiB", "0.0 %", "512 W"] == amounts(
        serving_phrases.gpu(replace(GPU, sm_percent_mean=0.0, power_w_mean=511.6), 1.0)
    )
    assert ["1", "1 s"] == amounts(serving_phrases.gpu(replace(GPU, looks=1), 1.0))
    assert ["70,000", "81,559 MiB"] == amounts(serving_phrases.gpu(replace(GPU, sm_percent_mean=None), 1.0))
