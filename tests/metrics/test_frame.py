"""Frames and slices: the rollouts, calls, events and time of a slice, and its metrics."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.frame import Frame, Slice
from pytest_agentbench.metrics.frame_reader import FrameReader, tokens_of_events
from pytest_agentbench.metrics.performance import PerformanceSettings, objectives_of, summarize
from pytest_agentbench.metrics.terms import Terms, TokenPrices
from pytest_agentbench.metrics.timeline import Span
from pytest_agentbench.records import Attempt, Chunk, LLMCall, Rollout
from tests.frames import frame_of, scenarios_of
from tests.tables import shop

S = 1_000_000_000  # nanoseconds
EXPERT = "http://expert/v1"
TERMS = Terms(objectives_of({"ttft": 1500.0}), TokenPrices("USD", input=1.0, output=2.0), score=0.5, passed=1)


def call(sent: int, *events: int, end: int, **keys: Any) -> LLMCall:
    """Returns a call with one token per event. Times are seconds."""
    return LLMCall(sent * S, sent * S, end * S, tuple(Chunk(at * S, "content") for at in events), **keys)


def rollout(scenario: str, start: int, end: int, *calls: LLMCall, suite: str = "shop", variant: str = "default", **keys: Any) -> Rollout:
    """Returns a rollout. Times are seconds."""
    own, other = (tuple(each for each in calls if each.measured is measured) for measured in (True, False))
    times: dict[str, Any] = {"started_ns": start * S, "ended_ns": end * S}
    return Rollout(suite, scenario, variant, 1, **{"status": "ok", **times, "calls": own, "other_calls": other, **keys})


#: Two arms that alternate in the first session and overlap at its end. Another suite is in a second session, which repeated `e`.
TRIED = Attempt(1, "infra_error", session=1, started_ns=40 * S, ended_ns=42 * S, calls=(call(40, end=41, error_kind="cut"),))
ALL = (
    rollout("a", 0, 10, call(0, 1, 3, end=4), call(5, 6, end=7, role="judge"), variant="a"),
    rollout("b", 10, 16, call(10, 12, end=13), variant="b"),
    rollout("c", 20, 30, call(20, 24, end=25), call(26, 27, end=28, role="search", endpoint=EXPERT), variant="cold-a"),
    rollout("d", 25, 40, call(30, 35, end=36, role="search"), variant="cold-b", status="agent_error"),
    rollout("e", 1000, 1005, call(1001, 1003, end=1004), suite="bank", session=2, attempt=2, earlier_attempts=(TRIED,)),
    rollout("by hand", 0, 100, call(0, 1, end=100), kind="adhoc"),
    rollout("first", 0, 100, call(0, 1, end=100), kind="primer"),
)


def names(part: Slice) -> str:
    """Returns the scenarios of a slice, one letter each."""
    return "".join(part.rollouts["scenario"])


@pytest.mark.parametrize(
    ("asked", "rollouts", "calls", "attempts"),
    [
        ({}, "abcde", [0, 10, 20, 30, 40, 1001], 6),
        ({"arm": "a"}, "ac", [0, 20], 2),
        ({"arm": "b"}, "bd", [10, 30], 2),
        ({"arm": "default"}, "e", [40, 1001], 2),
        ({"suite": "shop"}, "abcd", [0, 10, 20, 30], 4),
        ({"suite": "bank"}, "e", [40, 1001], 2),
        ({"variant": "cold-a"}, "c", [20], 1),
        ({"group": "shop-cold-b"}, "d", [30], 1),
        ({"group": "bank"}, "e", [40, 1001], 2),
        ({"session": 1}, "abcd", [0, 10, 20, 30], 4),
        ({"session": 2}, "e", [40, 1001], 2),
        ({"suite": "shop", "arm": "a", "variant": "a", "session": 1}, "a", [0], 1),
        ({"suite": "bank", "arm": "a"}, "", [], 0),
        ({"role": ""}, "abcde", [0, 10, 20, 40, 1001], 6),
        ({"role": "judge"}, "abcde", [5], 6),
        ({"role": "search"}, "abcde", [26, 30], 6),
        ({"role": "search", "arm": "a"}, "ac", [26], 2),
    ],
    ids=str,
)
def test_rows(asked: dict[str, Any], rollouts: str, calls: list[int], attempts: int) -> None:
    """A slice has the rollouts that match all arguments, and their measured calls, or all calls of a role."""
    part = scenarios_of(*ALL).where(**asked)

    assert rollouts == names(part)
    assert [sent * S for sent in calls] == part.calls["sent_ns"].tolist()
    assert (len(rollouts), len(calls), attempts) == (len(part.rollouts), len(part.calls), len(part.attempts))
    assert [sent * S for sent in calls if sent != 40] == part.successful_calls["sent_ns"].tolist()


def test_a_slice_of_a_slice() -> None:
    """Slicing a slice keeps its selection and its role. Several groups select the rollouts of all of them."""
    part = scenarios_of(*ALL)

    assert "c" == names(part.where(arm="a").where(variant="cold-a"))
    assert "abcde" == names(part.where(group={*part.frame.rollouts["group"]}))
    assert [30 * S] == part.where(role="search").where(arm="b").calls["sent_ns"].tolist()
    assert "abcde" == names(part)


@pytest.mark.parametrize(
    ("asked", "seconds", "per_hour"),
    [
        ({}, 42 + 5, 4 * 3600 / 47),
        ({"session": 1}, 40, 3 * 3600 / 40),
        ({"session": 2}, 2 + 5, 3600 / 7),
        ({"arm": "a"}, 10 + 10, 2 * 3600 / 20),
        ({"suite": "shop"}, 16 + 20, 3 * 3600 / 36),
        ({"group": "bank"}, 2 + 5, 3600 / 7),
        ({"variant": "cold-b"}, 15, 0.0),
        ({"suite": "bank", "arm": "a"}, 0, None),
    ],
    ids=str,
)
def test_seconds(asked: dict[str, Any], seconds: int, per_hour: float | None) -> None:
    """The time of a session is from the first start to the last end of an attempt.

    For a part of its rollouts, only the time in which they ran counts.
    """
    part = scenarios_of(*ALL).where(**asked)

    assert (seconds, per_hour) == (part.seconds, part.value("rollouts_per_hour"))


def test_seconds_of_windows() -> None:
    """All time of a window counts, whether rollouts ran in it or not."""
    part = scenarios_of(*ALL)
    windows = {1: [(5 * S, 8 * S), (12 * S, 50 * S)], 2: [(1000 * S, 1001 * S)]}

    assert 42 == part.within(windows).seconds == part.where(arm="a").within(windows).seconds == part.within(windows).where(arm="a").seconds
    assert {1: [(0, 10 * S), (20 * S, 30 * S)]} == part.where(arm="a").active_spans


def test_the_edges_of_a_window() -> None:
    """A span includes its start and excludes its end for sent calls. For ends of calls and for tokens it is the other way round."""
    calls = [call(sent, *range(sent + 1, end), end=end) for sent, end in ((0, 10), (5, 20), (10, 25), (20, 30))]
    failed = call(10, 11, 12, end=15, error_kind="cut")
    part = scenarios_of(rollout("a", 0, 40, *calls, failed)).within({1: [(10 * S, 20 * S)]})

    assert ([10 * S, 10 * S], 1) == (part.calls["sent_ns"].tolist(), len(part.successful_calls))
    assert (1, 0 + 9 + 10 + 0) == (part.calls_done, part.output_tokens)
    assert (6.0, 1.9) == (part.value("calls_per_minute"), part.value("output_tokens_per_s"))
    assert (1.0, 1000.0) == (part.value("ttft.n"), part.value("ttft.p50"))
    assert (0.25, 90.0) == (part.rollouts_done, part.value("rollouts_per_hour"))


def test_windows_belong_to_sessions() -> None:
    """A window of one session contains nothing of another one, whose clock may have the same values."""
    two = [rollout("a", 0, 10, call(0, 1, 2, end=3), session=each) for each in (1, 2)]
    part = scenarios_of(*two)

    windows: list[dict[int, list[Span]]] = [{1: [(0, 10 * S)]}, {1: [(0, 5 * S)], 2: [(0, 10 * S)]}, {3: [(0, 10 * S)]}, {1: []}, {}]
    assert [(1, 2, 1, 1), (2, 4, 2, 1.5), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0)] == [
        (len(each.calls), each.output_tokens, each.calls_done, each.rollouts_done) for each in map(part.within, windows)
    ]


@pytest.mark.parametrize(
    ("counts", "total", "tokens"),
    [
        ((7, 9, 10), 12, [7, 2, 3]),
        ((7, None, 10), 12, [7, 0, 5]),
        ((None, 9, None), 12, [0, 9, 3]),
        ((None, None, 12), 12, []),
        ((None, None, None), 12, []),
        ((5,), 5, []),
        ((), 5, []),
    ],
)
def test_tokens_of_events(counts: tuple[int | None, ...], total: int, tokens: list[int]) -> None:
    """The tokens of an event are the difference of the server's counts, and the last event gets the rest.

    Without counts the list is empty.
    """
    chunks = tuple(Chunk(place, "content", tokens=count) for place, count in enumerate(counts))

    assert tokens == tokens_of_events(LLMCall(0, 0, 9, chunks, completion_tokens=total))


@pytest.mark.parametrize(("window", "even", "counted"), [((0, 1), 4, 7), ((1, 2), 4, 2), ((2, 9), 4, 3), ((0, 9), 12, 12), ((3, 9), 0, 0)])
def test_tokens_within_a_window(window: Span, even: int, counted: int) -> None:
    """Events have equal shares of the tokens, or the tokens that the server counts. Calls of both kinds may be mixed."""
    alike = call(0, 1, 2, 3, end=4, completion_tokens=12)
    told = tuple(chunk._replace(tokens=tokens) for chunk, tokens in zip(alike.chunks, (7, 9, 10), strict=True))
    calls = [alike, replace(alike, chunks=told)]
    none = call(0, end=4, completion_tokens=100)
    spans = {1: [(window[0] * S, window[1] * S)]}

    assert [even, counted] == [scenarios_of(rollout("a", 0, 9, each, none)).within(spans).output_tokens for each in calls]
    assert even + counted == scenarios_of(rollout("a", 0, 9, none, *calls)).within(spans).output_tokens


def test_values() -> None:
    """`value` takes the name of a number, or of a duration and its statistic (milliseconds). It returns None if there is no value."""
    part = scenarios_of(*ALL)

    assert [1000.0, 2800.0, 5.0, 2000.0] == [part.value(f"ttft.{name}") for name in ("min", "mean", "n", "p50")]
    assert (None, 2000.0, 10_000.0) == (part.value("ttft.p99"), part.value("itl.max"), part.value("rollout.p50"))
    assert [None, None, 2000.0] == [part.where(arm="b").value(name) for name in ("itl.max", "prefix_cache_hit_ratio", "ttft.min")]
    assert (1, 2000.0, 6.0) == tuple(part.where(arm="a").value(name) for name in ("itl.n", "itl.p50", "calls_per_minute"))


def test_terms() -> None:
    """Goodput, costs and efficiency depend on terms. They are None without terms."""
    part = scenarios_of(*ALL).where(arm="a")
    without = ("goodput_per_s", "cost", "score_per_second")

    assert [None] * 3 == [part.value(name) for name in without]
    assert [1 / 20, None, 0.05] == [part.on(TERMS).value(name) for name in without]
    assert [2 / 20] == [part.on(Terms(objectives_of({"ttft": 4000.0}))).value("goodput_per_s")]


@pytest.mark.parametrize("rollouts", [ALL, ()], ids=["some rollouts", "none"])
@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("ttfb.p50", r"^no metric 'ttfb' .did you mean 'ttft'..; known: call_prefix_cache_hit_ratio, .*, ttft$"),
        ("accuracy", r"^no metric 'accuracy'; known: call_prefix_cache_hit_ratio, "),
        ("ttft.p77", r"^no statistic of ttft 'p77'; known: max, mean, min, n, p50, p90, p95, p99$"),
        ("ttft", r"^no statistic of ttft ''; known: max, mean, min, n, p50, p90, p95, p99$"),
        ("itl.intervals", r"^no statistic of itl 'intervals'; known: max, "),
        ("calls_per_minute.p50", "^calls_per_minute is a single number; write calls_per_minute, not calls_per_minute.p50$"),
    ],
    ids=["metric", "score", "statistic", "no statistic", "intervals", "statistic of a number"],
)
def test_unknown_names_are_refused(name: str, refusal: str, rollouts: tuple[Rollout, ...]) -> None:
    """Errors for unknown metrics and statistics list the known ones."""
    with pytest.raises(ConfigError, match=refusal):
        scenarios_of(*rollouts).value(name)


def arrays(frame: Frame) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yields every column, and every array of ragged values, by name."""
    for table in (frame.rollouts, frame.calls, frame.attempts, frame.programs):
        yield from ((f"{table.name}.{name}", values) for name, values in table.columns.items())
    ragged = {"stamps": frame.stamps, "tokens": frame.tokens, "lags": frame.lags, "evened": frame.evened, **frame.gaps}
    for name, each in ragged.items():
        yield from ((f"{name}.values", each.values), (f"{name}.starts", each.starts))


