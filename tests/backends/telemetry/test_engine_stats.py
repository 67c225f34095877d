"""Statistics from samples: literal samples in, literal numbers out."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_agentbench.backends.telemetry.crosscheck import Client, disagreements
from pytest_agentbench.backends.telemetry.engine_stats import GUESS, SampleTally, ServerCounts, prefix_cache, server, tally
from pytest_agentbench.backends.telemetry.engine_stats import summary as engine_stats
from pytest_agentbench.backends.telemetry.samples import GpuSample, Sample, Series
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.records import Attempt, Chunk, Json, LLMCall, Rollout

MS = 1_000_000  # nanoseconds


def sample(at: int, values: dict[str, float], replica: int = 0, gone: tuple[str, ...] = (), **keys: Any) -> Sample:
    """A sample of round `at`. A series is written NAME or NAME{label}, and NaN is not a number."""

    def series(written: str) -> Series:
        name, _, label = written.partition("{")
        return Series(("engine", replica), name, (("engine", label),))

    told = {series(name): value for name, value in values.items() if not math.isnan(value)}
    unknown = frozenset(series(name) for name, value in values.items() if math.isnan(value))
    return Sample(at, at * MS, ("engine", replica), values=told, unknown=unknown, gone=frozenset(map(series, gone)), **keys)


HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
RUNNING, USAGE = "vllm:num_requests_running", "vllm:kv_cache_usage_perc"


def summary(found: SampleTally) -> Json:
    """Returns the statistics as in run.json."""
    stats: Json = plain(engine_stats(found))
    return stats


def test_sums_over_series_and_replicas() -> None:
    """Counters count from the first sample, over all replicas of all engines. A series that appears later started at 0."""
    found = summary(
        tally(
            [
                sample(0, {f"{HITS}{{0": 100, f"{QUERIES}{{0": 1000, "vllm:num_preemptions_total": 7}, first=True),
                sample(0, {HITS: 5, QUERIES: 50}, replica=1, first=True),
                sample(1, {f"{HITS}{{0": 130, f"{QUERIES}{{0": 1060, f"{HITS}{{1": 10, f"{QUERIES}{{1": 20}),
                sample(1, {HITS: 15, QUERIES: 70}, replica=1),
            ],
            None,
        )
    )

    assert {"hit_ratio": 0.5, "hit_tokens": 50, "queried_tokens": 100, "source": HITS} == found["prefix_cache"]
    assert (0, 0) == (found["preemptions"], found["resets"])


def test_missing_numbers() -> None:
    """A cache without lookups has no hit ratio. Numbers that no server reports are None."""
    found = summary(tally([sample(0, {HITS: 3, QUERIES: 9}, first=True), sample(1, {})], None))

    assert {"hit_ratio": None, "hit_tokens": None, "queried_tokens": None, "source": None} == found["prefix_cache"]
    nothing: Json = {"mean": None, "max": None}
    assert (None, nothing, nothing, nothing, {}) == tuple(found[name] for name in ("preemptions", "running", "waiting", "kv_usage", "gpus"))
    assert {"kind": None, "prompt_tokens": None, "output_tokens": None, "first_tokens": 0.0, "ttft_ms": None} == found["server"]
    assert found == {**summary(tally([], None)), "rounds": 2}


@pytest.mark.parametrize(
    ("later", "hits", "resets"),
    [
        ([sample(1, {HITS: 4, QUERIES: 10})], 4, 1),
        ([sample(1, {}, gone=(HITS, QUERIES)), sample(2, {HITS: 60, QUERIES: 70})], 60, 1),
        ([sample(1, {}, failed="refused"), sample(2, {QUERIES: 10}, first=True), sample(3, {HITS: 2})], 2, 1),
        ([sample(1, {}, failed="timed out"), sample(2, {HITS: 52, QUERIES: 101}, first=True)], 2, 0),
    ],
    ids=["fell", "gone and back", "restarted while nobody looked", "only silent"],
)
def test_restarts(later: list[Sample], hits: float, resets: int) -> None:
    """A counter that fell or disappeared has started again at 0. A counter that was only not sampled for a while has not."""
    found = tally([sample(0, {HITS: 50, QUERIES: 100}, first=True), *later], None)

    assert (hits, resets) == (found.moved[HITS], found.resets)


@pytest.mark.parametrize("name", ["process_start_time_seconds", "vllm:request_success_created{stop"])
def test_a_restart_that_no_counter_shows(name: str) -> None:
    """If the start of a process has changed, its counters start at 0 again, although they are higher than before by now."""
    looks = [sample(0, {HITS: 50, QUERIES: 60, name: 1e9}, first=True), sample(1, {HITS: 70, QUERIES: 80, name: 2e9})]

    found = tally(looks, None)

    assert (70, 80, 1, {("engine", 0)}) == (found.moved[HITS], found.moved[QUERIES], found.resets, found.restarted)
    assert (5, 0) == ((same := tally([looks[0], sample(1, {HITS: 55, QUERIES: 60, name: 1e9}, first=True)], None)).moved[HITS], same.resets)


def test_gauges() -> None:
    """Requests are summed over all replicas, cache use is averaged. Each round counts once, and only while calls are in progress."""
    rounds = [
        sample(0, {RUNNING: 40, USAGE: 1.0}, first=True),
        sample(0, {RUNNING: 0}, replica=1, first=True),
        sample(5, {f"{RUNNING}": 4, USAGE: 0.5, "vllm:gpu_cache_usage_perc": 0.9, "vllm:num_requests_waiting": 1}),
        sample(5, {RUNNING: 2, f"{USAGE}{{1": 0.1, f"{USAGE}{{2": 0.3}, replica=1),
        sample(6, {RUNNING: 8}),
        sample(6, {}, replica=1, failed="refused"),
        sample(7, {}),
        sample(7, {RUNNING: 2}, replica=1, first=True),
        sample(9, {RUNNING: 100}),
    ]

    found = summary(tally(rounds, (4 * MS, 8 * MS)))

    assert (3, {"mean": 8.0, "max": 10.0}, {"mean": 1.0, "max": 1.0}) == (found["rounds"], found["running"], found["waiting"])
    assert {"mean": pytest.approx((0.3 + 0.5 + 0.5) / 3), "max": 0.5} == found["kv_usage"]
    assert 0 == found["resets"]


def test_nan() -> None:
    """A gauge with NaN has no value until it is a number again. A counter continues from its last value, also in a `first` line."""
    looks = [
        sample(0, {RUNNING: 4, HITS: 10}, first=True),
        sample(1, {RUNNING: math.nan, HITS: math.nan}),
        sample(2, {RUNNING: math.nan, HITS: math.nan}, first=True),
        sample(3, {RUNNING: 8, HITS: 12}),
    ]

    found = tally(looks, None)

    assert ([4, 8], 4, 2, 0) == (found.running, found.rounds, found.moved[HITS], found.resets)


@pytest.mark.parametrize(
    ("looks", "gap"),
    [([0, 1, 2, 5, 6], 0.003), ([3, 4, 5, 6], 0.002), ([0, 1, 2], 0.003), ([0, 9], 0.004), ([], 0.004), ([8, 9], 0.004)],
    ids=["between", "before the first", "after the last", "around", "none", "too late"],
)
def test_gaps(looks: list[int], gap: float) -> None:
    """The longest time without a sample while calls are in progress includes the times before the first and after the last one."""
    found = summary(tally([sample(at, {RUNNING: 1}, first=True) for at in looks], (1 * MS, 5 * MS)))

    assert gap == pytest.approx(found["longest_gap_s"])


def test_gpus() -> None:
    """GPUs have their peak memory and mean load and power while calls are in progress. Without samples, only the name is known."""
    gpu = [
        GpuSample(number, number * MS, "0", used, 81_559, busy, watts)
        for number, used, busy, watts in ((0, 9, 0.0, 70.0), (1, 600, 50.0, None), (2, 500, 100.0, 300.0))
    ]

    found = summary(tally(gpu, (MS, 2 * MS)))

    assert {"0": {"looks": 2, "used_mib_max": 600, "total_mib": 81_559, "sm_percent_mean": 75.0, "power_w_mean": 300.0}} == found["gpus"]
    nothing = dict.fromkeys(("used_mib_max", "total_mib", "sm_percent_mean", "power_w_mean"))
    assert {"0": {"looks": 0, **nothing}} == summary(tally(gpu, (3 * MS, 4 * MS)))["gpus"]


@pytest.mark.parametrize(
    ("moved", "ratio", "source"),
    [
        ({"sglang:cached_tokens_total": 30.0, "sglang:prompt_tokens_total": 40.0}, 0.75, "sglang:cached_tokens_total"),
        (
            {
                "dynamo_frontend_cached_tokens_sum": 20.0,
                "dynamo_frontend_cached_tokens_count": 2.0,
                "dynamo_frontend_input_sequence_tokens_sum": 80.0,
                f"{GUESS}_sum": 9.0,
                f"{GUESS}_count": 10.0,
            },
            0.25,
            "dynamo_frontend_cached_tokens_sum",
        ),
        (
            {
                "dynamo_frontend_cached_tokens_sum": 0.0,
                "dynamo_frontend_cached_tokens_count": 0.0,
                "dynamo_frontend_input_sequence_tokens_sum": 80.0,
                f"{GUESS}_sum": 9.0,
                f"{GUESS}_count": 10.0,
            },
            0.9,
            GUESS,
        ),
        ({f"{GUESS}_sum": 0.0, f"{GUESS}_count": 0.0}, None, None),
        ({HITS: 0.0, QUERIES: 80.0}, 0.0, HITS),
    ],
    ids=["sglang", "dynamo frontend", "frontend that is not told", "router that does not look", "no hits"],
)
def test_the_source_of_cache_hits(moved: dict[str, float], ratio: float | None, source: str | None) -> None:
    """The best source that reports hits is used. A source that reports none does not count as one with 0 hits."""
    found = prefix_cache(moved)

    assert (ratio, source) == (found.hit_ratio, found.source)


def test_the_server_nearest_to_the_client() -> None:
    """A frontend's counts are preferred to those of its engines, unless it counted nothing."""
    engine = {"vllm:generation_tokens_total": 70.0, "vllm:prompt_tokens_total": 500.0}
    ttft = "dynamo_frontend_time_to_first_token_seconds"
    frontend = {"dynamo_frontend_output_sequence_tokens_sum": 60.0, f"{ttft}_sum": 0.5, f"{ttft}_count": 10.0}

    assert ServerCounts("dynamo", None, 60.0, 10.0, 50.0) == server({**engine, **frontend})
    assert "vllm" == server({**engine, "dynamo_frontend_output_sequence_tokens_sum": 0.0}).kind


