"""Simulated populations of scenarios with known pass rates, and changes of these rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Shape = tuple[int, ...]


def _mixed(random: np.random.Generator, shape: Shape) -> Floats:
    chance = random.random(shape)
    return np.where(chance < 0.1, 0.0, np.where(chance < 0.4, 1.0, random.beta(3, 1, shape)))


def _ceiling(random: np.random.Generator, shape: Shape) -> Floats:
    return np.where(random.random(shape) < 0.8, 1.0, random.beta(4, 1, shape))


def _sure(random: np.random.Generator, shape: Shape) -> Floats:
    return (random.random(shape) < 0.8).astype(np.float64)


@dataclass(frozen=True)
class Kind:
    """A kind of population: the distribution of the true pass rates of its scenarios."""

    says: str
    rates: Callable[[np.random.Generator, Shape], Floats]
    mean: float
    parts: int = 1  # a trial's score is the share of so many parts that pass


KINDS: Mapping[str, Kind] = {
    "beta": Kind("Beta(2.4, 0.6)", lambda random, shape: random.beta(2.4, 0.6, shape), 0.8),
    "mixed": Kind("10 % never pass, 30 % always, the others Beta(3, 1)", _mixed, 0.3 + 0.6 * 0.75),
    "ceiling": Kind("80 % always pass, the others Beta(4, 1)", _ceiling, 0.8 + 0.2 * 0.8),
    "sure": Kind("80 % always pass, 20 % never: trials do not vary", _sure, 0.8),
    "graded": Kind("as mixed, but a trial scores 0, 1/3, 2/3 or 1", _mixed, 0.3 + 0.6 * 0.75, parts=3),
}


def fade(random: np.random.Generator, rates: Floats, drop: float, mean: float) -> Floats:
    """Returns pass rates after a change: every scenario passes a little less often."""
    del random
    return rates * (1 - drop / mean)


def snap(random: np.random.Generator, rates: Floats, drop: float, mean: float) -> Floats:
    """Returns pass rates after a change: some scenarios never pass again, the others stay the same."""
    return np.where(random.random(rates.shape) < drop / mean, 0.0, rates)


def churn(random: np.random.Generator, rates: Floats, drop: float, mean: float) -> Floats:
    """Returns pass rates after a change: one scenario in twenty always passes, and a larger number never passes."""
    repaired = 0.05
    chance = random.random(rates.shape)
    broken = (drop + repaired * (1 - mean)) / mean
    return np.where(chance < repaired, 1.0, np.where(chance > 1 - broken, 0.0, rates))


def rescue(random: np.random.Generator, rates: Floats, drop: float, mean: float) -> Floats:
    """Returns pass rates after a change: one scenario in twenty always passes, and all others so much less often that the mean falls."""
    repaired = 0.05
    left = (mean - drop - repaired) / (mean * (1 - repaired))
    return np.where(random.random(rates.shape) < repaired, 1.0, rates * left)


Change = Callable[[np.random.Generator, Floats, float, float], Floats]
CHANGES: tuple[Change, ...] = (fade, snap, churn)


def trials(random: np.random.Generator, rates: Floats, count: int, parts: int = 1) -> Floats:
    """Returns the mean of `count` random trials of each scenario."""
    return random.binomial(count * parts, rates) / (count * parts)
