"""Chooses the interval for each kind of values, and turns an interval into a decision."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_agentbench.stats import mean_intervals, means
from pytest_agentbench.stats.decisions import Decision, judge
from pytest_agentbench.stats.mean_intervals import FEWEST_CLUSTERS, Clusters, bounded_mean, percentile_t, tango_interval
from pytest_agentbench.stats.power import ScoreLevel, detectable_drop, reach, silent_drop

Limits = tuple[float, float]
Scores = Sequence[Sequence[float]]  # the scores of each scenario's trials

#: Fewest scenarios for a decision about values without limits: the interval of skewed values is right only from about this number on
#: (benchmarks/verdict-results.md).
FEWEST_UNBOUNDED = 80

#: What to do about a score without limits. All scorers that the package brings have a range.
DECLARE_RANGE = "declare the range if it has one, as in `@scorer(range=(0, 1))` from pytest_agentbench"
NO_INTERVAL = f"all or nearly all values are equal, and the score has no limits, so the mean has no interval; {DECLARE_RANGE}"


@dataclass(frozen=True)
class SampledInterval:
    """An interval, its method, and what is needed to compute which changes a run could have detected."""

    low: float
    high: float
    error: float  # standard error of sampling
    method: str
    floor: float | None = None  # smallest distance of the lower end from the estimate, whatever was measured
    level: ScoreLevel | None = None  # level of scores with limits
    silent_drop: float | None = None  # if nothing varies: the drop that is detected with probability 0.8


def of_suite(new: Scores, base: Scores, width: float, confidence: float) -> SampledInterval:
    """Returns the interval of the mean change of scores between two runs, if only the trials of exactly these scenarios vary.

    Scores are from 0 to `width`. Each scenario has trials in both runs.
    """
    noise = means.noise(means.RunTrials.of(means.as_matrix(new)), means.RunTrials.of(means.as_matrix(base)))
    if one_binary_trial(new, base, width):
        noise = means.known(noise)
    bounds = means.decision_bounds(noise, (-width, width), confidence)
    unchanged = replace(noise, mean=noise.mean * 0, variance=noise.variance * 0)
    sampled = SampledInterval(
        low=float(bounds.low),
        high=float(bounds.high),
        error=float(bounds.error),
        method="paired t" if noise.paired or max(map(len, (*new, *base))) == 1 else "within-scenario t",
        floor=-float(means.guarded(unchanged, (-width, width), confidence).low),
        level=_level(new, base, float(noise.variance), width),
        silent_drop=_silent(new, base, width, confidence) if noise.is_constant else None,
    )
    plain = means.plain(noise, confidence)
    return _with_tango(sampled, float(plain.low), new, base, width, confidence, is_constant=bool(noise.is_constant))


def of_population(new: Scores, base: Scores, clusters: Clusters, width: float, confidence: float) -> SampledInterval:
    """Returns the interval of the mean change of scores between two runs, if these scenarios are a sample of all scenarios of their kind.

    Its lower end, for PASS, is that of the interval with imaginary clusters (`mean_intervals`), which change by -`width` or `width`, or
    of the cluster-robust interval, whichever is lower. Its upper end, for FAIL, is that of the cluster-robust interval or, if nothing
    varies, the higher of both. If there are no clusters, and every scenario has one trial in each run that passed or failed, Tango's
    interval replaces that with imaginary clusters.
    """
    import numpy as np

    differences = np.array([_mean(one) - _mean(other) for one, other in zip(new, base, strict=True)])
    plain = mean_intervals.robust_mean(differences, clusters, confidence)
    bounds = bounded_mean(differences, clusters, (-width, width), confidence)
    is_constant = bool(mean_intervals.is_constant(plain, differences))
    sampled = SampledInterval(
        low=max(min(float(plain.low), float(bounds.low)), -width),
        high=min(max(float(plain.high), float(bounds.high)) if is_constant else float(plain.high), width),
        error=float(plain.error),
        method=f"{'' if clusters.single else 'clustered '}adjusted t",
        floor=-float(bounded_mean(differences * 0, clusters, (-width, width), confidence).low),
        level=_level(new, base, float(plain.error) ** 2, width) if clusters.single else None,
    )
    return _with_tango(sampled, float(plain.low), new, base, width, confidence, is_constant=is_constant) if clusters.single else sampled


def _with_tango(
    sampled: SampledInterval, plain: float, new: Scores, base: Scores, width: float, confidence: float, *, is_constant: bool
) -> SampledInterval:
    """Returns the interval with bounds by Tango if every scenario has one trial in each run that passed or failed, else unchanged."""
    if not one_binary_trial(new, base, width):
        return sampled
    pairs = [*zip(new, base, strict=True)]
    down, up = (sum(sign * (one[0] - other[0]) > 0 for one, other in pairs) for sign in (-1, 1))
    low, high = (width * bound for bound in tango_interval(down, up, len(pairs), confidence))
    floor = -width * tango_interval(0, 0, len(pairs), confidence)[0]
    return replace(sampled, low=min(plain, low), high=high if is_constant else sampled.high, method="tango", floor=floor)


def _level(new: Scores, base: Scores, variance: float, width: float) -> ScoreLevel:
    """Returns mean and spread of the baseline's scores. `variance` is that of the mean difference between the runs, new - base."""
    shares = [sum(1 / len(each) for each in scores) / len(scores) for scores in (new, base)]
    within = variance * len(base) / sum(shares)
    means = [_mean(each) / width for each in base]
    return replace(ScoreLevel.of(means, within / width**2, 1 / shares[1]), new=shares[0] / sum(shares), pooled=shares[1] / sum(shares))


