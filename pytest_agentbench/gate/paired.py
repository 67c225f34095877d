"""A run against its baseline, scenario by scenario: has the metric dropped by less than the margin, by more, or can nobody tell?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pytest_agentbench.gate.binary import mcnemar, tango_interval
from pytest_agentbench.gate.bounded import Clusters
from pytest_agentbench.gate.decisions import INCONCLUSIVE, Decision, Missing, check_margin
from pytest_agentbench.gate.intervals import Found, Limits, check_scores, decided, mean_of, too_few
from pytest_agentbench.gate.special import normal_quantile


@dataclass(frozen=True)
class Sample:
    """What was measured of one scenario in one run."""

    content: str  # the scenario's content hash
    scores: tuple[float, ...]  # of each measured trial; a trial without a measurement is not here
    cluster: str | None = None  # scenarios of one cluster are not independent

    @property
    def mean(self) -> float:
        return math.fsum(self.scores) / len(self.scores)


@dataclass(frozen=True)
class Pair:
    """One scenario, measured in both runs."""

    new: Sample
    base: Sample

    @property
    def difference(self) -> float:
        return self.new.mean - self.base.mean


def pair(new: Mapping[str, Sample], base: Mapping[str, Sample]) -> tuple[dict[str, Pair], Missing]:
    """Scenarios measured in both runs with the same content, in the new run's order, and the count of all others."""
    both = {scenario: Pair(sample, base[scenario]) for scenario, sample in new.items() if scenario in base}
    same = {scenario: each for scenario, each in both.items() if each.new.content == each.base.content}
    measured = {scenario: each for scenario, each in same.items() if each.new.scores and each.base.scores}
    return measured, Missing(len(new) - len(both), len(base) - len(both), len(both) - len(same), len(same) - len(measured))


def compare(
    new: Mapping[str, Sample],
    base: Mapping[str, Sample],
    margin: float,
    *,
    limits: Limits | None = (0.0, 1.0),
    confidence: float = 0.95,
    higher_is_better: bool = True,
    seed: int = 0,
) -> Decision:
    """Non-inferiority of a run to its baseline, paired by scenario id and content hash; both map a scenario's id to its sample.

    PASS if the whole interval of the mean difference lies above -margin, FAIL if below, else INCONCLUSIVE; with `higher_is_better` off,
    below and above +margin. Each is wrong with probability (1 - confidence) / 2, and 1 - confidence in the worst case, which is a suite
    whose scenarios break as a whole. Trials are averaged within their scenario first, never pooled.

    `limits` are the least and the greatest possible score; None for counts, costs and the like. Methods:

    - one trial on both sides that is at either limit, no clusters: Tango's interval, and McNemar's p beside it;
    - scores with limits otherwise: the adjusted t interval of `bounded`, cluster-robust where scenarios share clusters;
    - scores without: bootstrap-t, clusters drawn whole; nothing is said where the differences do not vary.

    Scenarios without a partner are counted in `missing`; too many of them are for the caller to refuse. Raises ValueError for a score
    that is not finite or outside the limits, for a margin below 0 and for a confidence below 0.9.
    """
    check_margin(margin, confidence)
    pairs, missing = pair(new, base)
    check_scores((score for each in pairs.values() for score in (*each.new.scores, *each.base.scores)), limits)
    differences = [each.difference for each in pairs.values()]
    clusters = _clusters({scenario: each.new for scenario, each in pairs.items()})
    blank = Decision(
        verdict=INCONCLUSIVE,
        estimate=math.fsum(differences) / len(differences) if differences else None,
        threshold=-margin if higher_is_better else margin,
        confidence=confidence,
        n=len(pairs),
        trials=(sum(len(each.new.scores) for each in pairs.values()), sum(len(each.base.scores) for each in pairs.values())),
        reason=too_few(clusters, limits),
        missing=missing,
    )
    if blank.reason:
        return blank
    if limits and clusters.single and all(_one_binary_trial(each, limits) for each in pairs.values()):
        found, p = _tango(differences, limits[1] - limits[0], confidence, higher_is_better=higher_is_better)
        return replace(decided(blank, found, higher_is_better=higher_is_better), mcnemar=p)
    reach = limits and limits[1] - limits[0]
    found_mean = mean_of(differences, clusters, (-reach, reach) if reach else None, confidence, seed)
    return decided(blank, found_mean, higher_is_better=higher_is_better)


def against_limit(
    run: Mapping[str, Sample],
    limit: float,
    *,
    limits: Limits | None = (0.0, 1.0),
    confidence: float = 0.95,
    higher_is_better: bool = True,
    seed: int = 0,
) -> Decision:
    """One run's mean against a limit, such as `tsq.mean >= 0.80` or, with values of 0 and 1, a rate. Methods and errors as `compare`'s."""
    check_margin(0, confidence)
    measured = {scenario: sample for scenario, sample in run.items() if sample.scores}
    check_scores((score for sample in measured.values() for score in sample.scores), limits)
    means = [sample.mean for sample in measured.values()]
    clusters = _clusters(measured)
    blank = Decision(
        verdict=INCONCLUSIVE,
        estimate=math.fsum(means) / len(means) if means else None,
        threshold=limit,
        confidence=confidence,
        n=len(means),
        trials=(sum(len(sample.scores) for sample in measured.values()), 0),
        reason=too_few(clusters, limits),
        missing=Missing(unmeasured=len(run) - len(measured)),
    )
    if blank.reason:
        return blank
    return decided(blank, mean_of(means, clusters, limits, confidence, seed), higher_is_better=higher_is_better)


def _clusters(samples: Mapping[str, Sample]) -> Clusters:
    return Clusters.of_scenarios({scenario: sample.cluster for scenario, sample in samples.items()})


def _one_binary_trial(each: Pair, limits: Limits) -> bool:
    return len(each.new.scores) == len(each.base.scores) == 1 and each.new.scores[0] in limits and each.base.scores[0] in limits


def _tango(differences: list[float], reach: float, confidence: float, *, higher_is_better: bool) -> tuple[Found, float]:
    """Tango's interval in the score's own unit, and McNemar's p-value of "worse"."""
    n, down, up = len(differences), sum(each < 0 for each in differences), sum(each > 0 for each in differences)
    low, high = (reach * bound for bound in tango_interval(down, up, n, confidence))
    error = (high - low) / 2 / normal_quantile((1 + confidence) / 2)
    return Found(low, high, error, n - 1, "tango"), mcnemar(down, up) if higher_is_better else mcnemar(up, down)
