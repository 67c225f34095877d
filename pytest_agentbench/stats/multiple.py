"""Many answers at once: all gated metrics together, and the list of scenarios that are suspected of having got worse."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS

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


def fell(new: Sequence[float], base: Sequence[float], seed: int = 0) -> float:
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
    found = sum(math.fsum(generator.sample(pool, len(new))) <= bound for _ in range(_ALL_WAYS))
    return (1 + found) / (1 + _ALL_WAYS)  # Phipson and Smyth 2010: a sampled p-value is never 0


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
    return Suspect(scenario, before, now, fell(new, base), claimed=False)


def _place(suspect: Suspect) -> tuple[float, float, str]:
    return suspect.p, suspect.new - suspect.base, suspect.scenario
