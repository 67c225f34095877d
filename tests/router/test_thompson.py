"""Decisions of the router: which worker gets a call, and what the router remembers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_agentbench.router.constants import PRESETS, Constants
from pytest_agentbench.router.features import CallHints, HintLevel, WorkerLoad
from pytest_agentbench.router.prefixes import PrefixState
from pytest_agentbench.router.thompson import ThompsonRouter

LEVELS: Sequence[HintLevel] = ("LOW", "MEDIUM", "HIGH")


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds

    def __call__(self) -> float:
        return self.now


def loads(*workers: int, **known: Any) -> dict[int, WorkerLoad]:
    return {worker: WorkerLoad(0.2, 1.0, **known) for worker in workers}


def simulate(router: ThompsonRouter, latencies: dict[int, float], calls: int) -> dict[int, list[float]]:
    """Routes calls without sessions one after the other. Returns the rewards of each worker, whose answers take the given milliseconds."""
    rewards: dict[int, list[float]] = {worker: [] for worker in latencies}
    for _ in range(calls):
        routed = router.choose(CallHints(tokens=500), loads(*latencies))
        assert routed is not None
        reward = router.feedback(routed.decision, "answered", latencies[int(routed.worker)], 20)
        assert reward is not None
        rewards[int(routed.worker)].append(reward)
    return rewards


def test_no_worker() -> None:
    """Without a living worker there is no decision."""
    assert ThompsonRouter(PRESETS["sticky"]).choose(CallHints(), loads()) is None


def test_seeds() -> None:
    """With the same seed the decisions are the same, and with another seed they differ."""
    runs = []
    for seed in (1, 1, 2):
        router = ThompsonRouter(PRESETS["nat"], seed, Clock())
        runs.append([router.choose(CallHints(f"s{index % 7}", 3), loads(1, 2, 3, 4)) for index in range(60)])

    assert runs[0] == runs[1]
    assert [each and each.worker for each in runs[0]] != [each and each.worker for each in runs[2]]


def test_a_slow_worker_earns_less() -> None:
    """Of four workers one is four times slower. In the preset `sticky` it earns least, and in `nat` as much as the others."""
    slow: dict[str, float] = {}
    others: dict[str, float] = {}
    for name, constants in PRESETS.items():
        rewards = simulate(ThompsonRouter(constants, 3, Clock()), {1: 100, 2: 100, 3: 100, 4: 400}, 400)
        means = {worker: sum(each) / len(each) for worker, each in rewards.items()}
        slow[name], others[name] = means[4], min(means[worker] for worker in (1, 2, 3))

    assert slow["nat"] == pytest.approx(others["nat"], abs=0.02)
    assert slow["sticky"] < others["sticky"] - 0.15


def test_a_slow_worker_gets_fewer_calls() -> None:
    """In the preset `sticky`, a worker that is four times slower gets less than half of what each other gets."""
    rewards = simulate(ThompsonRouter(PRESETS["sticky"], 5, Clock()), {1: 100, 2: 100, 3: 100, 4: 400}, 600)

    assert len(rewards[4]) < min(len(rewards[worker]) for worker in (1, 2, 3)) / 2


def stayed(constants: Constants) -> float:
    """Returns the share of next calls that went to the session's worker, for 40 sessions of 12 calls."""
    router, moved = ThompsonRouter(constants, 7, Clock()), Counter[bool]()
    for reuse in reversed(range(12)):
        for session in range(40):
            routed = router.choose(CallHints(f"s{session}", reuse, "LOW", "MEDIUM", 1000), loads(1, 2, 3, 4, overlap=0.5))
            assert routed is not None
            router.feedback(routed.decision, "answered", 100, 20)
            if routed.previous is not None:
                moved[routed.worker == routed.previous] += 1
    return moved[True] / moved.total()


def test_sessions_stay() -> None:
    """The preset `sticky` keeps nine of ten next calls at their worker, and `nat` far fewer."""
    shares = {name: stayed(constants) for name, constants in PRESETS.items()}

    assert 0.9 < shares["sticky"]
    assert shares["nat"] < 0.75