def _silent(new: Scores, base: Scores, width: float, confidence: float) -> float:
    ours, theirs = (sum(map(len, scores)) for scores in (new, base))
    return width * silent_drop(ours, theirs, single=min(map(len, (*new, *base))) == 1, confidence=confidence)


def one_binary_trial(new: Scores, base: Scores, width: float) -> bool:
    """Returns whether every scenario has one trial in each run, with the least or the greatest possible score."""
    return all(len(one) == len(other) == 1 for one, other in zip(new, base, strict=True)) and all(
        one[0] in (0.0, width) and other[0] in (0.0, width) for one, other in zip(new, base, strict=True)
    )


def unbounded(values: Sequence[float], clusters: Clusters, confidence: float, seed: int) -> SampledInterval | None:
    """Returns the interval of the mean of values without limits, one per scenario, or None if none or hardly any of them vary."""
    import numpy as np

    sampled = percentile_t(np.asarray(values, dtype=np.float64), clusters, confidence, seed)
    method = f"{'' if clusters.single else 'clustered '}percentile-t"
    return SampledInterval(sampled.low, sampled.high, sampled.error, method) if sampled else None


def too_few(clusters: Clusters, limits: Limits | None = (0.0, 1.0)) -> str:
    """Returns why there are too few scenarios or clusters for a decision, or an empty string."""
    needed = 2 if limits else FEWEST_UNBOUNDED
    if len(clusters.codes) < needed:
        count = len(clusters.codes)
        measured = f"{count} scenario{'s were' if count != 1 else ' was'} measured, but"
        if limits:
            return f"{measured} {needed} are needed; run more scenarios"
        return f"{measured} a score without limits needs {needed}; run more, or {DECLARE_RANGE}"
    if clusters.single:
        return ""
    if clusters.effective >= FEWEST_CLUSTERS:
        return ""
    return (
        f"the {len(clusters.codes)} scenarios are in {len(clusters.sizes)} clusters, which count as {clusters.effective:.3g} independent "
        f"scenarios, but {FEWEST_CLUSTERS} are needed; add scenarios in other clusters, or ask about the suite instead of the population"
    )


def decided(blank: Decision, sampled: SampledInterval | None, *, higher_is_better: bool) -> Decision:
    """Returns the decision `blank` with its interval and verdict filled in. Without an interval it stays INCONCLUSIVE."""
    if sampled is None or blank.estimate is None:
        return replace(blank, reason=NO_INTERVAL)
    good, bad = (sampled.low, sampled.high) if higher_is_better else (sampled.high, sampled.low)
    distance = abs(bad - blank.estimate)  # 0 if all values are the best possible ones, which does not tell what would be detected
    return replace(
        blank,
        verdict=judge(sampled.low, sampled.high, blank.threshold, higher_is_better=higher_is_better),
        low=sampled.low,
        high=sampled.high,
        method=sampled.method,
        detectable=sampled.silent_drop or (detectable_drop(distance, sampled.error, sampled.level) if distance else None),
        passable=reach(abs(blank.estimate - good), sampled.error),
        floor=sampled.floor,
    )


def check_scores(scores: Iterable[float], limits: Limits | None) -> None:
    """Raises ValueError for a score that is not finite or outside the limits."""
    for score in scores:
        if not math.isfinite(score):
            raise ValueError(f"score {score} must be finite")
        if limits and not limits[0] <= score <= limits[1]:
            raise ValueError(f"score {score} must be from {limits[0]:g} to {limits[1]:g}")


def _mean(scores: Sequence[float]) -> float:
    return math.fsum(scores) / len(scores)