def same(one: Frame, other: Frame) -> None:
    for (name, values), (_, others) in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_array_equal(values, others, name)
        assert values.dtype == others.dtype, name


#: A rollout with events that were read late, and with token counts of the server.
LATE = rollout(
    "f",
    50,
    60,
    LLMCall(
        0, 0, 9 * S, (Chunk(S, "content", False, 2 * S, 3), Chunk(S, "content", True, 2 * S, 4), Chunk(2 * S, "content")), stamp="kernel"
    ),
)
MIXED = (*ALL, LATE, *shop.ALL)


@pytest.mark.parametrize("given_out", [(0,), (1,), (3, 8), (7, 7, 8), (11,), tuple(range(12))], ids=str)
def test_a_frame_grows(given_out: tuple[int, ...]) -> None:
    """A frame requested after some rollouts does not change when more are added, and the final frame equals one that was read at once."""
    reader, parts = FrameReader(), {}
    for count, each in enumerate(MIXED):
        for _ in range(given_out.count(count)):
            parts[count] = reader.frame()
        reader.add(each)

    same(frame_of(*MIXED), reader.frame())
    for count, part in parts.items():
        same(frame_of(*MIXED[:count]), part)
    assert len(frame_of(*MIXED).evened.values) == 2


def test_a_frame_without_events() -> None:
    """A frame without events has the same tables, but no values of events."""
    reader = FrameReader(events=False)
    for each in MIXED:
        reader.add(each)
    found, whole = dict(arrays(reader.frame())), dict(arrays(frame_of(*MIXED)))

    tables = [name for name in whole if not name.endswith((".values", ".starts"))]
    for name in tables:
        np.testing.assert_array_equal(whole[name], found[name], name)
    assert {0} == {len(values) for name, values in found.items() if name.endswith(".values")}


