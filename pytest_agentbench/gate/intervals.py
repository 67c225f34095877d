"""Which interval for which values: the one place that chooses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_agentbench.gate.bootstrap import percentile_t
from pytest_agentbench.gate.bounded import FEWEST_CLUSTERS, Clusters
from pytest_agentbench.gate.decisions import Decision, judge
from pytest_agentbench.gate.means import mean_interval
from pytest_agentbench.gate.power import factor

Limits = tuple[float, float]

#: Scenarios below which nothing is decided about values without limits: if they are skewed the interval holds only from about here on
#: (docs/verdict-results.md).
FEWEST_UNBOUNDED = 80


@dataclass(frozen=True)
class Found:
    """An interval and how it came about."""

    low: float
    high: float
    error: float  # standard error
    degrees: float  # of freedom
    method: str


def mean_of(values: Sequence[float], clusters: Clusters, limits: Limits | None, confidence: float, seed: int) -> Found | None:
    """An interval for the mean of one value per scenario; None where the values have no limits and do not vary."""
    import numpy as np

    if limits:
        interval = mean_interval(values, clusters.codes, confidence, limits)
        assert interval.low is not None and interval.high is not None and interval.standard_error is not None  # `too_few` has seen to it
        return Found(interval.low, interval.high, interval.standard_error, clusters.effective - 1, interval.method)
    if sampled := percentile_t(np.asarray(values, dtype=np.float64), clusters, confidence, seed):
        prefix = "" if clusters.single else "clustered "
        return Found(sampled.low, sampled.high, sampled.error, clusters.effective - 1, f"{prefix}percentile-t")
    return None


def too_few(clusters: Clusters, limits: Limits | None = (0.0, 1.0)) -> str:
    """Why these scenarios decide nothing, or an empty string."""
    needed = 2 if limits else FEWEST_UNBOUNDED
    if len(clusters.codes) < needed:
        return f"{len(clusters.codes)} scenarios to go by; it takes {needed} at least" + ("" if limits else " where values have no limits")
    if clusters.single:
        return ""
    if clusters.effective >= FEWEST_CLUSTERS:
        return ""
    return (
        f"{len(clusters.codes)} scenarios in {len(clusters.sizes)} clusters, worth {clusters.effective:.3g} of equal size; "
        f"it takes {FEWEST_CLUSTERS} at least"
    )


def decided(blank: Decision, found: Found | None, *, higher_is_better: bool) -> Decision:
    """The decision with its interval and verdict."""
    if found is None:
        return replace(blank, reason="the values do not vary and have no limits, so nothing bounds their mean")
    return replace(
        blank,
        verdict=judge(found.low, found.high, blank.threshold, higher_is_better=higher_is_better),
        low=found.low,
        high=found.high,
        method=found.method,
        detectable=factor(found.degrees, blank.confidence) * found.error,
    )


def check_scores(scores: Iterable[float], limits: Limits | None) -> None:
    """Raises ValueError for a score that is no number, or lies outside the limits."""
    for score in scores:
        if not math.isfinite(score):
            raise ValueError(f"{score} is not a score")
        if limits and not limits[0] <= score <= limits[1]:
            raise ValueError(f"a score of {score} is outside its limits, {limits[0]:g} to {limits[1]:g}")
