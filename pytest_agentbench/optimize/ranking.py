"""Ranks the settings of a search by their rollouts beside those of the default settings, on the same scenarios and at the same time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from pytest_agentbench.gate.evidence import Trial, latencies, samples
from pytest_agentbench.optimize.space import QUALITY
from pytest_agentbench.optimize.spending import SPENDING, spent
from pytest_agentbench.records import Scale
from pytest_agentbench.stats.quantiles import percentile


@dataclass(frozen=True)
class ComparedSettings:
    """The rollouts of the default settings and of others. Both ran the same scenarios, in alternating blocks of one session."""

    base: Sequence[Trial]  # of the default settings
    new: Sequence[Trial]


@dataclass(frozen=True)
class RankingTerms:
    """The terms of a search: its objectives, with the loss of quality as a penalty."""

    objectives: tuple[str, ...]  # such as `rollout.p50` or `quality`
    score: str  # main score of the suite
    scale: Scale  # scale of that score
    weight: float = 1.0  # how many units of a log ratio the whole range of the score counts


@dataclass(frozen=True)
class RankingEvidence:
    """The comparison of some settings with the default ones, as far as a search has measured. Only a ranking follows from it, no claim."""

    ratios: Mapping[str, float]  # objective -> mean logarithm of the ratio to the default settings; below 0 is less
    errors: Mapping[str, float]  # objective -> standard error of that mean
    loss: float  # mean loss of the main score, as a share of its range; below 0 is better than the default settings
    loss_error: float  # standard error of the loss
    pairs: int  # pairs of rollouts of the same scenario and trial

    def values(self, terms: RankingTerms) -> list[float]:
        """Returns the value of each objective, of which less is better.

        A loss of quality is added to each ratio, as far as it exceeds its standard error, because a search that runs few rollouts would
        otherwise be led by the noise of scores. If quality is an objective of its own, nothing is added.
        """
        penalty = 0.0 if QUALITY in terms.objectives else terms.weight * max(0.0, self.loss - self.loss_error)
        return [self.loss if name == QUALITY else self.ratios[name] + penalty for name in terms.objectives]


def evidence_of(measured: Sequence[ComparedSettings], terms: RankingTerms) -> RankingEvidence | None:
    """Returns the comparison of some settings with the default ones over all parts of a trial, or None if nothing can be compared."""
    speeds = {name: [each for part in measured for each in log_ratios(part, name)] for name in terms.objectives if name != QUALITY}
    losses = [each for part in measured for each in _losses(part, terms)]
    if any(len(each) < 2 for each in (*speeds.values(), losses)):
        return None
    return RankingEvidence(
        {name: fmean(each) for name, each in speeds.items()},
        {name: _error(each) for name, each in speeds.items()},
        fmean(losses),
        _error(losses),
        min(map(len, speeds.values())),
    )


def log_ratios(compared: ComparedSettings, objective: str) -> list[float]:
    """Returns the logarithm of the ratio new / base for each pair of rollouts of the same scenario and trial with a known value."""
    new, base = (dict(_values(trials, objective)) for trials in (compared.new, compared.base))
    return [math.log(new[key] / base[key]) for key in new if key in base]


def _values(trials: Sequence[Trial], objective: str) -> Iterator[tuple[tuple[str, int], float]]:
    metric, _, statistic = objective.partition(".")
    q = int(statistic.removeprefix("p") or 50)  # A rollout has a single cost, which is any percentile.
    for each in spent(trials, objective) if objective in SPENDING else latencies(trials, metric):
        if (value := percentile(each.values, q)) is not None:
            yield (each.scenario, each.trial), value


def _losses(compared: ComparedSettings, terms: RankingTerms) -> list[float]:
    """Returns the loss of the mean score of each scenario, as a share of the score's range if it has one."""
    new, base = (samples(trials, terms.score, terms.scale) for trials in (compared.new, compared.base))
    width = terms.scale.width or 1.0
    known = [scenario for scenario in new if new[scenario].scores and scenario in base and base[scenario].scores]
    return [(terms.scale.loss(new[each].mean) - terms.scale.loss(base[each].mean)) / width for each in known]


def _error(values: Sequence[float]) -> float:
    """Returns the standard error of the mean."""
    count, mean = len(values), fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)


def selection_gain(errors: Sequence[float]) -> float:
    """Returns how far below 0 the lowest of several log ratios is by chance alone, if all settings are equal.

    `errors` are the standard errors of the log ratios. The expected lowest of n normal values is Blom's approximation (1958).
    """
    count = len(errors)
    return fmean(errors) * NormalDist().inv_cdf(0.625 / (count + 0.25)) if count > 1 else 0.0
