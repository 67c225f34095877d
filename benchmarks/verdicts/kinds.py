"""Kinds of simulated scores with known true means: how trials of a scenario vary, and how a change of the model affects them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """A kind of scores: the distribution of the true means of scenarios, and of trials around these means."""

    says: str
    means: Callable[[np.random.Generator, Shape], Floats]
    deviation: Callable[[Floats], Floats] | None = None  # of a trial, by its scenario's mean; None: it passes or fails

    def variance(self, means: Floats) -> Floats:
        """Returns the variance of a trial of each scenario, given the true means."""
        most = means * (1 - means)
        return most if self.deviation is None else np.minimum(self.deviation(means) ** 2, 0.99 * most)

    def trials(self, random: np.random.Generator, means: Floats, count: int) -> Floats:
        """Returns random scores of `count` trials of each scenario: an array (..., scenarios, trials)."""
        wide = np.broadcast_to(means[..., None], (*means.shape, count))
        if self.deviation is None:
            return (random.random(wide.shape) < wide).astype(np.float64)
        inside = (means > 1e-9) & (means < 1 - 1e-9)
        sure = np.where(inside, means, 0.5)
        certainty = np.where(inside, sure * (1 - sure) / self.variance(sure) - 1, 1.0)[..., None]
        drawn = random.beta(np.maximum(wide * certainty, 1e-6), np.maximum((1 - wide) * certainty, 1e-6))
        return np.where(inside[..., None], drawn, wide)


def _flat(low: float, high: float) -> Callable[[np.random.Generator, Shape], Floats]:
    return lambda random, shape: random.uniform(low, high, shape)


def _unequal(means: Floats) -> Floats:
    """Returns standard deviations, large ones for one scenario in five. The third decimal of the mean selects it, so it stays the same."""
    loud = np.floor(means * 1000) % 10 < 2
    return np.where(loud, np.sqrt(means * (1 - means) / 3), 0.01)


def _mixed(random: np.random.Generator, shape: Shape) -> Floats:
    chance = random.random(shape)
    return np.where(chance < 0.1, 0.0, np.where(chance < 0.4, 1.0, random.beta(3, 1, shape)))


KINDS: Mapping[str, Kind] = {
    "quiet": Kind("means from 0.3 to 0.9, trials vary by 0.02 (standard deviation)", _flat(0.3, 0.9), lambda means: 0.02 + 0 * means),
    "continuous": Kind("means from 0.2 to 0.95, trials Beta(8 p, 8 (1 - p))", _flat(0.2, 0.95), lambda p: np.sqrt(p * (1 - p) / 9)),
    "unequal": Kind("one scenario in five is as loud as Beta(2 p, 2 (1 - p)), the others vary by 0.01", _flat(0.3, 0.9), _unequal),
    "binary": Kind("pass or fail, rates Beta(2.4, 0.6)", lambda random, shape: random.beta(2.4, 0.6, shape)),
    "mixed": Kind("pass or fail, 10 % never pass, 30 % always, the others Beta(3, 1)", _mixed),
    "sure": Kind("pass or fail, 80 % always and 20 % never", lambda random, shape: (random.random(shape) < 0.8).astype(np.float64)),
    "always": Kind("pass or fail, all pass always", _flat(1.0, 1.0)),
}


@dataclass(frozen=True)
class Change:
    """A suite after a change: the true means of its scenarios, and the share of rollouts that crash and score 0."""

    means: Floats
    crash: Floats  # (..., 1)


def fade(random: np.random.Generator, means: Floats, drop: float) -> Change:
    """Returns a change in which every scenario scores a little less, so that the mean falls by `drop`."""
    del random
    return Change(means * (1 - drop / means.mean(-1, keepdims=True)), np.zeros((len(means), 1)))


def crash(random: np.random.Generator, means: Floats, drop: float) -> Change:
    """Returns a change in which each rollout scores 0 with a small probability, and otherwise the same as before."""
    del random
    return Change(means, drop / means.mean(-1, keepdims=True))


def broken(random: np.random.Generator, means: Floats, drop: float) -> Change:
    """Returns a change in which random scenarios score 0 from now on, until the mean has fallen by `drop`; the last one only partly."""
    return _broken(random.random(means.shape), means, drop)


def clusters_broken(random: np.random.Generator, means: Floats, drop: float) -> Change:
    """Returns a change in which random clusters of 1 to 10 scenarios score 0 from now on, until the mean has fallen by `drop`."""
    n = means.shape[-1]
    sizes = 1 + np.arange(n) % 10
    codes = np.repeat(np.arange(n), sizes)[:n]
    return _broken(random.random(means.shape)[:, codes] + 1e-9 * np.arange(n), means, drop)


def _broken(order: Floats, means: Floats, drop: float) -> Change:
    by = np.argsort(order, axis=-1)
    sorted_means = np.take_along_axis(means, by, -1)
    before = np.cumsum(sorted_means, -1) - sorted_means
    left = np.clip(sorted_means - np.maximum(drop * means.shape[-1] - before, 0), 0, None)
    after = np.empty_like(means)
    np.put_along_axis(after, by, np.where(before >= drop * means.shape[-1], sorted_means, left), -1)
    return Change(after, np.zeros((len(means), 1)))


class Changing(Protocol):
    """A function that returns a change by which the mean falls by `drop`."""

    __name__: str

    def __call__(self, random: np.random.Generator, means: Floats, drop: float) -> Change: ...


CHANGES: tuple[Changing, ...] = (fade, crash, broken, clusters_broken)


def changed(kind: Kind, random: np.random.Generator, change: Change, count: int) -> Floats:
    """Returns random scores of `count` trials of each scenario after a change."""
    scores = kind.trials(random, change.means, count)
    if not change.crash.any():
        return scores
    return np.where(random.random(scores.shape) < change.crash[..., None], 0.0, scores)
