"""Decisions of the gate: their data class, corrections for several comparisons, and interim looks.

An interim look checks a rule after a round of trials, while more rounds may follow. Checking several times would raise the risk of a
wrong verdict, so each look uses a wider interval (a group-sequential design, Jennison and Turnbull 2000). PASS and FAIL may each be
wrong in 2.5 % of cases. This risk is divided among the looks, and early ones get little of it (O'Brien and Fleming 1979, in the form
of Lan and DeMets 1983, Biometrika 70:659).
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

#: The two questions of rules about scores: does this suite score worse (only its trials vary), or would scenarios like its own score
#: worse (the scenarios vary too)? docs/compare/gates.md explains both.
SUITE, POPULATION = QUESTIONS = ("suite", "population")

#: The question of a rule without inference: what did this run measure?
RUN = "run"


@dataclass(frozen=True)
class MissingScenarios:
    """The numbers of scenarios that could not be compared between two runs, by reason."""

    only_new: int = 0  # only in the new run
    only_base: int = 0  # only in the baseline
    changed: int = 0  # same id, but different content
    unmeasured: int = 0  # in both, but without a measured trial in one of them

    @property
    def total(self) -> int:
        return self.only_new + self.only_base + self.changed + self.unmeasured


@dataclass(frozen=True)
class Decision:
    """The decision on one metric. It contains the estimate and the interval from which the verdict follows.

    Numbers are in the metric's own unit, or ratios: 1.05 is 5 % more.
    """

    verdict: str  # PASS | FAIL | INCONCLUSIVE
    threshold: float  # value that the interval is compared with: -margin, 1 + margin, or the limit
    confidence: float  # confidence of the two-sided interval
    n: int  # number of compared scenarios
    trials: tuple[int, int]  # measured trials (for latencies: calls) in the new run and in the baseline, or 0 without one
    missing: MissingScenarios
    estimate: float | None = None  # difference new - base, ratio new / base, or the mean that has a limit
    low: float | None = None  # lower end of the interval; None without an interval
    high: float | None = None  # upper end of the interval
    # method of the interval: within-scenario t | paired t | [clustered] adjusted t | moving blocks of 14 | ...; `a fact` if the value is
    # known exactly | deterministic | none
    method: str = "none"
    of: str = ""  # question that was answered: suite | population | run; empty if the metric has only one
    detectable: float | None = (
        None  # smallest true change beyond the threshold that such a run detects with probability 0.8; for ratios a factor
    )
    passable: float | None = None  # smallest margin with which such a run passes with probability 0.8 if nothing has changed
    floor: float | None = None  # margin below which a run of this size cannot pass, whatever it measures
    reason: str = ""  # why nothing could be decided, if the reason is not the width of the interval
    p_worse: float | None = None  # with a margin of 0: one-sided p-value of "worse", by permutation of the trials
    unseen: float | None = None  # for a suite marked deterministic: share of rollouts that could fail unnoticed if it is not


def judge(low: float | None, high: float | None, threshold: float, *, higher_is_better: bool = True) -> str:
    """Returns PASS if the whole interval is on the good side of the threshold, FAIL if on the bad side, else INCONCLUSIVE."""
    if low is None or high is None:
        return INCONCLUSIVE
    if not higher_is_better:
        low, high, threshold = -high, -low, -threshold
    if low > threshold:
        return PASS
    return FAIL if high < threshold else INCONCLUSIVE


def check_margin(margin: float, confidence: float) -> None:
    """Raises ValueError if the margin is negative or not finite, or if the confidence is out of range."""
    if not 0 <= margin < math.inf:
        raise ValueError(f"margin {margin} must be 0 or more, because it is the accepted loss")
    if not 0.9 <= confidence < 1:  # The range that benchmarks/verdict-results.md covers
        raise ValueError(f"confidence {confidence} must be at least 0.9 and less than 1, such as 0.95")


Comparing = Callable[[float], Decision]  # makes a decision at a given confidence


def step_down(family: Sequence[Comparing], confidence: float = 0.95) -> list[Decision]:
    """Makes the decisions of a family of comparisons. With probability `confidence`, none of the decided ones is wrong.

    This is Holm's procedure (1979, Scandinavian Journal of Statistics 6:65) with intervals in place of p-values. All undecided comparisons
    get intervals with confidence 1 - risk / (number of undecided comparisons). If one of them decides, the others are repeated with the
    confidence for the smaller number, which is lower. The procedure needs no assumption about how the comparisons depend on each other,
    as comparisons that share an arm do.

    A decided comparison keeps the interval of its step, so the printed interval agrees with the verdict. Each interval is at least as wide
    as that of a single comparison, so each one covers with at least `confidence`. Simultaneous coverage would need wider intervals
    (Guilbaud 2008, Biometrical Journal 50:678). A family of one is a single comparison. A comparison without an interval tests nothing,
    and leaves the family.
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


#: Fewest trials in each run with which a single scenario can be claimed to be worse. Permuting five and five trials has a p-value of at
#: least 1/252; three and three have one of at least 1/20, which shows nothing among a hundred scenarios.
FEWEST = 5

RANKED = 10  # number of scenarios in a ranking

#: Up to this many permutations are enumerated; if there are more, a sample is drawn.
_ALL_WAYS = 20_000


