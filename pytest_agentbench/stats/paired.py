"""Compares a run with its baseline, paired by scenario: has the metric dropped by less than the margin, by more, or is that unknown?

With a margin of 0, a permutation test also exchanges each scenario's trials between the two runs. It is exact if no scenario changed, and
needs no variance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS, POPULATION, SUITE, Decision, MissingScenarios, check_margin
from pytest_agentbench.stats.intervals import (
    Limits,
    SampledInterval,
    Scores,
    check_scores,
    decided,
    of_population,
    of_suite,
    too_few,
    unbounded,
)
from pytest_agentbench.stats.mean_intervals import Clusters, mcnemar
from pytest_agentbench.stats.means import scenarios_interval

if TYPE_CHECKING:
    import numpy as np

    from pytest_agentbench.stats.series import Floats


DEALS = 9999  # number of sampled permutations
_WAYS = 1000  # number of permutations of one scenario up to which all are listed
_AT_ONCE = 2_000_000  # limit on the numbers in memory at a time


def worse(new: Sequence[Sequence[float]], base: Sequence[Sequence[float]], seed: int = 0, deals: int = DEALS) -> float:
    """Returns the one-sided p-value of "the mean over scenarios is lower". Each scenario has trials in both runs, and higher is better.

    It is the share of permutations of the trials whose mean is as low as the measured one. If every scenario has one trial that passes or
    fails, it is McNemar's exact test. The p-value of `deals` sampled permutations is never 0 (Phipson and Smyth 2010).
    """
    import numpy as np

    both = [(one, other) for one, other in zip(new, base, strict=True) if len({*one, *other}) > 1]
    if len({abs(one[0] - other[0]) for one, other in both}) == 1 and all(len(one) == len(other) == 1 for one, other in both):
        fell = sum(one[0] < other[0] for one, other in both)
        return mcnemar(fell, len(both) - fell)
    if not both:
        return 1.0
    measured = math.fsum(math.fsum(one) / len(one) - math.fsum(other) / len(other) for one, other in both)
    bound = measured + 1e-9 * max(1.0, *(abs(score) for pair in both for scores in pair for score in scores))
    random = np.random.default_rng(seed)
    size = max(1, _AT_ONCE // max(len(one) + len(other) for one, other in both))
    low = 0
    for start in range(0, deals, size):
        dealt = np.zeros(min(size, deals - start))
        for one, other in both:
            dealt += _dealt(random, one, other, len(dealt))
        low += int((dealt <= bound).sum())
    return (1 + low) / (1 + deals)


def _dealt(random: np.random.Generator, new: Sequence[float], base: Sequence[float], deals: int) -> Floats:
    """Returns `deals` random differences of the means of one scenario, each after permuting its trials between the runs."""
    import numpy as np

    pool = np.array([*new, *base])
    if math.comb(len(pool), len(new)) <= _WAYS:
        first = pool[np.array([*combinations(range(len(pool)), len(new))])].sum(-1)
        first = first[random.integers(0, len(first), deals)]
    else:
        first = random.permuted(np.broadcast_to(pool, (deals, len(pool))), axis=1)[:, : len(new)].sum(-1)
    return np.asarray(first / len(new) - (pool.sum() - first) / len(base))


ROUNDING = 1e-9  # difference up to which two means are equal


@dataclass(frozen=True)
class ScenarioSample:
    """The measurements of one scenario in one run."""

    content: str  # content hash of the scenario
    scores: tuple[float, ...]  # scores of the measured trials
    cluster: str | None = None  # cluster of the scenario; scenarios of one cluster are not independent
    lost: int = 0  # number of trials without a measurement

    @property
    def mean(self) -> float:
        return math.fsum(self.scores) / len(self.scores)


@dataclass(frozen=True)
class Pair:
    """One scenario, measured in both runs."""

    new: ScenarioSample
    base: ScenarioSample

    @property
    def difference(self) -> float:
        return self.new.mean - self.base.mean


def pair(new: Mapping[str, ScenarioSample], base: Mapping[str, ScenarioSample]) -> tuple[dict[str, Pair], MissingScenarios]:
    """Returns the scenarios measured in both runs with the same content, in the new run's order, and the counts of the others."""
    both = {scenario: Pair(sample, base[scenario]) for scenario, sample in new.items() if scenario in base}
    same = {scenario: each for scenario, each in both.items() if each.new.content == each.base.content}
    measured = {scenario: each for scenario, each in same.items() if each.new.scores and each.base.scores}
    return measured, MissingScenarios(len(new) - len(both), len(base) - len(both), len(both) - len(same), len(same) - len(measured))


