"""Decisions of the gate: the record of one, several that are claimed together, and those that are made while trials are added.

The last are a group-sequential design (Jennison and Turnbull 2000): one side's 2.5 % is spent look by look, little of it early (O'Brien
and Fleming 1979, in the form of Lan and DeMets 1983, Biometrika 70:659). PASS and FAIL have a side each. A look is the usual interval,
only wider.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from pytest_agentbench.stats.quantiles import normal_quantile

if TYPE_CHECKING:
    from pytest_agentbench.stats.series import Floats


PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"

#: What a rule about scores asks: whether this suite scores worse (its trials are what varies), or whether scenarios like its own would
#: (they vary too). docs/gates.md explains the two.
SUITE, POPULATION = QUESTIONS = ("suite", "population")

#: What a rule asks from which nothing is inferred: what this run measured.
RUN = "run"


@dataclass(frozen=True)
class MissingScenarios:
    """Scenarios of the two runs that could not be compared, counted."""

    only_new: int = 0  # measured in the new run, not in the baseline's list
    only_base: int = 0
    changed: int = 0  # the same id, but another content
    unmeasured: int = 0  # in both, without a measured trial in one of them

    @property
    def total(self) -> int:
        return self.only_new + self.only_base + self.changed + self.unmeasured


@dataclass(frozen=True)
class Decision:
    """What is known of one metric, and what follows. Units are the metric's own; of ratios, 1.05 is 5 % more."""

    verdict: str  # PASS | FAIL | INCONCLUSIVE
    threshold: float  # what the interval has to lie beyond: -margin, 1 + margin, or the limit
    confidence: float  # of the interval, both sides together
    n: int  # scenarios compared
    trials: tuple[int, int]  # their measured trials (of latencies: calls) in the new run and in the baseline; 0 where there is none
    missing: MissingScenarios
    estimate: float | None = None  # the difference new - base, the ratio new / base, or the mean that has a limit
    low: float | None = None  # the interval; None where the data say nothing
    high: float | None = None
    # of the interval: within-scenario t | paired t | [clustered] adjusted t | moving blocks of 14 | ...; `a fact` where the run simply has
    # the number | deterministic | none
    method: str = "none"
    of: str = ""  # the question that was answered: suite | population | run; empty where there is only one
    detectable: float | None = (
        None  # the smallest true change beyond the threshold that such a run shows with probability 0.8; a factor of ratios
    )
    passable: float | None = None  # the smallest margin with which such a run passes with probability 0.8 when nothing has changed
    floor: float | None = None  # the margin below which a run of this size cannot pass, whatever it measures
    reason: str = ""  # why nothing could be decided, in words, where it is not the interval's width
    p_worse: float | None = None  # with a margin of 0: one-sided p-value of "worse", by dealing the trials out anew
    unseen: float | None = None  # of a suite that is said to be deterministic: the share of rollouts that could fail unseen, were it not


def judge(low: float | None, high: float | None, threshold: float, *, higher_is_better: bool = True) -> str:
    """PASS if the whole interval lies on the good side of the threshold, FAIL if on the bad side, else INCONCLUSIVE."""
    if low is None or high is None:
        return INCONCLUSIVE
    if not higher_is_better:
        low, high, threshold = -high, -low, -threshold
    if low > threshold:
        return PASS
    return FAIL if high < threshold else INCONCLUSIVE


def check_margin(margin: float, confidence: float) -> None:
    """Raises ValueError for a margin that is no allowance, and a confidence that is none."""
    if not 0 <= margin < math.inf:
        raise ValueError(f"a margin is how much worse is still accepted, 0 or more, not {margin}")
    if not 0.9 <= confidence < 1:  # what benchmarks/verdict-results.md was made for
        raise ValueError(f"a confidence is at least 0.9 and less than 1, such as 0.95, not {confidence}")


Comparing = Callable[[float], Decision]  # at a confidence


def step_down(family: Sequence[Comparing], confidence: float = 0.95) -> list[Decision]:
    """The decisions of a family of comparisons: with probability `confidence` none of those that claim something does so wrongly.

    Holm's procedure (1979, Scandinavian Journal of Statistics 6:65), by intervals in place of p-values: all that are undecided are looked
    at with intervals of 1 - risk / (number of the undecided), and as long as one of them decides so, the others are looked at again, at
    what is a lower confidence now. It needs no assumption on how the comparisons depend on each other, as those do that share an arm. An
    interval that decides is the one of its step, so what is printed agrees with what is claimed. Each of them is at least as wide as that
    of one comparison alone, so each covers with `confidence` at least; all of them at a time would need wider ones (Guilbaud 2008,
    Biometrical Journal 50:678). A family of one is that comparison. A comparison without an interval tests nothing, and leaves the family.
    """
    decisions: dict[int, Decision] = {}
    undecided = [*range(len(family))]
    while undecided:
        level = 1 - (1 - confidence) / len(undecided)
        decisions |= {place: family[place](level) for place in undecided}
        left = [place for place in undecided if decisions[place].verdict == INCONCLUSIVE and decisions[place].low is not None]
        if left == undecided:
            break
        undecided = left
    return [decisions[place] for place in range(len(family))]


