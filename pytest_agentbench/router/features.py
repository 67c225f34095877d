"""The numbers that describe a call at a worker: its nine features, its load factor, and the bonus or penalty of its session."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_agentbench.router.constants import Constants

HintLevel = Literal["LOW", "MEDIUM", "HIGH"]
Vector = NDArray[np.float64]

FEATURES = 9

#: Cost of the answer, by its expected length.
DECODE_COST: Mapping[HintLevel, float] = {"LOW": 1.0, "MEDIUM": 2.0, "HIGH": 3.0}

#: Factor of the work that a session is expected to bring, by the expected time between its calls.
IAT_FACTOR: Mapping[HintLevel, float] = {"LOW": 1.5, "MEDIUM": 1.0, "HIGH": 0.6}

FULL_WITH = 20  # calls of the router at a worker without metrics that count as a full cache


@dataclass(frozen=True)
class CallHints:
    """What is known of a call before it is sent."""

    prefix: str = ""  # id of the session; empty if the call belongs to none
    reuse: int = 0  # further calls that are expected of the session
    osl: HintLevel = "MEDIUM"  # expected length of the answer
    iat: HintLevel = "MEDIUM"  # expected time between calls of the session
    tokens: int = 0  # tokens of the prompt


@dataclass(frozen=True)
class WorkerLoad:
    """What is known of a worker when a call is routed. None means that the worker gave no metrics."""

    gpu: float | None = None  # share of the KV cache in use, 0 to 1
    queue: float | None = None  # waiting calls
    overlap: float = 0.0  # share of the call's prompt that is in the worker's cache, 0 to 1


class CallAtWorker(NamedTuple):
    """A call at one of the workers that could answer it."""

    hints: CallHints
    gpu: float  # share of the KV cache in use, 0 to 1
    queue: float  # waiting calls
    overlap: float  # share of the prompt that is in the worker's cache, 0 to 1
    work: float  # expected work of the worker's sessions
    previous: bool | None  # whether the session used this worker last; None if it used none


def osl_level(tokens: float) -> HintLevel:
    return "LOW" if tokens < 256 else "MEDIUM" if tokens < 1024 else "HIGH"


def iat_level(milliseconds: float) -> HintLevel:
    return "LOW" if milliseconds < 100 else "MEDIUM" if milliseconds < 500 else "HIGH"


def prefill_level(cost: float) -> HintLevel:
    return "LOW" if cost < 0.25 else "MEDIUM" if cost < 0.75 else "HIGH"


def call_at_worker(
    constants: Constants, hints: CallHints, load: WorkerLoad, own_calls: int, work: float, *, previous: bool | None
) -> CallAtWorker:
    """Combines what is known of a call and a worker. Values that no metric can have count as missing.

    `own_calls` are the calls of this router that the worker has not answered.
    """
    gpu, queue = (value if value is not None and math.isfinite(value) and value >= 0 else None for value in (load.gpu, load.queue))
    if gpu is None:
        gpu = 0.0 if constants.missing_metrics == "idle" else own_calls / FULL_WITH
    overlap = min(1.0, max(0.0, load.overlap)) if math.isfinite(load.overlap) else 0.0
    return CallAtWorker(hints, min(1.0, gpu), max(queue or 0.0, own_calls), overlap, work, previous)


def prefill_cost(constants: Constants, call: CallAtWorker) -> float:
    """Returns the cost of the prompt tokens that are not in the worker's cache."""
    return call.hints.tokens * (1 - call.overlap) / constants.token_scale * constants.prefill_weight


def session_work(reuse: int, decode: float, prefill: float, iat: float) -> float:
    """Returns the work that a session is expected to bring its worker."""
    return reuse * (decode + prefill) * iat


def features(constants: Constants, call: CallAtWorker) -> Vector:
    """Returns the nine features of a call at a worker."""
    hints = call.hints
    return np.array(
        [
            1.0,
            1 / (1 + constants.gpu_weight * call.gpu + constants.queue_weight * call.queue),
            call.overlap,
            float(bool(call.previous)),
            math.tanh(0.1 * call.work),
            DECODE_COST[hints.osl] / 3,
            math.tanh(prefill_cost(constants, call)),
            IAT_FACTOR[hints.iat] / 1.5,
            math.tanh(0.25 * hints.reuse),
        ]
    )


def load_factor(constants: Constants, call: CallAtWorker) -> float:
    """Returns the factor of a score, at most 1. The more a worker has to do, the smaller it is."""
    job = DECODE_COST[call.hints.osl] + prefill_cost(constants, call)
    load = constants.gpu_weight * call.gpu + constants.queue_weight * call.queue + constants.work_weight * call.work
    load += job * (constants.job_gpu_weight * call.gpu + constants.job_queue_weight * call.queue)
    factor = 1 / (1 + load)
    return max(factor, constants.sticky_load_floor) if call.previous and has_affinity(constants, call) else factor


def has_affinity(constants: Constants, call: CallAtWorker) -> bool:
    """Returns whether it matters at which worker the session was."""
    return call.previous is not None and (call.hints.reuse > 0 or constants.last_calls == "kept")


def session_bonus(constants: Constants, call: CallAtWorker) -> float:
    """Returns what a score gains at the session's last worker, or loses at others (a negative number)."""
    reuse, iat = call.hints.reuse, IAT_FACTOR[call.hints.iat]
    if not has_affinity(constants, call):
        return 0.0
    if call.previous:
        bonus = constants.affinity_base + constants.affinity_reuse * reuse + constants.affinity_iat * iat
        return bonus * (0.5 + 0.5 * call.overlap)
    return -(constants.switch_base + constants.switch_reuse * reuse + constants.switch_iat * iat)


def with_load(constants: Constants, score: float, factor: float) -> float:
    """Returns a score that takes the load factor into account."""
    return score * (2 - factor) if score < 0 and constants.negative_scores == "grown" else score * factor


def temperature(constants: Constants, hints: CallHints) -> float:
    """Returns the temperature of the choice. It falls with the further calls that are expected of the session."""
    base = constants.temperature_base / (1 + hints.reuse * IAT_FACTOR[hints.iat])
    return min(constants.temperature_max, max(constants.temperature_min, base))


def probabilities(scores: Sequence[float], temperature: float) -> Vector:
    """Returns the probability of each choice, by softmax."""
    scaled = np.array(scores) / temperature
    weights = np.exp(scaled - scaled.max())
    return np.asarray(weights / weights.sum())