def compare(
    new: Mapping[str, ScenarioSample],
    base: Mapping[str, ScenarioSample],
    margin: float,
    *,
    of: str = SUITE,
    limits: Limits | None = (0.0, 1.0),
    confidence: float = 0.95,
    higher_is_better: bool = True,
    deterministic: bool = False,
    seed: int = 0,
) -> Decision:
    """Decides whether a run is not worse than its baseline by more than `margin`.

    Scenarios are paired by id and content hash. PASS if the whole interval of the mean difference lies above -margin, FAIL if below, else
    INCONCLUSIVE. Without `higher_is_better`, PASS is below +margin and FAIL above. Each verdict is wrong with probability
    (1 - confidence) / 2, and 1 - confidence in the worst case.

    Args:
        new: The run: scenario id -> its sample.
        base: The baseline: scenario id -> its sample.
        margin: The accepted loss. With 0, a permutation test of the trials within their scenarios can also lead to FAIL.
        of: The question. SUITE: the scenarios are fixed, and their trials vary. POPULATION: the scenarios or their clusters are a sample.
        limits: The least and the greatest possible score. Without limits (counts, costs) both questions use bootstrap-t, which has no
            interval if the differences do not vary.
        confidence: The confidence of the two-sided interval, at least 0.9.
        higher_is_better: Whether higher scores are better.
        deterministic: Whether the trials of the suite never differ. For SUITE, the difference is then exact and has no interval, unless
            measured trials differ.
        seed: The seed of the bootstrap and the permutation test.

    Scenarios without a partner are counted in `missing`; the caller decides whether they are too many. If each scenario has a single trial
    that passes or fails, PASS is decided by Tango's interval. With limits, lost trials count as the worst case for PASS. Raises
    ValueError for a score that is not finite or outside the limits, for a margin below 0 and for a confidence below 0.9.
    """
    check_margin(margin, confidence)
    pairs, missing = pair(new, base)
    check_scores((score for each in pairs.values() for score in (*each.new.scores, *each.base.scores)), limits)
    blank = _undecided(pairs, missing, -margin if higher_is_better else margin, confidence, of)
    if deterministic and of == SUITE and pairs and not varying_scenarios(pairs):
        return _fact(blank, higher_is_better=higher_is_better)
    clusters = _clusters({scenario: each.new for scenario, each in pairs.items()}) if of == POPULATION else Clusters.of(range(len(pairs)))
    if few := too_few(clusters, limits):
        return replace(blank, reason=few)
    if limits is None:
        differences = [each.difference for each in pairs.values()]
        return decided(blank, unbounded(differences, clusters, confidence, seed), higher_is_better=higher_is_better)
    return _decided_by_interval(blank, (new, base), pairs, limits, seed, higher_is_better=higher_is_better)


def _undecided(pairs: Mapping[str, Pair], missing: MissingScenarios, threshold: float, confidence: float, of: str) -> Decision:
    """Returns an INCONCLUSIVE decision with the estimate and the counts, but without an interval."""
    differences = [each.difference for each in pairs.values()]
    return Decision(
        verdict=INCONCLUSIVE,
        estimate=math.fsum(differences) / len(differences) if differences else None,
        threshold=threshold,
        confidence=confidence,
        n=len(pairs),
        trials=(sum(len(each.new.scores) for each in pairs.values()), sum(len(each.base.scores) for each in pairs.values())),
        of=of,
        missing=missing,
    )