def test_features_contain_the_call_itself() -> None:
    """As in the original, the features that are learnt are those after the decision: the session is at its worker, and brings work."""
    router = ThompsonRouter(PRESETS["nat"], 0, Clock())
    routed = router.choose(CallHints("p", 4, "MEDIUM", "MEDIUM", 512), {"a": WorkerLoad(0.5, 2, 0.0)})
    assert routed is not None
    router.feedback(routed.decision, "answered", 1000, 50)
    learnt = router.learners["a"].vector / 0.5

    assert [1, 0.222222, 0, 1, 0.761594, 0.666667, 0.462117, 0.666667, 0.761594] == pytest.approx(learnt, abs=1e-6)
    assert 10 == router.prefixes.work("a")


def test_workers_come_and_go() -> None:
    """A worker that is gone leaves no session, call or average. One that comes back begins anew."""
    router = ThompsonRouter(PRESETS["nat"], 0, Clock())
    for index in range(40):
        routed = router.choose(CallHints(f"s{index}", 5), loads(1, 2))
        assert routed is not None
        if index % 2:
            router.feedback(routed.decision, "answered", 100, 10)
    waiting = router.pending
    router.choose(CallHints("s0", 4), loads(1))

    assert {1} == {*router.learners}
    assert 0 == router.prefixes.work(2)
    assert router.pending < waiting
    assert router.baselines.average("ms/token", 2) is None
    router.choose(CallHints("s1", 4), loads(1, 2))
    assert (1.0, 1.0) == (router.learners[2].alpha, router.learners[2].beta)


def test_feedback_for_a_worker_that_is_gone() -> None:
    """Feedback for a call of a worker that is gone changes nothing, even if the worker is back."""
    router = ThompsonRouter(PRESETS["sticky"], 0, Clock())
    routed = router.choose(CallHints("p", 5), loads(1))
    assert routed is not None
    router.choose(CallHints(), loads(2))
    router.choose(CallHints(), loads(1))

    assert router.feedback(routed.decision, "failed", 100) is None
    assert 1.0 == router.learners[1].beta


def test_timeouts() -> None:
    """A call without feedback gets the reward of a timeout when a call is routed 120 s later, and later feedback changes nothing."""
    clock = Clock()
    router = ThompsonRouter(PRESETS["nat"], 0, clock)
    routed = router.choose(CallHints(), loads(1))
    assert routed is not None
    clock.now = 119.0
    router.choose(CallHints(), loads(1))
    assert (0, 2) == (router.timeouts, router.pending)
    clock.now = 125.0
    router.choose(CallHints(), loads(1))

    assert (1, 2) == (router.timeouts, router.pending)
    assert 2.0 == router.learners[1].beta
    assert router.feedback(routed.decision, "answered", 100, 10) is None


def test_disconnects() -> None:
    """A disconnect ends a call at once in the preset `sticky`, with at most half a reward. In `nat` the call waits for its timeout."""
    rewards, waiting = {}, {}
    for name, constants in PRESETS.items():
        router = ThompsonRouter(constants, 0, Clock())
        routed = router.choose(CallHints(), loads(1))
        assert routed is not None
        rewards[name] = router.feedback(routed.decision, "disconnected", 50, 0)
        waiting[name] = router.pending

    assert {"nat": None, "sticky": 0.5} == rewards
    assert {"nat": 1, "sticky": 0} == waiting


def test_failures_and_unjudged_ends() -> None:
    """A failed call has the reward 0. An end that says nothing of the worker is not learnt."""
    router = ThompsonRouter(PRESETS["sticky"], 0, Clock())
    rewards = []
    for ending in ("failed", "unjudged"):
        routed = router.choose(CallHints(), loads(1))
        assert routed is not None
        rewards.append(router.feedback(routed.decision, "failed" if ending == "failed" else "unjudged", 10))

    assert [0.0, None] == rewards
    assert (1.0, 2.0, 0) == (router.learners[1].alpha, router.learners[1].beta, router.pending)