def test_a_rollout_without_times() -> None:
    """A rollout without times counts with its tokens and status, but has no duration, and no rate includes it."""
    untimed = rollout("x", 0, 0, call(0, end=0, prompt_tokens=10, completion_tokens=20))
    timed = rollout("y", 100, 110, call(100, 101, end=105, prompt_tokens=10, completion_tokens=20))
    part = scenarios_of(untimed, timed)

    assert ("xy", "y") == (names(part), names(part.timed))
    assert (1.0, 10_000.0, 30.0) == (part.value("rollout.n"), part.value("rollout.p50"), part.value("tokens_per_rollout"))
    assert [True, False] == np.isnan(part.rollouts["agent_part_ms"]).tolist()
    assert (10.0, 2.0, 360.0) == (part.timed.seconds, part.timed.value("output_tokens_per_s"), part.timed.value("rollouts_per_hour"))
    assert {None} == {scenarios_of(untimed).timed.value(name) for name in ("rollouts_per_hour", "ttft.p50", "rollout.p50")}


def of_nothing(part: Slice) -> Iterator[Slice]:
    """Yields an empty slice, and slices of it."""
    terms = part.on(TERMS)
    yield from (part, part.timed, terms, terms.where(arm="a"), terms.where(role="judge"), terms.where(session=1, suite="shop"))
    yield from (terms.within({}), terms.within({1: [(0, S)]}))