def varying_scenarios(pairs: Mapping[str, Pair]) -> list[str]:
    """Returns the scenarios that are not deterministic: their trials in one run differ."""
    return [scenario for scenario, each in pairs.items() if len({*each.new.scores}) > 1 or len({*each.base.scores}) > 1]


def _fact(blank: Decision, *, higher_is_better: bool) -> Decision:
    """Decides by the exact difference of a suite whose trials never differ.

    The field `unseen` is the share of rollouts that could have failed unnoticed if the suite is not deterministic.
    """
    assert blank.estimate is not None
    beyond = (blank.estimate - blank.threshold) * (1 if higher_is_better else -1)
    unseen = 1 - ((1 - blank.confidence) / 2) ** (1 / blank.trials[0])
    return replace(blank, verdict=PASS if beyond >= -ROUNDING else FAIL, method="deterministic", unseen=unseen)


def _upward(run: Mapping[str, ScenarioSample], limits: Limits, *, higher_is_better: bool) -> dict[str, ScenarioSample]:
    """Returns the samples with scores transformed so that 0 is the worst one and higher is better."""
    low, high = limits
    return {
        scenario: replace(each, scores=tuple(score - low if higher_is_better else high - score for score in each.scores))
        for scenario, each in run.items()
    }


def _limited(
    runs: Sequence[Mapping[str, ScenarioSample]], of: str, limits: Limits, confidence: float, *, higher_is_better: bool
) -> tuple[SampledInterval, tuple[Scores, Scores]]:
    """Returns the interval of the mean difference between a run and its baseline, given in this order, and the trials behind it.

    The end of the interval on the worse side is at least as far out as if every trial without a measurement were the worst case for the
    new run.
    """
    width = limits[1] - limits[0]
    new, base = (_upward(run, limits, higher_is_better=higher_is_better) for run in runs)
    sampled, trials = _interval(new, base, of, width, confidence)
    if any(each.lost for run in (new, base) for each in run.values()):
        at_worst, _ = _interval(_filled(new, 0.0), _filled(base, width), of, width, confidence)
        sampled = replace(sampled, low=min(sampled.low, at_worst.low))
    return (sampled if higher_is_better else replace(sampled, low=-sampled.high, high=-sampled.low)), trials


def _decided_by_interval(
    blank: Decision,
    runs: Sequence[Mapping[str, ScenarioSample]],
    pairs: Mapping[str, Pair],
    limits: Limits,
    seed: int,
    *,
    higher_is_better: bool,
) -> Decision:
    """Decides by the interval of scores between limits and, if the margin is 0, by a permutation test.

    If the verdict is INCONCLUSIVE although no score differs, the reason says what is needed for a verdict.
    """
    sampled, trials = _limited(runs, blank.of, limits, blank.confidence, higher_is_better=higher_is_better)
    decision = decided(blank, sampled, higher_is_better=higher_is_better)
    if blank.threshold == 0:
        decision = _permuted(decision, trials, seed)
    return replace(decision, reason=_unchanged(decision, pairs)) if decision.verdict == INCONCLUSIVE else decision


def _interval(
    new: Mapping[str, ScenarioSample], base: Mapping[str, ScenarioSample], of: str, width: float, confidence: float
) -> tuple[SampledInterval, tuple[Scores, Scores]]:
    """Returns the interval of the mean difference of scores from 0 to `width`, and the trials of both runs behind it."""
    pairs, _ = pair(new, base)
    trials = [each.new.scores for each in pairs.values()], [each.base.scores for each in pairs.values()]
    if of == SUITE:
        return of_suite(*trials, width, confidence), trials
    clusters = _clusters({scenario: each.new for scenario, each in pairs.items()})
    return of_population(*trials, clusters, width, confidence), trials


