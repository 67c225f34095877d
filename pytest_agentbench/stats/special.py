"""Quantiles and tail probabilities of the distributions that the gate needs, without scipy.

scipy would be a hundred megabytes for five functions; these are checked against it in tests.
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_agentbench.stats.arrays import Floats

_STEPS, _CLOSE = 1000, 1e-10  # of Newton's method
_NORMAL = 1e7  # degrees of freedom from which on t is a normal distribution
_EXACT = 16  # so many quantiles of t are solved for one by one
_NODES = 200  # where more are asked for, they are read off so many


def normal_quantile(p: float) -> float:
    """The value that a standard normal variable stays below with probability p."""
    return NormalDist().inv_cdf(p)


def binomial_at_most(k: int, n: int, p: float) -> float:
    """P(X <= k) of X ~ Binomial(n, p), as I_{1-p}(n - k, k + 1) (DLMF 8.17.5)."""
    if k < 0 or p >= 1:
        return 0.0 if k < n else 1.0
    return 1.0 if k >= n or p <= 0 else incomplete_beta(n - k, k + 1, 1 - p)


def student_t_quantiles(p: float, degrees: Floats) -> Floats:
    """`student_t_quantile` of an array of degrees of freedom, 1 at least; of a large one right to 1e-4, relatively."""
    import numpy as np

    if degrees.size <= _EXACT:
        return np.array([student_t_quantile(p, float(each)) for each in degrees.ravel()]).reshape(degrees.shape)
    nodes, values = _table(p)
    return np.asarray(np.interp(1 / degrees, nodes, values))


@functools.cache
def _table(p: float) -> tuple[Floats, Floats]:
    """(1 / degrees in ascending order, quantiles): nearly a straight line."""
    import numpy as np

    nodes = np.linspace(0, 1, _NODES) ** 2
    return nodes, np.array([normal_quantile(p), *(student_t_quantile(p, 1 / node) for node in nodes[1:])])


@functools.lru_cache(maxsize=4096)
def student_t_quantile(p: float, degrees: float) -> float:
    """The value that Student's t with these degrees of freedom stays below with probability p; right to 1e-6, relatively.

    Newton's method on P(T <= t) = 1 - I_x(degrees / 2, 1 / 2) / 2 at x = degrees / (degrees + t^2) (DLMF 8.17). It begins at the normal
    quantile, which lies below, and never leaves that side, because the distribution is concave there.
    """
    if not 0 < p < 1 or degrees <= 0:
        raise ValueError(f"no quantile {p} of Student's t with {degrees} degrees of freedom")
    if degrees > _NORMAL:
        return normal_quantile(p)
    if p < 0.5:
        return -student_t_quantile(1 - p, degrees)
    density = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(degrees * math.pi) / 2
    t = normal_quantile(p)
    for _ in range(_STEPS):
        beyond = incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t)) / 2 if t > 0 else 0.5
        step = (p - 1 + beyond) / math.exp(density - (degrees + 1) / 2 * math.log1p(t * t / degrees))
        t += step
        if abs(step) <= _CLOSE * t:
            break
    return t


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for 0 < x < 1."""
    if x > (a + 1) / (a + b + 2):  # the continued fraction converges fast below, and by symmetry above
        return 1 - _incomplete_beta(b, a, 1 - x)
    return _incomplete_beta(a, b, x)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    logarithm = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(logarithm) / (a * _beta_fraction(a, b, x))


def _beta_fraction(a: float, b: float, x: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)) of DLMF 8.17.22, from the front by Lentz's method."""
    value, numerator, denominator = 1.0, 1.0, 0.0
    for step in range(1, 100_000):
        m = step // 2
        if step % 2:
            term = -x * (a + m) * (a + b + m) / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = x * m * (b - m) / ((a + 2 * m - 1) * (a + 2 * m))
        numerator = 1 + term / numerator
        denominator = 1 / (1 + term * denominator)
        value *= numerator * denominator
        if abs(numerator * denominator - 1) < 1e-15:
            return value
    raise ArithmeticError(f"the incomplete beta function does not converge for a={a}, b={b}, x={x}")