def client(*calls: LLMCall, **keys: Any) -> Client:
    found = Client()
    found.add(Rollout("shop", "a", "default", 1, status="ok", calls=calls, **keys))
    return found


def call(ttft: int = 10, **keys: Any) -> LLMCall:
    """A call with a first token after this many milliseconds."""
    usage: Json = {"prompt_tokens": 1000, "completion_tokens": 100, **keys}
    return LLMCall(received_ns=0, sent_ns=0, ended_ns=900 * MS, chunks=(Chunk(ttft * MS, "content"),), **usage)


def counted(prompt: float, output: float, first: float = 0, ttft: float | None = None) -> ServerCounts:
    return ServerCounts("vllm", prompt, output, first, ttft)


def test_counts_that_agree() -> None:
    """Counts may differ by one percent, or one token for each call. Without calls or a server that counts, nothing is compared."""
    two = client(call(), call())

    assert [] == disagreements(counted(2019, 198), two)
    assert [] == disagreements(counted(9, 9), Client())
    assert [] == disagreements(ServerCounts(), two)


def test_counts_that_do_not() -> None:
    """A difference has an explanation. Failed calls and attempts without a record excuse a higher count of the server."""
    two = client(call(), call())
    failed = client(call(), call(), call(error_kind="cut"))
    retried = client(call(), call(), earlier_attempts=(Attempt(1, "infra_error"),))
    attempts = [Attempt(session, "infra_error", session=session, calls=(call(),)) for session in (1, 9)]
    earlier = client(call(), earlier_attempts=(*attempts,))
    uncounted = client(call(), call(completion_tokens=None))
    more = "vllm counts 2,021 prompt tokens, the answers' usage 2,000: another client used the server, too"
    less = "vllm counts 197 output tokens, the answers' usage 200: not all calls reached the sampled servers"

    assert [more, less] == disagreements(counted(2021, 197), two) == disagreements(counted(2021, 197), earlier)
    assert [less] == disagreements(counted(2021, 197), failed) == disagreements(counted(2021, 197), retried)
    assert [] == disagreements(counted(2021, 197), uncounted)


