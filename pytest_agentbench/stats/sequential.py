"""Looks at a run while trials are added to it: at which level each may decide, so that all of them together are as wrong as one.

A group-sequential design (Jennison and Turnbull 2000): one side's 2.5 % is spent look by look, little of it early (O'Brien and Fleming
1979, in the form of Lan and DeMets 1983, Biometrika 70:659). PASS and FAIL have a side each. A look is the usual interval, only wider.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_agentbench.stats.special import normal_quantile

if TYPE_CHECKING:
    from pytest_agentbench.stats.arrays import Floats

#: Rounds after which the first look comes: a single trial of each scenario has no variance within it.
FIRST_LOOK = 2

MOST_ROUNDS = 20  # more looks are hardly worth their price

_NODES = 400  # of an integral over a density, which is smooth: right to 1e-6
_FAR = 9.0  # standard deviations below which there is nothing
_SUREST = 1 - 1e-9  # an interval has to have an end


@dataclass(frozen=True)
class InterimLooks:
    """At one rule: after each whole round of trials from the second on, up to so many rounds."""

    most: int  # rounds
    base_trials: float = 0.0  # of each scenario in the baseline, which do not grow; 0: a limit, which has no noise

    def confidence(self, rounds: int, confidence: float) -> float:
        """Of the interval that decides after so many rounds, where one look alone would have this confidence.

        A run that never came to its first look is judged as at that.
        """
        looks = range(FIRST_LOOK, self.most + 1)
        place = min(max(rounds, FIRST_LOOK), self.most) - FIRST_LOOK
        value = critical_values(tuple(map(self._share, looks)), (1 - confidence) / 2)[place]
        return min(math.erf(value / math.sqrt(2)), _SUREST)

    def _share(self, rounds: int) -> float:
        """Of what is known in the end: the variance of a difference goes by 1 / rounds + 1 / base_trials."""
        return self._known(rounds) / self._known(self.most)

    def _known(self, rounds: int) -> float:
        return 1 / (1 / rounds + 1 / self.base_trials) if self.base_trials else float(rounds)


def spent(share: float, risk: float) -> float:
    """How much of the risk of one side may be used up when so large a share of everything is known."""
    return math.erfc(normal_quantile(1 - risk / 2) / math.sqrt(share) / math.sqrt(2))


@functools.lru_cache(maxsize=256)
def critical_values(shares: Sequence[float], risk: float) -> tuple[float, ...]:
    """For each look the standard errors by which an estimate has to lie beyond the threshold; `shares` of what is known rise to 1.

    The sum of many observations walks as Brownian motion does. Its density, cut off where an earlier look has decided, is carried from
    look to look (Armitage, McPherson and Rowe 1969).
    """
    bounds = [-normal_quantile(spent(shares[0], risk))]
    at, mass = _nodes(shares[0], bounds[0] * math.sqrt(shares[0]))
    mass = mass * _density(at, shares[0])
    for last, share in itertools.pairwise(shares):
        step = share - last
        bound = _beyond(at, mass, step, spent(share, risk) - spent(last, risk))
        bounds.append(bound / math.sqrt(share))
        following, weights = _nodes(share, bound)
        mass = weights * (_density(following[:, None] - at, step) @ mass)
        at = following
    return tuple(bounds)


def _beyond(at: Floats, mass: Floats, step: float, risk: float) -> float:
    """The value that a walk from here exceeds with this probability after a step of this variance, by bisection."""
    low, high = -_FAR, _FAR
    while high - low > 1e-9:
        middle = (low + high) / 2
        tails = (math.erfc((middle - place) / math.sqrt(2 * step)) / 2 for place in at.tolist())
        above = math.fsum(tail * each for tail, each in zip(tails, mass.tolist(), strict=True))
        low, high = (middle, high) if above > risk else (low, middle)
    return (low + high) / 2


def _nodes(share: float, bound: float) -> tuple[Floats, Floats]:
    """Places up to a bound, and weights, for an integral by Gauss and Legendre."""
    nodes, weights = _legendre()
    low = -_FAR * math.sqrt(share)
    half = (bound - low) / 2
    return low + half * (nodes + 1), half * weights


@functools.cache
def _legendre() -> tuple[Floats, Floats]:
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return nodes, weights


def _density(values: Floats, variance: float) -> Floats:
    import numpy as np

    return np.asarray(np.exp(-(values**2) / (2 * variance)) / math.sqrt(2 * math.pi * variance))