@pytest.mark.parametrize("metric", registry.functions())
def test_metrics_of_empty_slices(metric: str) -> None:
    """Every metric of an empty slice is None or 0."""
    nothing = [scenarios_of(), scenarios_of(*ALL).where(suite="none"), scenarios_of(ALL[-1])]
    values = [each.frame.metrics[metric].of(each) for empty in nothing for each in of_nothing(empty)]

    assert {*values} <= {None, 0}


def test_rows_of_nothing() -> None:
    """An empty frame has empty tables and lasts 0 seconds."""
    part = scenarios_of()

    assert [0] * 7 == [len(rows) for rows in (part.rollouts, part.attempts, part.programs, part.calls, part.successful_calls)] + [
        *(len(part.frame.stamps.values), len(part.frame.stamps.counts))
    ]
    assert (0, {}, {}, {}) == (part.seconds, part.active_spans, part.call_spans, part.evaluable_spans)
    assert (0, 0, 0) == (part.rollouts_done, part.calls_done, part.output_tokens)


def test_numbers_without_events() -> None:
    """Without events, metrics of events and tokens of a window raise an error, and all other metrics are available."""
    reader = FrameReader(events=False)
    reader.add(ALL[0])
    part = reader.frame().scenarios()

    assert part.value("ttft.p50") == scenarios_of(ALL[0]).value("ttft.p50")
    for name, slice in {"itl.p50": part, "output_tokens_per_s": part.within({1: [(0, S)]})}.items():
        with pytest.raises(ConfigError, match="needs the events of calls, but this frame was read without them"):
            slice.value(name)