def _filled(run: Mapping[str, ScenarioSample], score: float) -> dict[str, ScenarioSample]:
    """Returns the samples with this score for each trial that was lost (has no measurement)."""
    return {scenario: replace(each, scores=(*each.scores, *[score] * each.lost), lost=0) for scenario, each in run.items()}


def _permuted(decision: Decision, trials: tuple[Scores, Scores], seed: int) -> Decision:
    p = worse(*trials, seed)
    fails = decision.verdict == INCONCLUSIVE and p <= (1 - decision.confidence) / 2
    return replace(decision, p_worse=p, verdict=FAIL if fails else decision.verdict)


def _unchanged(decision: Decision, pairs: Mapping[str, Pair]) -> str:
    """Returns a sentence if two runs without any difference are still not enough for a verdict, or an empty string."""
    if any(each.difference for each in pairs.values()) or decision.floor is None or decision.low is None:
        return ""
    margin, fewest = abs(decision.threshold), min(decision.trials)
    what = f"no score differs in {fewest} rollouts, which only rules out drops above {-decision.low:.3f}, but the margin is {margin:g}"
    if decision.of == POPULATION:
        return f"{what}: measure more scenarios"
    takes = "" if margin else "no number of trials is enough, so "  # For a margin above 0, `gate/needed` computes how many are.
    return f"{what}: {takes}set `deterministic: true` in suite.yaml if trials never differ"


def against_limit(
    run: Mapping[str, ScenarioSample],
    limit: float,
    *,
    of: str = SUITE,
    limits: Limits | None = (0.0, 1.0),
    confidence: float = 0.95,
    higher_is_better: bool = True,
    seed: int = 0,
) -> Decision:
    """Returns the decision whether the mean of a run reaches a limit, as in `tsq.mean >= 0.80`. With values of 0 and 1 it is a rate.

    The interval is the one that reports print.
    """
    check_margin(0, confidence)
    measured = {scenario: sample for scenario, sample in run.items() if sample.scores}
    check_scores((score for sample in measured.values() for score in sample.scores), limits)
    means = [sample.mean for sample in measured.values()]
    clusters = _clusters(measured) if of == POPULATION else Clusters.of(range(len(measured)))
    blank = Decision(
        verdict=INCONCLUSIVE,
        estimate=math.fsum(means) / len(means) if means else None,
        threshold=limit,
        confidence=confidence,
        n=len(means),
        trials=(sum(len(sample.scores) for sample in measured.values()), 0),
        reason=too_few(clusters, limits),
        of=of,
        missing=MissingScenarios(unmeasured=len(run) - len(measured)),
    )
    if blank.reason:
        return blank
    if limits is None:
        return decided(blank, unbounded(means, clusters, confidence, seed), higher_is_better=higher_is_better)
    sampled = _mean_interval(measured, limits, confidence, of)
    if any(each.lost for each in run.values()):
        filled = _filled(run, limits[0] if higher_is_better else limits[1])
        at_worst = _mean_interval({scenario: each for scenario, each in filled.items() if each.scores}, limits, confidence, of)
        sampled = replace(sampled, low=at_worst.low) if higher_is_better else replace(sampled, high=at_worst.high)
    return decided(blank, sampled, higher_is_better=higher_is_better)


def _mean_interval(run: Mapping[str, ScenarioSample], limits: Limits, confidence: float, of: str) -> SampledInterval:
    scores, clusters = ({scenario: getattr(each, name) for scenario, each in run.items()} for name in ("scores", "cluster"))
    interval = scenarios_interval(scores, clusters, confidence, limits, of)
    assert interval.low is not None and interval.high is not None and interval.standard_error is not None  # ensured by `too_few`
    return SampledInterval(interval.low, interval.high, interval.standard_error, interval.method)


def _clusters(samples: Mapping[str, ScenarioSample]) -> Clusters:
    return Clusters.of_scenarios({scenario: sample.cluster for scenario, sample in samples.items()})
