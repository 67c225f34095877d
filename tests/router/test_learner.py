"""What a router learns from rewards and latencies. The vectors were computed with the original router."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.router.constants import PRESETS
from pytest_agentbench.router.features import FEATURES
from pytest_agentbench.router.learner import LatencyBaselines, WorkerLearner

NAT, STICKY = PRESETS["nat"], PRESETS["sticky"]
FIRST = np.eye(FEATURES)[0]


def test_vectors_of_one_update() -> None:
    """One reward changes the linear model and the Beta distribution as in the original."""
    learner = WorkerLearner(NAT)
    learner.learn(FIRST, 0.8)

    assert (2.0, 0.8, 1.0) == pytest.approx((learner.matrix[0, 0], learner.vector[0], learner.matrix[1, 1]))
    assert (1.8, 1.2) == pytest.approx((learner.alpha, learner.beta))


@pytest.mark.parametrize("preset", [NAT, STICKY])
def test_vectors_of_rewards(preset: object) -> None:
    """Rewards and averages of three answers are those of the original, in each preset."""
    assert preset in (NAT, STICKY)
    baselines = LatencyBaselines(NAT if preset is NAT else STICKY)
    rewards, averages = [], []
    for latency in (1000, 2000, 500):
        rewards.append(baselines.reward("a", "MEDIUM", "LOW", latency, 50))
        averages.append(baselines.average("ms/token"))

    assert [0.5, 0.333333, 0.705882] == pytest.approx(rewards, abs=1e-6)
    assert [20, 24, 21.2] == pytest.approx(averages)


def test_a_slow_worker() -> None:
    """A worker that is always four times slower earns as much as the others in the preset `nat`, and less in `sticky`."""
    latest = {}
    for name, constants in PRESETS.items():
        baselines = LatencyBaselines(constants)
        for _ in range(30):
            latest[name] = [baselines.reward(worker, "LOW", "LOW", latency, 10) for worker, latency in (("fast", 100), ("slow", 400))]

    assert latest["nat"] == pytest.approx([0.5, 0.5], abs=0.01)
    fast, slow = latest["sticky"]
    assert slow < 0.4
    assert 0.5 < fast


def test_answers_without_tokens_have_averages_of_their_own() -> None:
    """Latencies of answers whose tokens are unknown are not compared with latencies per token."""
    baselines = LatencyBaselines(NAT)
    baselines.reward("a", "LOW", "LOW", 100, 50)

    assert 0.5 == baselines.reward("a", "LOW", "LOW", 900, 0)
    assert (2.0, 900.0) == (baselines.average("ms/token"), baselines.average("ms"))


def test_disconnects() -> None:
    """A call that its client ended earns at most 0.5, less if it was slow until then, and changes no average."""
    baselines = LatencyBaselines(STICKY)
    for _ in range(3):
        baselines.reward("a", "LOW", "LOW", 100, 10)

    assert 0.5 == baselines.reward_of_disconnect("a", "LOW", "LOW", 1, 0)
    assert 0.1 == pytest.approx(baselines.reward_of_disconnect("a", "LOW", "LOW", 900, 0))
    assert 0.2 == pytest.approx(baselines.reward_of_disconnect("a", "LOW", "LOW", 400, 10))
    assert 10 == pytest.approx(baselines.average("ms/token"))


def test_forget() -> None:
    """The averages of a worker that is gone are removed, and those of all workers stay."""
    baselines = LatencyBaselines(NAT)
    baselines.reward("a", "LOW", "LOW", 100, 10)
    size = len(baselines)
    baselines.reward("b", "LOW", "LOW", 100, 10)
    baselines.forget("b")

    assert size == len(baselines)
    assert baselines.average("ms/token", "b") is None
    assert baselines.average("ms/token", "a") is not None
    assert baselines.average("ms/token") is not None


@given(
    st.lists(st.tuples(st.lists(st.floats(0, 1), min_size=FEATURES, max_size=FEATURES), st.floats(0, 1)), max_size=30), st.integers(0, 99)
)
def test_samples_are_finite(observations: list[tuple[list[float], float]], seed: int) -> None:
    """After any rewards, samples are finite, and the matrix is symmetric."""
    learner, random = WorkerLearner(NAT), np.random.default_rng(seed)
    for features, reward in observations:
        learner.learn(np.array(features), reward)

    assert np.isfinite(learner.sample(np.ones(FEATURES), random))
    assert 0 <= learner.sample_beta(random) <= 1
    assert (learner.matrix == learner.matrix.T).all()


def test_a_matrix_without_a_cholesky_factor() -> None:
    """A matrix that rounding has made indefinite still gives a finite sample."""
    learner = WorkerLearner(NAT)
    learner.matrix = np.diag([1.0] * (FEATURES - 1) + [-1.0])

    assert np.isfinite(learner.sample(FIRST, np.random.default_rng(0)))


@given(st.floats(0, 1e9), st.integers(0, 10_000), st.floats(0, 1e9), st.integers(0, 10_000))
def test_rewards_are_between_0_and_1(first: float, first_tokens: int, second: float, second_tokens: int) -> None:
    """Any latencies give rewards between 0 and 1, and at most 0.5 for a call that its client ended."""
    for constants in PRESETS.values():
        baselines = LatencyBaselines(constants)
        rewards = [baselines.reward("a", "LOW", "LOW", first, first_tokens), baselines.reward("a", "LOW", "LOW", second, second_tokens)]

        assert all(0 <= reward <= 1 for reward in rewards)
        assert 0 <= baselines.reward_of_disconnect("a", "LOW", "LOW", second, second_tokens) <= 0.5