@pytest.mark.parametrize("count", [2**32 - 1, 2**63, 2**64 - 1, 10**30])
def test_absurd_counts_of_a_server(count: int) -> None:
    """A server may report any number of tokens. The frame clips it, and the run is summarised without an error."""
    chunks = tuple(Chunk(at * S, "content", tokens=tokens) for at, tokens in ((1, 1), (2, count), (3, count)))
    call = LLMCall(0, 0, 4 * S, chunks, completion_tokens=count, prompt_tokens=7, token_source="continuous")
    frame = frame_of(Rollout("shop", "a", "default", 1, "ok", ended_ns=5 * S, calls=(call,)))

    assert min(count, 2**62) == pytest.approx(frame.scenarios().output_tokens)
    assert min(count, 2**62) == pytest.approx(frame.scenarios().within({1: [(0, 5 * S)]}).output_tokens)
    assert min(count, 2**62) / 5 == pytest.approx(summarize(frame, PerformanceSettings()).number("output_tokens_per_s"))


def test_numbers_of_numpy_are_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numpy numbers of metric functions become Python numbers in run.json, and NaN becomes null."""
    functions = {"eleven": lambda part: part.rollouts["trial"].sum() + 10, "nothing": lambda part: part.known("ttft_ms").mean()}
    made_up = tuple(registry.Metric(name, name, "session", "made up", of_slice=function) for name, function in functions.items())
    monkeypatch.setattr(registry, "METRICS", (*registry.METRICS, *made_up))
    frame = frame_of(rollout("f", 0, 1))

    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        found = plain(summarize(frame, PerformanceSettings()))

    assert (11.0, None) == (found["eleven"], found["nothing"])
    assert type(found["eleven"]) is float


def test_a_metric_that_is_added_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a plugin adds a metric of calls after the columns were imported, later frames have it."""
    late = registry.Metric("late", "late", "call", "made up", of_call=lambda call: call.ended_ns - call.received_ns)
    monkeypatch.setattr(registry, "METRICS", (*registry.METRICS, late))

    assert frame_of(*ALL).scenarios().value("late.n") == len(scenarios_of(*ALL).successful_calls)