def test_sessions_expire() -> None:
    """A session is forgotten after its time to live, with the work that it was expected to bring."""
    clock = Clock()
    router = ThompsonRouter(Constants(prefix_ttl=60), 0, clock)
    router.choose(CallHints("old", 5), loads(1))
    clock.now = 61.0
    router.choose(CallHints("new", 0), loads(1))

    assert 0 == len(router.prefixes)
    assert 0 == router.prefixes.work(1)


numbers = st.one_of(st.none(), st.floats())
calls = st.tuples(
    st.sampled_from(["", "a", "b", "c", "d", "e"]),
    st.integers(0, 30),
    st.sampled_from(LEVELS),
    st.integers(0, 200_000),
    st.dictionaries(st.integers(1, 5), st.tuples(numbers, numbers, st.floats()), max_size=5),
    st.sampled_from(["answered", "failed", "disconnected", "unjudged", "none"]),
    st.floats(),
    st.integers(0, 5000),
    st.floats(0, 200),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(calls, max_size=40), st.sampled_from([*PRESETS]), st.integers(0, 5))
def test_any_calls(events: list[tuple[Any, ...]], preset: str, seed: int) -> None:
    """For any calls, loads and feedback, only living workers are chosen, scores are finite, and only living workers are remembered."""
    clock = Clock()
    small = PRESETS[preset].model_copy(update={"max_prefixes": 3, "max_pending": 4})
    router = ThompsonRouter(small, seed, clock)
    for prefix, reuse, level, tokens, known, ending, latency, answered, pause in events:
        clock.now += pause
        alive = {worker: WorkerLoad(*load) for worker, load in known.items()}
        routed = router.choose(CallHints(prefix, reuse, level, level, tokens), alive)
        assert (routed is None) == (not alive)
        assert {*alive} == {*router.learners}
        assert len(router.prefixes) <= 3
        assert router.pending <= 4
        if routed is None:
            continue
        assert routed.worker in alive
        assert all(math.isfinite(score) for score in routed.scores.values())
        assert 0 <= routed.probability <= 1
        if ending != "none":
            reward = router.feedback(routed.decision, ending, latency, answered)
            assert reward is None or 0 <= reward <= 1


def state_size(router: ThompsonRouter) -> int:
    return len(router.prefixes) + router.pending + len(router.learners) + len(router.baselines)


def bounded(calls: int) -> None:
    """Routes calls of as many sessions to two workers of which one is replaced now and then, and checks that the state has a limit."""
    clock = Clock()
    router = ThompsonRouter(PRESETS["nat"].model_copy(update={"max_prefixes": 500, "max_pending": 200}), 0, clock)
    random = np.random.default_rng(0)
    largest = 0
    for index in range(calls):
        clock.now += 0.01
        newest = index // 1000
        routed = router.choose(CallHints(f"s{index}", 5, "LOW", "LOW", 1000), loads(newest, newest + 1))
        assert routed is not None
        if random.random() < 0.2:  # most calls never get feedback
            router.feedback(routed.decision, "answered", 100 + index % 7, 20)
        largest = max(largest, state_size(router))
    assert largest <= 500 + 200 + 2 + 2 * (2 * 10 + 1)


def test_state_is_bounded() -> None:
    """Many calls of ever new sessions, most of them without feedback, leave no more state than the limits allow."""
    bounded(5_000)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_state_is_bounded_over_a_million_calls() -> None:
    """A million calls of ever new sessions leave no more state than the limits allow."""
    bounded(1_000_000)


def test_prefixes_are_limited() -> None:
    """If there are too many sessions, the one whose last call is the oldest is forgotten."""
    router = ThompsonRouter(Constants(max_prefixes=2), 0, Clock())
    for prefix in ("a", "b", "a", "c"):
        router.prefixes.set(prefix, PrefixState(1, 3, 1.0, 0.0, 1.0, 0.0))

    assert [1, None, 1] == [router.prefixes.worker(prefix) for prefix in ("a", "b", "c")]
    assert 6 == router.prefixes.work(1)
