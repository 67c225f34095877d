"""Chooses a worker for each call by Thompson sampling, and learns from the latencies of the answers. It does no input or output."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from pytest_agentbench.router.constants import Constants
from pytest_agentbench.router.features import (
    DECODE_COST,
    IAT_FACTOR,
    CallAtWorker,
    CallHints,
    HintLevel,
    Vector,
    WorkerLoad,
    call_at_worker,
    features,
    load_factor,
    prefill_cost,
    prefill_level,
    probabilities,
    session_bonus,
    temperature,
    with_load,
)
from pytest_agentbench.router.learner import LatencyBaselines, WorkerLearner
from pytest_agentbench.router.prefixes import PrefixState, PrefixTable

WorkerId = str | int  # an engine's address, or an instance of Dynamo's
_Worker = TypeVar("_Worker", str, int)

#: How a call ended. `failed` is an error of the worker, `disconnected` an end by the client, and `unjudged` says nothing of the worker.
Ending = Literal["answered", "failed", "disconnected", "unjudged"]

LOWEST_SCORE = -1e9  # replaces a score that is not a number


@dataclass(frozen=True)
class Routed:
    """A decision: the worker that gets a call."""

    decision: int  # number of the decision
    worker: WorkerId
    previous: WorkerId | None  # the worker that the session used last, if it is known
    overlap: float  # share of the prompt that was expected in the worker's cache, 0 to 1
    probability: float  # probability of this choice
    scores: Mapping[WorkerId, float]  # score of each worker


class _Pending(NamedTuple):
    """A call without feedback."""

    worker: WorkerId
    features: Vector
    osl: HintLevel
    prefill: HintLevel
    at: float  # time of the decision, seconds, on the router's clock


class ThompsonRouter:
    """Chooses a worker for each call, by LinTS and a Beta distribution for each worker.

    `choose` gets the load of each worker that is alive, and never returns another. Workers that are no longer among them are forgotten,
    with their sessions and calls. A worker that comes back begins anew. After a call ends, `feedback` gets its latency. A call without
    feedback counts as timed out after `timeout` seconds. That is noticed when a later call is routed.

    All state is bounded: sessions and calls by `max_prefixes` and `max_pending`, everything else by the number of workers.
    With the same seed, clock and calls, the decisions are the same. Not thread-safe.
    """

    def __init__(self, constants: Constants, seed: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._constants, self._clock = constants, clock
        self._random = np.random.default_rng(seed)
        self._swept = clock()
        self._decisions = 0
        self._own_calls: dict[WorkerId, int] = {}  # worker -> calls without feedback
        self._pending: dict[int, _Pending] = {}  # in the order of the decisions
        self.learners: dict[WorkerId, WorkerLearner] = {}
        self.prefixes = PrefixTable(constants)
        self.baselines = LatencyBaselines(constants)
        self.timeouts = 0  # calls that have timed out

    @property
    def pending(self) -> int:
        """The number of calls without feedback."""
        return len(self._pending)

    def choose(self, hints: CallHints, loads: Mapping[_Worker, WorkerLoad]) -> Routed | None:
        """Returns the worker for a call, or None if no worker is alive."""
        now = self._clock()
        self._keep_only(loads)
        self._sweep(now)
        if not loads:
            return None
        previous = self.prefixes.worker(hints.prefix)
        calls: dict[WorkerId, CallAtWorker] = {worker: self._at(worker, hints, load, previous) for worker, load in loads.items()}
        scores: dict[WorkerId, float] = {worker: self._score(worker, call) for worker, call in calls.items()}
        chances = probabilities([*scores.values()], temperature(self._constants, hints))
        index = int(self._random.choice(len(chances), p=chances))
        worker = [*calls][index]
        prefill = prefill_cost(self._constants, calls[worker])
        self.prefixes.set(hints.prefix, PrefixState(worker, hints.reuse, DECODE_COST[hints.osl], prefill, IAT_FACTOR[hints.iat], now))
        self._wait(worker, calls[worker], prefill, now)
        overlap = calls[worker].overlap
        return Routed(self._decisions, worker, _known(previous), overlap, float(chances[index]), scores)

    def feedback(self, decision: int, ending: Ending, latency_ms: float, tokens: int = 0) -> float | None:
        """Learns from the end of a call, and returns its reward.

        Returns None without learning if the decision is forgotten, or if the ending says nothing of the worker.

        Args:
            decision: Number of the decision.
            ending: How the call ended. With `disconnects: ignored`, a call that its client ended stays without feedback.
            latency_ms: Milliseconds from the decision to the end.
            tokens: Output tokens, or 0 if they are not known.
        """
        if ending == "disconnected" and self._constants.disconnects == "ignored":
            return None
        if (call := self._end(decision)) is None or ending == "unjudged" or not math.isfinite(latency_ms):
            return None
        latency_ms, reward = max(0.0, latency_ms), 0.0
        if ending == "answered":
            reward = self.baselines.reward(call.worker, call.osl, call.prefill, latency_ms, tokens)
        elif ending == "disconnected":
            reward = self.baselines.reward_of_disconnect(call.worker, call.osl, call.prefill, latency_ms, tokens)
        self.learners[call.worker].learn(call.features, reward)
        return reward

    def forget(self, worker: WorkerId) -> None:
        """Removes all that is known of a worker."""
        self.learners.pop(worker, None)
        self._own_calls.pop(worker, None)
        self.prefixes.forget(worker)
        self.baselines.forget(worker)
        self._pending = {decision: call for decision, call in self._pending.items() if call.worker != worker}

    def _keep_only(self, loads: Mapping[_Worker, WorkerLoad]) -> None:
        for worker in [worker for worker in self.learners if worker not in loads]:
            self.forget(worker)
        for worker in loads:
            if worker not in self.learners:
                self.learners[worker] = WorkerLearner(self._constants)

    def _at(self, worker: WorkerId, hints: CallHints, load: WorkerLoad, previous: object) -> CallAtWorker:
        is_previous = None if previous is None else previous == worker
        own_calls = self._own_calls.get(worker, 0)
        return call_at_worker(self._constants, hints, load, own_calls, self.prefixes.work(worker), previous=is_previous)

    def _score(self, worker: WorkerId, call: CallAtWorker) -> float:
        constants, learner = self._constants, self.learners[worker]
        score = learner.sample(features(constants, call), self._random)
        explored = constants.beta_weight / (1 + call.hints.reuse * IAT_FACTOR[call.hints.iat])
        score += explored * learner.sample_beta(self._random) + session_bonus(constants, call)
        score = with_load(constants, score, load_factor(constants, call))
        return score if math.isfinite(score) else LOWEST_SCORE

    def _wait(self, worker: WorkerId, call: CallAtWorker, prefill: float, now: float) -> None:
        """Remembers a call until its feedback. As in the original, its features are those after the decision."""
        self._decisions += 1
        chosen = call._replace(work=self.prefixes.work(worker), previous=self.prefixes.worker(call.hints.prefix) == worker)
        known = features(self._constants, chosen)
        self._pending[self._decisions] = _Pending(worker, known, call.hints.osl, prefill_level(prefill), now)
        self._own_calls[worker] = self._own_calls.get(worker, 0) + 1
        while len(self._pending) > self._constants.max_pending:
            self._end(next(iter(self._pending)))

    def _end(self, decision: int) -> _Pending | None:
        """Removes a call from those without feedback. Returns None if it is not among them."""
        if call := self._pending.pop(decision, None):
            self._own_calls[call.worker] -= 1
        return call

    def _sweep(self, now: float) -> None:
        """Forgets old sessions, and learns from calls that have timed out."""
        self.prefixes.expire(now)
        if now - self._swept < self._constants.sweep_interval:
            return
        self._swept = now
        while self._pending:
            decision, call = next(iter(self._pending.items()))
            if now - call.at < self._constants.timeout:
                return
            self._end(decision)
            self.timeouts += 1
            self.learners[call.worker].learn(call.features, self._constants.timeout_reward)


def _known(worker: object) -> WorkerId | None:
    return worker if isinstance(worker, str | int) else None
