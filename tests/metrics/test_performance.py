"""Serving metrics of a run: literal records in, literal numbers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_agentbench.lib.codec import plain
from pytest_agentbench.metrics.performance import PerformanceSettings, objectives_of, summarize
from pytest_agentbench.metrics.stopwatch import VERSION, CpuShares, Machine, Stopwatch, cpu_shares, greatest_shares, stopwatch_of
from pytest_agentbench.metrics.terms import Terms
from pytest_agentbench.records import Attempt, Chunk, Json, LLMCall, Program, Rollout, ToolCall
from tests.frames import frame_of, scenarios_of

MS = 1_000_000  # nanoseconds


def rollout(scenario: str, status: str = "ok", **keys: Any) -> Rollout:
    return Rollout("shop", scenario, "default", 1, status=status, **{"ended_ns": MS, **keys})


def call(sent: int | None, *chunks: int, end: int, **keys: Any) -> LLMCall:
    """Returns a call with the times of sending and of content events in milliseconds."""
    stamps = tuple(Chunk(at * MS, "content") for at in chunks)
    return LLMCall(received_ns=0, sent_ns=None if sent is None else sent * MS, ended_ns=end * MS, chunks=stamps, **keys)


def measured(*rollouts: Rollout, **asked: Any) -> Json:
    """Returns the performance of rollouts as in run.json."""
    summary: Json = plain(summarize(frame_of(*rollouts), PerformanceSettings(**asked)))
    return summary


def stopwatch(*rollouts: Rollout, cpu: Mapping[str, Sequence[tuple[int, int, float]]] | None = None, **slo: float) -> Stopwatch:
    """Returns the timing quality on a machine with four cores. CPU samples are of session 1."""
    part = scenarios_of(*rollouts, terms=Terms(objectives_of(slo)))
    return stopwatch_of(part, cpu_shares(part, cpu or {}, 1), 4)


def test_timings() -> None:
    """Latencies are computed from timestamps of calls. Rates are over the time from the first start to the last end."""
    usage: Json = {"prompt_tokens": 100, "cached_tokens": 75, "token_source": "usage"}
    one = call(10, 30, 40, 60, end=70, called_ns=5 * MS, completion_tokens=4, **usage)
    two = call(100, 140, end=150, completion_tokens=2, **usage)
    found = measured(rollout("a", calls=(one, two), started_ns=0, ended_ns=500 * MS), rollout("b", started_ns=500 * MS, ended_ns=2000 * MS))

    assert (2, 2.0, 6, 200, 0.75) == tuple(
        found[name] for name in ("calls", "span_s", "output_tokens", "prompt_tokens", "prefix_cache_hit_ratio")
    )
    assert (3.0, 3600.0) == (found["output_tokens_per_s"], found["rollouts_per_hour"])
    means = {
        name: found[name] and found[name]["mean"] for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "client_queue_ms", "rollout_ms")
    }
    assert {"ttft_ms": 30.0, "itl_ms": 15.0, "tpot_ms": 10.0, "e2e_ms": 55.0, "client_queue_ms": 5.0, "rollout_ms": 1000.0} == means
    assert ({"usage": 2}, {"user": 2}) == (found["token_sources"], found["stamps"])


def test_failed_calls_count_in_no_rate() -> None:
    """A failed call has no latencies and no tokens, and an unmeasured rollout adds no throughput. Both are counted."""
    good = call(10, 20, end=30, completion_tokens=5)
    cut = call(40, 50, end=60, completion_tokens=7, error_kind="cut")
    never = call(None, end=70, error_kind="connect")
    found = measured(
        rollout("a", calls=(good, cut, never), started_ns=0, ended_ns=1000 * MS),
        rollout("b", "infra_error", started_ns=0, ended_ns=500 * MS),
    )

    assert (3, {"cut": 1, "connect": 1}, 5, 5.0, 3600.0) == tuple(
        found[name] for name in ("calls", "failed_calls", "output_tokens", "output_tokens_per_s", "rollouts_per_hour")
    )
    assert (1, 10.0) == (found["ttft_ms"]["n"], found["ttft_ms"]["max"])
    assert {"peak": 1, "mean": 0.8} == found["calls_in_flight"]


def test_calls_of_all_attempts_count() -> None:
    """Calls of earlier attempts count for calls, failures, calls in flight, tokens, latencies and goodput.

    Duration, calls per minute and split of the time of a rollout use only its last attempt.
    """
    one = (call(0, 300, end=400, completion_tokens=7), call(500, end=600, error_kind="cut"))
    two = (call(1000, end=1500, error_kind="overloaded"),)
    three = (call(2000, 2010, end=3000, completion_tokens=3),)
    earlier = (
        Attempt(1, "infra_error", ended_ns=1000 * MS, calls=one),
        Attempt(2, "infra_error", started_ns=1000 * MS, ended_ns=2000 * MS, calls=two),
    )
    again = rollout("a", attempt=3, started_ns=2000 * MS, ended_ns=4000 * MS, earlier_attempts=earlier, calls=three)
    found = measured(again, slo={"ttft": 100.0})

    assert (4, {"cut": 1, "overloaded": 1}, 10) == tuple(found[name] for name in ("calls", "failed_calls", "output_tokens"))
    assert (2, 300.0) == (found["ttft_ms"]["n"], found["ttft_ms"]["max"])
    assert (4, 2) == (found["ttft_adjusted_ms"]["n"], found["ttft_adjusted_ms"]["failed"])
    assert (1, 3, 0.25) == tuple(found["goodput"][name] for name in ("good_calls", "bad_calls", "attainment"))
    assert (4.0, 2.5, 900.0) == (found["span_s"], found["output_tokens_per_s"], found["rollouts_per_hour"])
    assert ({"peak": 1, "mean": 1.0}, {"peak": 1, "mean": pytest.approx(2 / 3)}) == (found["rollouts_in_flight"], found["calls_in_flight"])
    assert (1, 2000.0, 30.0) == (found["rollout_ms"]["n"], found["rollout_ms"]["max"], found["rollout_calls_per_minute"]["mean"])
    assert 2000.0 == pytest.approx(sum(part["mean_ms"] for part in found["split"].values()))


def test_attempts_of_an_earlier_session_have_its_clock() -> None:
    """The attempts of a rollout that ran in two sessions count in both. The pause between the sessions does not count."""
    failed = Attempt(1, "infra_error", session=1, started_ns=9000 * MS, ended_ns=9500 * MS, calls=(call(9000, end=9500, error_kind="cut"),))
    found = measured(rollout("a", session=2, attempt=2, ended_ns=500 * MS, calls=(call(0, 100, end=500),), earlier_attempts=(failed,)))

    assert (2, 1.0, {"peak": 1, "mean": 1.0}) == (found["calls"], found["span_s"], found["calls_in_flight"])


def test_tokens_without_usage() -> None:
    """If the server reports no token counts, output chunks are counted."""
    found = measured(rollout("a", calls=(call(0, 1, 2, 3, end=4, token_source="chunks"),), ended_ns=1000 * MS))

    assert (3, None, {"chunks": 1}) == (found["output_tokens"], found["prefix_cache_hit_ratio"], found["token_sources"])


def test_a_cache_ratio_needs_both_numbers() -> None:
    """Only calls whose usage reports prompt and cached tokens count for the hit ratio."""
    both, one = call(0, end=1, prompt_tokens=100, cached_tokens=50), call(0, end=1, prompt_tokens=100)

    assert 0.5 == measured(rollout("a", calls=(both, one)))["prefix_cache_hit_ratio"]
    assert measured(rollout("a", calls=(one,)))["prefix_cache_hit_ratio"] is None


def test_hit_ratios_of_calls_weigh_alike() -> None:
    """For a long cached prompt and a short uncached one, the ratio of tokens is almost 1, and the mean over calls is 0.5."""
    long, short = call(0, end=1, prompt_tokens=900, cached_tokens=900), call(0, end=1, prompt_tokens=100, cached_tokens=0)
    found = measured(rollout("a", calls=(long, short)))

    assert (0.9, 0.5) == (found["prefix_cache_hit_ratio"], found["call_prefix_cache_hit_ratio"])
    assert measured(rollout("a", calls=(call(0, end=1, prompt_tokens=100),)))["call_prefix_cache_hit_ratio"] is None


def test_speedup() -> None:
    """Two parallel calls with 10 tokens/s each make a speedup of 2. Without calls it is None."""
    pair = [rollout(name, calls=(call(0, 100, end=1000, completion_tokens=10),), ended_ns=1000 * MS) for name in "ab"]

    assert 2.0 == measured(*pair)["speedup"]
    assert measured()["speedup"] is None


def test_a_run_without_rollouts() -> None:
    """Without rollouts all metrics are None, and no division by zero happens."""
    found = measured()

    assert (0, 0.0, None, None, None, None, None) == tuple(
        found[name]
        for name in ("calls", "span_s", "ttft_ms", "output_tokens_per_s", "rollouts_per_hour", "rollouts_in_flight", "calls_in_flight")
    )


def test_rates_of_calls_and_rollouts() -> None:
    """Spreads of rates have low percentiles and the minimum. A failed call does not count."""
    good, cut = call(0, 400, end=500, completion_tokens=10), call(500, 550, end=600, error_kind="cut")
    found = measured(rollout("a", calls=(good, cut), ended_ns=2000 * MS), rollout("b", "infra_error", ended_ns=2000 * MS))

    assert (20.0, 20.0) == (found["call_output_tokens_per_s"]["p50"], found["call_output_tokens_per_s"]["min"])
    assert (60.0, 1) == (found["rollout_calls_per_minute"]["mean"], found["rollout_calls_per_minute"]["n"])
    assert 30.0 == found["calls_per_minute"]


def test_failed_calls_are_infinite_in_adjusted_percentiles() -> None:
    """With 19 successful calls and a failed one, the worst twentieth is infinite. Without failed calls there is no adjusted TTFT."""
    good = tuple(call(0, 10, end=20) for _ in range(19))
    cut = call(0, 1, end=20, error_kind="cut")

    assert measured(rollout("a", calls=good))["ttft_adjusted_ms"] is None
    assert {"n": 20, "failed": 1, "p50": 10.0, "p90": 10.0, "p95": "inf", "p99": None} == measured(rollout("a", calls=(*good, cut)))[
        "ttft_adjusted_ms"
    ]


def test_steady() -> None:
    """With a concurrency of 2, rollouts overlap for one second. Tokens that arrived in it and shares of rollouts in it count."""
    early = call(0, 500, 1500, end=1600, completion_tokens=20)
    late = call(1000, 1250, 2250, end=2500, completion_tokens=8)
    found = measured(
        rollout("a", calls=(early,), ended_ns=2000 * MS),
        rollout("b", calls=(late,), started_ns=1000 * MS, ended_ns=2500 * MS),
        concurrency=2,
    )["steady"]

    assert {"seconds": 1.0, "share": 0.4, "output_tokens_per_s": 14.0, "rollouts_per_hour": pytest.approx(4200)} == found["rollouts"]
    assert {"seconds": 0.6, "share": pytest.approx(0.24), "output_tokens_per_s": pytest.approx(14 / 0.6)} == found["calls"]


def test_a_steady_window_has_exactly_its_tokens() -> None:
    """A steady window of a few milliseconds has exactly the tokens that arrived in it."""
    every_ms = call(0, *range(1, 101), end=100, completion_tokens=100)
    beside = call(20, end=27, error_kind="cut")
    found = measured(rollout("a", calls=(every_ms,), ended_ns=100 * MS), rollout("b", calls=(beside,), ended_ns=100 * MS), concurrency=2)[
        "steady"
    ]

    assert {"seconds": 0.007, "share": pytest.approx(0.07), "output_tokens_per_s": 1000.0} == found["calls"]


def test_never_steady() -> None:
    """If the concurrency was never reached, there is no steady window."""
    found = measured(rollout("a", calls=(call(0, end=10, completion_tokens=5),), ended_ns=20 * MS), concurrency=2)["steady"]

    assert {"asked": 2, "calls_without_chunks": 1, "rollouts": None, "calls": None} == found


def test_goodput() -> None:
    """Goodput is good calls per second. Failed calls and calls above an objective are bad."""
    calls = (call(0, 100, end=200), call(0, 600, end=700), call(0, 10, end=20, error_kind="cut"), call(0, 50, end=400))
    found = measured(rollout("a", calls=calls, ended_ns=4000 * MS), slo={"ttft": 500.0})["goodput"]

    assert (2, 2, 0.5, 0.5, {"ttft": 1}) == tuple(
        found[name] for name in ("good_calls", "bad_calls", "attainment", "goodput_per_s", "missed")
    )
    assert measured(rollout("a", calls=calls))["goodput"] is None


def test_split() -> None:
    """Shares of the split refer to the total time of all rollouts."""
    tool = ToolCall("find", {}, 1, started_ns=600 * MS, ended_ns=1000 * MS)
    found = measured(rollout("a", calls=(call(0, 100, end=600),), tool_calls=(tool,), ended_ns=1000 * MS), rollout("b", ended_ns=1000 * MS))

    assert {"decoding": 0.25, "first_token": 0.05, "tools": 0.2, "client_queue": 0.0, "agent": 0.5} == {
        part: each["share"] for part, each in found["split"].items()
    }
    assert measured()["split"] is None


def test_calls_of_a_judge_are_not_in_the_timings() -> None:
    """The time of a judge is a separate part. No latency, count or rate of the agent includes its calls."""
    own, judge = (
        call(0, 100, end=500, completion_tokens=5),
        call(500, 900, end=1500, completion_tokens=50, prompt_tokens=1000, role="judge"),
    )
    found = measured(rollout("a", calls=(own,), other_calls=(judge,), ended_ns=2000 * MS))
    alone = measured(rollout("a", calls=(own,), ended_ns=2000 * MS))

    assert (0.5, 0.25) == (found["split"]["judge"]["share"], found["split"]["agent"]["share"] + found["split"]["client_queue"]["share"])
    assert 60.0 == found["rollout_calls_per_minute"]["mean"]
    for name in set(found) - {"split", "rollout_calls_per_minute"}:
        assert alone[name] == found[name], name
    assert "judge" not in alone["split"]


def test_the_stopwatch_reads_the_run() -> None:
    """Clean timestamps, read lag, client queue and the busiest second are computed from records and samples."""
    chunks = (Chunk(100 * MS, "content", False, 2 * MS), Chunk(100 * MS, "content", True, MS), Chunk(300 * MS, "finish", True, 90 * MS))
    one = LLMCall(5 * MS, 10 * MS, 2000 * MS, chunks, called_ns=2 * MS, stamp="kernel")
    second = 1_000_000_000
    cpu = {"tap": [(0, second, 0.25), (2 * second, 3 * second, 0.99)], "pool": [(0, second, 0.5), (second, second + MS, 1.0)]}

    found = plain(stopwatch(rollout("a", calls=(one,), ended_ns=2000 * MS), cpu=cpu))

    assert (0.5, 2.0, 8.0, 0.25, 0.5) == tuple(
        found[name] for name in ("clean_share", "read_lag_ms", "client_queue_ms", "tap_cpu", "pool_cpu")
    )
    assert (0.5, 1.0, 1.0) == tuple(found[name] for name in ("late_share", "late_first_share", "late_calls_share"))
    assert ("client-saturated", []) == (found["verdict"], found["notes"])


@pytest.mark.parametrize("lag_ms", [0, 5])
def test_late_events_spoil_only_some_percentiles(lag_ms: int) -> None:
    """If 4 % of a thousand gaps of 20 ms are read late, p99 becomes 40 ms and is not usable. p95 and TTFT stay usable.

    If the tap read in time, the server sent these events together, and everything is usable.
    """
    chunks = [Chunk(20 * MS * (place + (place % 25 == 10)), "content", place % 25 != 10, lag_ms * MS) for place in range(1, 1001)]
    one = LLMCall(0, 0, 30_000 * MS, tuple(chunks), completion_tokens=1000, stamp="kernel")
    made = rollout("a", calls=(one,), ended_ns=30_000 * MS)

    found = plain(stopwatch(made, itl=30.0))

    assert (0.96, lag_ms and 0.04) == (found["clean_share"], found["late_share"])
    assert (20.0, 40.0) == tuple(measured(made)["itl_ms"][name] for name in ("p90", "p99"))
    assert (["itl.p99", "goodput.itl"] if lag_ms else []) == found["unusable"]
    assert ("warn" if lag_ms else "ok") == found["verdict"]


def test_the_stopwatch_counts_delayed_acknowledgements() -> None:
    """The share is of the calls with output, and the version is that of this package."""
    calls = [
        LLMCall(0, 0, 50 * MS, chunks, head_ns=1 * MS, idle_since_ns=idle)
        for idle, chunks in (
            (-9 * MS, (Chunk(9 * MS, "content"),)),
            (None, (Chunk(9 * MS, "content"),)),
            (-9 * MS, (Chunk(9 * MS, "role"),)),
        )
    ]

    found = stopwatch(rollout("a", calls=tuple(calls)))

    assert (0.5, VERSION) == (found.delayed_ack_share, found.version)
    assert 0.0 == stopwatch(rollout("a")).delayed_ack_share


def test_the_stopwatch_counts_programs() -> None:
    """CPU time of command agents is divided by the time in which any of them ran."""
    programs = [Program(0, 0, 1000 * MS, 0.5, 9.0), Program(0, 500 * MS, 2000 * MS, 2.5, 9.0)]
    rollouts = (rollout(f"r-{place}", programs=(each,)) for place, each in enumerate(programs))

    assert 1.5 == stopwatch(*rollouts).agents_cpu
    assert stopwatch(rollout("a")).agents_cpu is None


def test_the_stopwatch_takes_the_machine_whose_cores_programs_used_most() -> None:
    """Programs of each machine are counted apart. Node workers of one machine share its cores. Names belong to sessions."""
    programs = {(1, "w1"): 3.8, (1, "w2"): 2.0, (1, "w3"): 1.8, (2, "w1"): 0.5, (1, ""): 1.0}
    rollouts = [
        rollout(f"r-{place}", session=session, node=node, programs=(Program(0, 0, 1000 * MS, cpu_s, 9.0),))
        for place, ((session, node), cpu_s) in enumerate(programs.items())
    ]
    machines = {(1, "w1"): Machine("a", 8), (1, "w2"): Machine("b", 4), (1, "w3"): Machine("b", 4), (2, "w1"): Machine("c", 1)}

    found = stopwatch_of(scenarios_of(*rollouts), CpuShares(), 2, machines)

    assert 3.8 == found.agents_cpu
    assert (
        "the agents' programs used all CPUs of their machine, which delayed rollouts; the times of LLM calls are correct",
    ) == found.reasons
    assert 3.8 == stopwatch_of(scenarios_of(rollouts[0], rollouts[3]), CpuShares(), 2, {**machines, (2, "w1"): Machine("c", 4)}).agents_cpu


def test_a_node_with_a_nice_value() -> None:
    """The timing quality warns of node workers that run with a nice value above 0."""
    machines = {(1, "w1"): Machine("a", 8), (1, "w2"): Machine("b", 8, 10), (1, "w3"): Machine("c", 8, -5)}

    found = stopwatch_of(scenarios_of(rollout("a", calls=(call(0, 10, end=20),))), CpuShares(), 4, machines)

    assert ("warn", ["other processes take precedence over w2 on b (nice value above 0), which may delay its timestamps"]) == (
        found.verdict,
        [*found.reasons],
    )


def test_the_busiest_process_of_all_machines_counts() -> None:
    """A tap of a node that is saturated makes the timings unusable, even if the session's own tap is idle. A runner counts as a pool."""
    part = scenarios_of(rollout("a", calls=(call(0, 10, end=2000),)))
    second = 1_000 * MS
    own = cpu_shares(part, {"tap": [(0, second, 0.01)], "pool": [(0, second, 0.5)]}, 1)
    nodes = [cpu_shares(part, {"tap": [(0, second, 0.3)], "tap-2": [(0, second, 0.95)], "runner": [(0, second, 0.4)]}, 1), CpuShares()]

    found = stopwatch_of(part, greatest_shares([own, *nodes]), 4)

    assert CpuShares(0.95, 0.4) == nodes[0]
    assert (0.95, 0.5, "client-saturated") == (found.tap_cpu, found.pool_cpu, found.verdict)
    assert "ok" == stopwatch_of(part, own, 4).verdict
    assert CpuShares() == greatest_shares([CpuShares()])


