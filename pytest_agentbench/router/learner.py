"""What a router learns: a worker's rewards by the features of calls, and the averages that latencies are compared with."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from pytest_agentbench.router.constants import Constants
from pytest_agentbench.router.features import FEATURES, HintLevel, Vector

IDENTITY: Vector = np.eye(FEATURES)
JITTERS = (1e-9, 1e-7, 1e-5, 1e-3)  # additions to the diagonal of a matrix that has no Cholesky factor
LEAST_EIGENVALUE = 1e-10


class WorkerLearner:
    """What is known about the rewards of one worker: a linear model of them (LinTS), and a Beta distribution.

    `matrix` is the regularised sum of the outer products of features, `vector` is the sum of features times rewards. Both forget.
    What samples need of them is computed once after each reward, because a worker is sampled far more often than it learns.
    """

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self.matrix: Vector = constants.lints_lambda * IDENTITY
        self.vector: Vector = np.zeros(FEATURES)
        self.alpha = 1.0
        self.beta = 1.0
        self._posterior: tuple[Vector, Vector] | None = None  # mean of the weights, and what turns noise into their deviation

    def learn(self, features: Vector, reward: float) -> None:
        """Takes the reward of a call, 0 to 1."""
        keep, regular = self._constants.lints_forget, self._constants.lints_lambda
        self.alpha += reward
        self.beta += 1 - reward
        matrix = keep * self.matrix + np.outer(features, features) + (1 - keep) * regular * IDENTITY
        self.matrix = (matrix + matrix.T) / 2
        self.vector = keep * self.vector + features * reward
        self._posterior = None

    def sample(self, features: Vector, random: np.random.Generator) -> float:
        """Returns the reward that the linear model expects, with weights that are drawn from their distribution."""
        if (posterior := self._posterior) is None:
            spread = self._constants.lints_spread * np.linalg.inv(_root(self.matrix)).T
            posterior = np.asarray(np.linalg.solve(self.matrix, self.vector), np.float64), np.asarray(spread, np.float64)
            self._posterior = posterior
        mean, spread = posterior
        return float((mean + spread @ random.standard_normal(FEATURES)) @ features)

    def sample_beta(self, random: np.random.Generator) -> float:
        """Draws from the Beta distribution of the rewards."""
        return float(random.beta(self.alpha, self.beta))


def _root(matrix: Vector) -> Vector:
    """Returns a square root L of a symmetric matrix, L Lᵀ. It is its Cholesky factor, if rounding has left it positive definite."""
    for jitter in JITTERS:
        try:
            return np.asarray(np.linalg.cholesky(matrix + jitter * IDENTITY), np.float64)
        except np.linalg.LinAlgError:
            continue
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray(vectors * np.sqrt(np.maximum(values, LEAST_EIGENVALUE)))


class LatencyBaselines:
    """Moving averages of latencies, and the rewards that follow from them.

    There are averages for calls alike (expected length of the answer and cost of the prompt) and for all calls, and with `baseline: own`
    also for each worker. A latency is milliseconds per output token, or milliseconds if a call had no output tokens.
    """

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self._averages: dict[tuple[Hashable, ...], float] = {}

    def reward(self, worker: Hashable, osl: HintLevel, prefill: HintLevel, latency_ms: float, tokens: int) -> float:
        """Returns the reward of an answered call, and takes its latency into the averages. As fast as the average is 0.5."""
        unit, value = _latency(latency_ms, tokens)
        reward = self._compared(worker, osl, prefill, unit, value)
        self._add(self._keys(worker, osl, prefill, unit), value)
        if tokens > 0 and self._constants.disconnects == "judged":
            self._add(self._keys(worker, osl, prefill, "ms"), latency_ms)
        return reward

    def reward_of_disconnect(self, worker: Hashable, osl: HintLevel, prefill: HintLevel, latency_ms: float, tokens: int) -> float:
        """Returns the reward of a call that its client ended. It is at most 0.5, because the call would have taken longer."""
        return min(0.5, self._compared(worker, osl, prefill, *_latency(latency_ms, tokens)))

    def average(self, unit: str, *key: Hashable) -> float | None:
        """Returns an average for a unit (`ms/token` or `ms`): of all calls, of a worker, of calls alike, or of both."""
        return self._averages.get((unit, *key))

    def forget(self, worker: Hashable) -> None:
        """Removes the averages of a worker."""
        self._averages = {key: value for key, value in self._averages.items() if key[1:2] != (worker,) or len(key) == 3}

    def __len__(self) -> int:
        return len(self._averages)

    def _keys(self, worker: Hashable, osl: HintLevel, prefill: HintLevel, unit: str) -> Sequence[tuple[Hashable, ...]]:
        if self._constants.baseline == "all":
            return (unit, osl, prefill), (unit,)
        return (unit, worker, osl, prefill), (unit, worker), (unit,)

    def _compared(self, worker: Hashable, osl: HintLevel, prefill: HintLevel, unit: str, value: float) -> float:
        known = (self._averages[key] for key in self._keys(worker, osl, prefill, unit) if key in self._averages)
        average = next(known, max(1.0, value))
        return average / (average + value) if average + value > 0 else 0.5

    def _add(self, keys: Sequence[tuple[Hashable, ...]], value: float) -> None:
        share = self._constants.average_alpha
        for key in keys:
            self._averages[key] = share * value + (1 - share) * self._averages.get(key, value)


def _latency(latency_ms: float, tokens: int) -> tuple[str, float]:
    """Returns the unit of a call's latency and its value."""
    return ("ms/token", latency_ms / tokens) if tokens > 0 else ("ms", latency_ms)