#: Trials on each side from which on a single scenario is claimed to have got worse: dealing out five and five has a p-value of 1/252 at
#: the least, three and three one of 1/20, which is nothing among a hundred scenarios.
FEWEST = 5

RANKED = 10  # scenarios in a ranking

#: So many ways to deal the trials out are tried one by one; beyond, a sample of them.
_ALL_WAYS = 20_000


def overall(verdicts: Iterable[str]) -> str:
    """FAIL if one is, else PASS if all are, else INCONCLUSIVE; INCONCLUSIVE of none.

    An intersection-union test (Berger 1982, Technometrics 24:295): the whole passes wrongly only if some metric that is really worse
    passes wrongly, so each may be tested at the full level, and no correction for their number is due. It costs power, not safety.
    """
    every = list(verdicts)
    if FAIL in every:
        return FAIL
    return PASS if every and all(verdict == PASS for verdict in every) else INCONCLUSIVE


def benjamini_hochberg(p_values: Sequence[float], rate: float = 0.1) -> list[bool]:
    """Which ones to list so that the expected share of false ones among those listed is at most `rate`.

    The largest j with p_(j) <= j rate / m decides (Benjamini and Hochberg 1995, J. R. Stat. Soc. B 57:289).
    """
    if wrong := [p for p in p_values if not 0 <= p <= 1]:
        raise ValueError(f"{wrong[0]} is not a p-value")
    count = len(p_values)
    limit = max((p for rank, p in enumerate(sorted(p_values), 1) if p <= rank * rate / count), default=-1.0)
    return [p <= limit for p in p_values]


def fall_p_value(new: Sequence[float], base: Sequence[float], seed: int = 0) -> float:
    """One-sided p-value of "the scenario's scores fell", from how the trials could have been dealt out to the two runs.

    An exact permutation test; for scores of 0 and 1 it is Fisher's exact test. 1 without trials on either side.
    """
    if not new or not base:
        return 1.0
    pool = [*new, *base]
    bound = math.fsum(new) + 1e-9 * max(1.0, *map(abs, pool))
    if math.comb(len(pool), len(new)) <= _ALL_WAYS:
        ways = [math.fsum(way) <= bound for way in combinations(pool, len(new))]
        return sum(ways) / len(ways)
    generator = random.Random(seed)
    lower = sum(math.fsum(generator.sample(pool, len(new))) <= bound for _ in range(_ALL_WAYS))
    return (1 + lower) / (1 + _ALL_WAYS)  # Phipson and Smyth 2010: a sampled p-value is never 0


@dataclass(frozen=True)
class Suspect:
    """A scenario whose scores fell. No gate: it says where to look first."""

    scenario: str
    base: float  # mean
    new: float  # mean
    p: float  # one-sided
    claimed: bool  # one of a list of which one in ten is there by chance; else a place in a ranking, which claims nothing


def suspects(new: Mapping[str, Sequence[float]], base: Mapping[str, Sequence[float]], rate: float = 0.1) -> list[Suspect]:
    """Scenarios with trials in both runs whose scores fell, the surest first, then those that fell most. Higher scores are better.

    From `FEWEST` trials on each side on they are claimed, at a false discovery rate. With fewer they are ranked, the first `RANKED`.
    """
    shared = [_suspect(name, new[name], base[name]) for name in new if new[name] and base.get(name)]
    tested = [each for each in shared if min(len(new[each.scenario]), len(base[each.scenario])) >= FEWEST]
    listed = benjamini_hochberg([each.p for each in tested], rate)
    claims = [replace(each, claimed=True) for each, keep in zip(tested, listed, strict=True) if keep]
    others = {each.scenario for each in shared} - {each.scenario for each in tested}
    ranking = [each for each in shared if each.scenario in others and each.new < each.base]
    return [*sorted(claims, key=_place), *sorted(ranking, key=_place)[:RANKED]]


def _suspect(scenario: str, new: Sequence[float], base: Sequence[float]) -> Suspect:
    before, now = (math.fsum(scores) / len(scores) for scores in (base, new))
    return Suspect(scenario, before, now, fall_p_value(new, base), claimed=False)


def _place(suspect: Suspect) -> tuple[float, float, str]:
    return suspect.p, suspect.new - suspect.base, suspect.scenario


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