@pytest.mark.parametrize(("calls", "accused"), [(0, True), (3, False), (None, False)])
def test_calls_without_a_record(calls: int | None, accused: bool) -> None:
    """Interrupted calls excuse a higher count, too, and so does an unknown number of them."""
    two = client(call(), call())
    two.add_unrecorded(calls)

    assert accused == bool(disagreements(counted(2021, 200), two))


@pytest.mark.parametrize(
    ("ours", "theirs", "end"),
    [
        (10, 5.1, None),
        (10, 4.9, "reports a mean TTFT of 4.9 ms, the tap 10.0 ms: the difference was spent between server and tap"),
        (100, 81.0, None),
        (100, 79.0, "reports a mean TTFT of 79.0 ms, the tap 100.0 ms: the difference was spent between server and tap"),
        (100, 130.0, "reports a mean TTFT of 130.0 ms, the tap 100.0 ms: the server measured other calls, or a clock is wrong"),
    ],
)
def test_ttft(ours: int, theirs: float, end: str | None) -> None:
    """Mean TTFTs may differ by a fifth, or by 5 ms, if both are of the same number of calls."""
    two = client(call(ours), call(ours))

    assert [f"vllm {end}"] * bool(end) == disagreements(counted(2000, 200, 2, theirs), two)
    assert [] == disagreements(counted(2000, 200, 3, theirs), two)
    assert [] == disagreements(counted(2000, 200), two)
