"""The use of engines: rollouts and counts of engines in, numbers and warnings out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_agentbench.backends.telemetry.engine_stats import SampleTally
from pytest_agentbench.backends.telemetry.engine_use import EngineUse, TapCallsByArm, engine_uses
from pytest_agentbench.backends.telemetry.samples import Series
from pytest_agentbench.records import Attempt, LLMCall, Rollout

FINISHED, WORKER = "vllm:request_success_total", "dynamo_component_requests_total"


def call(engine: str | None = None, **keys: Any) -> LLMCall:
    return LLMCall(0, 0, 1, server=None if engine is None else {"worker_id": engine}, **keys)


def rollout(*calls: LLMCall, variant: str = "default", **keys: Any) -> Rollout:
    return Rollout("shop", "a", variant, 1, status="ok", calls=calls, **keys)


def sums(calls: Mapping[tuple[str, int], float], name: str = FINISHED, **labels: str) -> SampleTally:
    """The sums over samples in which each engine (service, replica) has answered a number of calls."""
    tally = SampleTally()
    tally.known |= calls.keys()
    for source, amount in calls.items():
        tally.increases[Series(source, name, tuple(labels.items()))] = amount
    return tally


def use(tally: SampleTally | None, *rollouts: Rollout, unrecorded: int | None = 0) -> EngineUse:
    """The use of engines in a session without arms."""
    taps = TapCallsByArm()
    for each in rollouts:
        taps.add(each)
    taps.end(unrecorded)
    (found,) = engine_uses(tally, taps)
    return found


def test_sessions_that_stayed() -> None:
    """A session is the calls of one role in one attempt. One with an answer that names no engine, or with one call, is not traced."""
    stayed, moved = rollout(call("a"), call("a")), rollout(call("a"), call("b"))
    roles = rollout(call("a", role="writer"), call("b", role="reader"), call("a", role="writer"), call("b", role="reader"))
    retried = rollout(call("b"), call("b"), earlier_attempts=(Attempt(1, "infra_error", calls=(call("a"), call("b"))),))
    failed = rollout(call("a"), call(error_kind="cut"), call("a"))
    untraced = rollout(call("a"), call()), rollout(call("a")), rollout()
    by_hand = rollout(call("a"), call("b"), kind="adhoc")

    found = use(None, stayed, moved, roles, retried, failed, *untraced, by_hand)

    assert (9, 7, 5) == (found.sessions, found.traced, found.stayed)
    assert {"a": 11, "b": 7} == found.named
    assert (19, 1) == (found.tap_calls, found.uncertain_calls)


def test_only_this_session_counts() -> None:
    """Calls of attempts in earlier sessions do not count, because the counters of engines do not have them."""
    earlier = (Attempt(1, "infra_error", session=1, calls=(call("a"), call("b"))),)

    found = use(None, rollout(call("b"), call("b"), session=2, attempt=2, earlier_attempts=earlier))

    assert (1, 1, {"b": 2}, 2) == (found.sessions, found.stayed, found.named, found.tap_calls)


@pytest.mark.parametrize(("engines", "sessions", "warns"), [(2, 7, False), (2, 8, True), (4, 4, False), (4, 5, True), (1, 50, False)])
def test_all_sessions_at_one_engine(engines: int, sessions: int, warns: bool) -> None:
    """The warning needs so many sessions that chance would hardly send all of them to one engine."""
    counts = {("engine", number): 0.0 for number in range(engines)} | {("engine", 0): float(sessions)}

    found = use(sums(counts), *[rollout(call("a"))] * sessions)

    assert warns == bool(found.warnings)
    assert [] == [each for each in found.warnings if f"all {sessions} sessions went to one of {engines} engines, engine[0]; " not in each]


def test_two_busy_engines_are_no_warning() -> None:
    """The warning is about a single busy engine. A third one without calls is none."""
    assert () == use(sums({("engine", 0): 30, ("engine", 1): 1, ("engine", 2): 0}), *[rollout(call())] * 31).warnings


@pytest.mark.parametrize(
    ("at_engines", "unrecorded", "keys", "warning"),
    [
        (2, 0, {}, None),
        (3, 0, {}, "the engines (vllm) answered 3 calls, the tap sent 2: a router repeated calls, or another client used the engines, too"),
        (1, 0, {}, "the engines answered 1 call, the tap got 2 answers: not all calls reached the sampled engines"),
        (3, 1, {}, None),
        (9, None, {}, None),
        (9, 0, {"earlier_attempts": (Attempt(1, "infra_error"),)}, None),
        (3, 0, {"earlier_attempts": (Attempt(1, "infra_error", calls=(call(error_kind="cut"),)),)}, None),
    ],
    ids=["equal", "repeated", "lost", "an interrupted call", "unknown", "an attempt without its calls", "a failed call"],
)
def test_calls_at_engines_and_at_the_tap(at_engines: int, unrecorded: int | None, keys: Any, warning: str | None) -> None:
    """A call that failed or was interrupted may have been answered by an engine or not. Without their number, only too few calls count."""
    found = use(sums({("engine", 0): at_engines}), rollout(call(), call(), **keys), unrecorded=unrecorded)

    assert tuple(filter(None, [warning])) == found.warnings


@pytest.mark.parametrize(
    ("at_engines", "others", "warning"),
    [
        (4, (), None),
        (5, (), "answered 5 calls, the tap sent 4 with 2 second requests of speculative prefills: a router repeated calls"),
        (3, (), "answered 3 calls, but 4 were expected with 2 second requests of speculative prefills: the server ignores the hint"),
        (1, (), "the engines answered 1 call, the tap got 2 answers: not all calls reached the sampled engines"),
        (5, (call(),), None),
        (6, (call(error_kind="client_gone", speculative=True),), None),
    ],
    ids=["equal", "repeated", "ignored", "lost", "a call without the hint", "a failed call"],
)
def test_speculative_prefills(at_engines: int, others: tuple[LLMCall, ...], warning: str | None) -> None:
    """Engines count a second request after each call with this hint. It is counted apart, so that calls are still compared."""
    found = use(sums({("engine", 0): at_engines}), rollout(call(speculative=True), call(speculative=True), *others))

    assert (at_engines, 2) == (found.at_engines, found.second_requests)
    assert len(found.warnings) == bool(warning)
    assert all(warning in each for each in found.warnings if warning)


def test_calls_of_judges_count() -> None:
    """Judges on the same backend are clients of the engines, too, and those on another one are not."""
    judges = (call(role="judge"), call(role="judge", endpoint="http://127.0.0.1:1/v1"))

    assert () == use(sums({("engine", 0): 2}), rollout(call(), other_calls=judges)).warnings


def test_an_engine_that_was_restarted() -> None:
    """If an engine was restarted, calls are not compared, because its last ones may be missing."""
    counts = sums({("engine", 0): 1})
    counts.restarted.add(("engine", 0))

    found = use(counts, rollout(call(), call()))

    assert ((), [True]) == (found.warnings, [each.restarted for each in found.engines])


def test_engines_behind_engines() -> None:
    """Workers before an engine are another kind. Each kind answers all calls, and they are not added."""
    counts = sums({("worker", 0): 1, ("worker", 1): 1}, WORKER, dynamo_endpoint="generate")
    behind = sums({("engine", 0): 2})
    counts.increases |= behind.increases
    counts.known |= behind.known

    found = use(counts, rollout(call(), call()))

    assert ((), 2) == (found.warnings, found.at_engines)


@pytest.mark.parametrize("service", ["prefill", "worker"])
def test_prefill_engines(service: str) -> None:
    """An engine for prefill is known by its service or by Dynamo's component. Its calls are those of the other stage once more."""
    counts = sums({("decode", 0): 2}, WORKER, dynamo_endpoint="generate", dynamo_component="backend")
    prefill = sums({(service, 0): 2}, WORKER, dynamo_endpoint="generate", dynamo_component="prefill" if service == "worker" else "backend")
    counts.increases |= prefill.increases
    counts.known |= prefill.known

    found = use(counts, rollout(call(), call()))

    assert ((), {"decode": False, service: True}) == (found.warnings, {each.service: each.prefill for each in found.engines})


def test_arms() -> None:
    """Each arm has the engines of its services, also if its name begins like another one. Calls by hand may be of any arm."""
    taps = TapCallsByArm(("kv", "kv.2"))
    for each in (rollout(call(), variant="kv"), rollout(call(), call(), variant="fast-kv.2"), rollout(call(), kind="adhoc")):
        taps.add(each)
    taps.end(0)

    first, second = engine_uses(sums({("kv.engine", 0): 2, ("kv.2.engine", 0): 2}), taps)

    assert [("kv", "engine[0]", 2), ("kv.2", "engine[0]", 2)] == [
        (each.arm, each.engines[0].name, each.engines[0].calls) for each in (first, second)
    ]
    assert [(1, 1, ()), (2, 1, ())] == [(each.tap_calls, each.uncertain_calls, each.warnings) for each in (first, second)]


def test_calls_that_only_prefill_engines_counted() -> None:
    """Calls at engines for prefill do not stand for calls that no engine of the other stage answered."""
    counts = sums({("decode", 0): 1, ("prefill", 0): 2})

    assert ("the engines answered 1 call, the tap got 2 answers: not all calls reached the sampled engines",) == use(
        counts, rollout(call(), call())
    ).warnings