def test_gaps_take_eight_bytes_each() -> None:
    """100,000 gaps take eight bytes each, in one array."""
    frame = frame_of(*(rollout("a", calls=(call(0, *range(0, 20_000, 20), end=20_000),), ended_ns=20_000 * MS) for _ in range(100)))

    assert (99_900, 20.0, 20.0) == tuple(frame.scenarios().value(f"itl.{name}") for name in ("n", "min", "max"))
    assert 8 * 99_900 == frame.gaps["itl"].values.nbytes


@pytest.mark.parametrize("origin", [10_000_000, 0, -900], ids=["a pause of hours", "the same clock again", "a clock that starts anew"])
def test_a_pause_between_sessions_counts_in_no_rate(origin: int) -> None:
    """Two sessions have the same rates as one session without a pause, whatever their clocks."""

    def part(session: int, at: int) -> list[Rollout]:
        shift = at * MS
        calls = [call(at + start, at + start + 500, at + start + 1500, end=at + start + 1600, completion_tokens=20) for start in (0, 1000)]
        spans = [(shift, shift + 2000 * MS), (shift + 1000 * MS, shift + 3000 * MS)]
        return [
            rollout("a", calls=(each,), started_ns=start, ended_ns=end, session=session)
            for each, (start, end) in zip(calls, spans, strict=True)
        ]

    at_once = measured(*part(1, 0), concurrency=2)
    found = measured(*part(1, 0), *part(2, origin), concurrency=2)

    assert 2 * at_once["span_s"] == found["span_s"] == 6.0
    for rate in ("output_tokens_per_s", "rollouts_per_hour", "calls_per_minute", "rollouts_in_flight", "calls_in_flight"):
        assert at_once[rate] == found[rate], rate
    for window in ("rollouts", "calls"):
        once, both = at_once["steady"][window], found["steady"][window]
        assert 2 * once["seconds"] == pytest.approx(both["seconds"])
        assert once["share"] == pytest.approx(both["share"])
        assert once["output_tokens_per_s"] == pytest.approx(both["output_tokens_per_s"])
    assert at_once["steady"]["rollouts"]["rollouts_per_hour"] == pytest.approx(found["steady"]["rollouts"]["rollouts_per_hour"])


def test_each_session_is_steady_by_its_concurrency() -> None:
    """The steady window of each session depends on its own concurrency."""
    one = rollout("a", started_ns=0, ended_ns=1000 * MS, session=1)
    two = rollout("b", started_ns=0, ended_ns=1000 * MS, session=2)

    assert 1.0 == measured(one, two, concurrency=2, by_session={1: 1, 2: 2})["steady"]["rollouts"]["seconds"]


def test_the_stopwatch_uses_its_own_session() -> None:
    """CPU samples of a session are compared only with its own calls, because clocks of sessions differ."""
    busy = [(0, 1000 * MS, 0.99)]
    earlier = rollout("a", calls=(call(0, 500, end=1000),), ended_ns=1000 * MS, session=1)
    part = scenarios_of(earlier, rollout("b", calls=(call(5000, 5500, end=6000),), ended_ns=6000 * MS, session=2))

    assert 0.99 == stopwatch_of(part, cpu_shares(part, {"tap": busy}, 1), 4).tap_cpu
    assert stopwatch_of(part, cpu_shares(part, {"tap": busy}, 2), 4).tap_cpu is None