def overall(verdicts: Iterable[str]) -> str:
    """Returns FAIL if one verdict is FAIL, else PASS if all are PASS, else INCONCLUSIVE, also without verdicts.

    This is an intersection-union test (Berger 1982, Technometrics 24:295). The whole passes wrongly only if some metric that is really
    worse passes wrongly, so each can be tested at the full level without a correction for their number. PASS is rarer, but not less safe.
    """
    every = list(verdicts)
    if FAIL in every:
        return FAIL
    return PASS if every and all(verdict == PASS for verdict in every) else INCONCLUSIVE


def benjamini_hochberg(p_values: Sequence[float], rate: float = 0.1) -> list[bool]:
    """Returns which p-values to list so that the expected share of false ones among those listed is at most `rate`.

    The largest j with p_(j) <= j rate / m decides (Benjamini and Hochberg 1995, J. R. Stat. Soc. B 57:289).
    """
    if wrong := [p for p in p_values if not 0 <= p <= 1]:
        raise ValueError(f"p-value {wrong[0]} must be from 0 to 1")
    count = len(p_values)
    limit = max((p for rank, p in enumerate(sorted(p_values), 1) if p <= rank * rate / count), default=-1.0)
    return [p <= limit for p in p_values]


def fall_p_value(new: Sequence[float], base: Sequence[float], seed: int = 0) -> float:
    """Returns the one-sided p-value of "the scenario's scores fell", by a permutation test.

    The test is exact up to 20,000 permutations. For scores of 0 and 1 it is Fisher's exact test. The p-value is 1 if a run has no trials.
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
    """A scenario whose scores fell. It has no influence on the gate, but shows where to look first."""

    scenario: str
    base: float  # mean score in the baseline
    new: float  # mean score in the new run
    p: float  # one-sided p-value
    claimed: bool  # True: in a list with a false discovery rate of one in ten; False: in a ranking, which claims nothing


def suspects(new: Mapping[str, Sequence[float]], base: Mapping[str, Sequence[float]], rate: float = 0.1) -> list[Suspect]:
    """Returns scenarios with trials in both runs whose scores fell, by p-value and then by the size of the drop.

    Higher scores are better. Scenarios with at least `FEWEST` trials in each run are returned only if they pass the false discovery rate
    `rate`; they are `claimed` and come first. Scenarios with fewer trials are only ranked, and the first `RANKED` of them are returned.
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


#: Round after which the first interim look takes place, because a single trial of a scenario has no variance.
FIRST_LOOK = 2

MOST_ROUNDS = 20  # limit on rounds: more looks widen the intervals for little gain

_NODES = 400  # nodes of an integral over a smooth density, accurate to 1e-6
_FAR = 9.0  # standard deviations beyond which the density is negligible
_SUREST = 1 - 1e-9  # largest confidence, because an interval has to end


@dataclass(frozen=True)
class InterimLooks:
    """The schedule of interim looks at one rule: one after each round of trials from the second on, up to `most` rounds."""

    most: int  # largest number of rounds
    base_trials: float = 0.0  # trials of each scenario in the baseline, a fixed number; 0: a limit, which has no noise

    def confidence(self, rounds: int, confidence: float) -> float:
        """Returns the confidence of the interval after this many rounds, if the interval of a single look would have `confidence`.

        A run that ended before its first look is judged like one at its first look.
        """
        looks = range(FIRST_LOOK, self.most + 1)
        place = min(max(rounds, FIRST_LOOK), self.most) - FIRST_LOOK
        value = critical_values(tuple(map(self._share, looks)), (1 - confidence) / 2)[place]
        return min(math.erf(value / math.sqrt(2)), _SUREST)

    def _share(self, rounds: int) -> float:
        """Returns the information after this many rounds, as a share of that after the last round.

        Information is the inverse of the variance, which is proportional to 1 / rounds + 1 / base_trials.
        """
        return self._known(rounds) / self._known(self.most)

    def _known(self, rounds: int) -> float:
        return 1 / (1 / rounds + 1 / self.base_trials) if self.base_trials else float(rounds)


def spent(share: float, risk: float) -> float:
    """Returns how much of the risk of a wrong PASS, or of a wrong FAIL, interim looks may have used up (O'Brien-Fleming spending).

    `share` is the information so far, as a share of that after the last round. `risk` is the risk that all looks together may have.
    """
    return math.erfc(normal_quantile(1 - risk / 2) / math.sqrt(share) / math.sqrt(2))


@functools.lru_cache(maxsize=256)
def critical_values(shares: Sequence[float], risk: float) -> tuple[float, ...]:
    """Returns, for each look, how many standard errors an estimate has to lie beyond the threshold.

    `shares` are the shares of the final information and rise to 1. The sum of many observations behaves like Brownian motion. Its
    density, truncated where an earlier look has decided, is carried from look to look (Armitage, McPherson and Rowe 1969).
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
    """Returns the value that a random walk exceeds with probability `risk` after a normal step of variance `step`, by bisection.

    Before the step, the walk is at each point of `at` with the probability in `mass`.
    """
    low, high = -_FAR, _FAR
    while high - low > 1e-9:
        middle = (low + high) / 2
        tails = (math.erfc((middle - place) / math.sqrt(2 * step)) / 2 for place in at.tolist())
        above = math.fsum(tail * each for tail, each in zip(tails, mass.tolist(), strict=True))
        low, high = (middle, high) if above > risk else (low, middle)
    return (low + high) / 2


def _nodes(share: float, bound: float) -> tuple[Floats, Floats]:
    """Returns nodes up to a bound and their weights for Gauss-Legendre integration."""
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
