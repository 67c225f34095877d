"""`of population`, the side of FAIL: the mean of scenarios in clusters with the CR2 variance and Satterthwaite's degrees of freedom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_agentbench.stats.bounded import Bounds
from pytest_agentbench.stats.special import student_t_quantile

if TYPE_CHECKING:
    from pytest_agentbench.stats.arrays import Floats
    from pytest_agentbench.stats.bounded import Clusters

_NEGLIGIBLE, _SMALLEST = 1e-9, 1e-6  # relative to the largest value, if it is no rounding itself: a standard error below this is rounding


def robust_mean(values: Floats, clusters: Clusters, confidence: float = 0.95) -> Bounds:
    """Of (..., scenarios), two clusters at least (Bell and McCaffrey 2002; Pustejovsky and Tipton 2018, arXiv 1601.01981).

    For a mean: V = n^-2 sum over clusters of (sum of residuals)^2 / (1 - n_g / n), and tr(P)^2 / tr(P^2) degrees of freedom with
    P_gh = a_g a_h (n_g [g = h] - n_g n_h / n), a_g = (1 - n_g / n)^-0.5. Without clusters that is Student's t.
    """
    import numpy as np

    sizes = np.asarray(clusters.sizes, dtype=np.float64)
    n = sizes.sum()
    mean = values.mean(-1)
    residuals = clusters.totals(values) - mean[..., None] * sizes
    error = np.sqrt((residuals**2 / (1 - sizes / n)).sum(-1)) / n
    inflation = (1 - sizes / n) ** -0.5
    pattern = np.outer(inflation, inflation) * (np.diag(sizes) - np.outer(sizes, sizes) / n)
    degrees = float(np.trace(pattern) ** 2 / (pattern**2).sum())
    reach = student_t_quantile((1 + confidence) / 2, degrees) * error
    return Bounds(mean, mean - reach, mean + reach, error, degrees)


def still(bounds: Bounds, values: Floats) -> Floats:
    """Whether nothing varies, which proves no certainty; (...)."""
    import numpy as np

    return np.asarray(bounds.error <= _NEGLIGIBLE * np.maximum(np.abs(values).max(-1), _SMALLEST))
