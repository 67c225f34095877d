"""Many answers at once: all gated metrics together, and the list of scenarios that are suspected of having got worse."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from pytest_agentbench.gate.decisions import FAIL, INCONCLUSIVE, PASS

#: So many ways to deal the trials out are tried one by one; beyond, a sample of them.
_ALL_WAYS = 20_000


def overall(verdicts: Iterable[str]) -> str:
    """FAIL if one is, else PASS if all are, else INCONCLUSIVE; INCONCLUSIVE of none.

    An intersection-union test (Berger 1982, Technometrics 24:295): the whole passes wrongly only if some metric that is really worse
    passes wrongly, so each may be tested at the full level, and no correction for their number is due. It costs power, not safety.
    """
    found = list(verdicts)
    if FAIL in found:
        return FAIL
    return PASS if found and all(verdict == PASS for verdict in found) else INCONCLUSIVE


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
    """A scenario that may have got worse. No gate: it says where to look first."""

    scenario: str
    base: float  # mean
    new: float  # mean
    p: float  # one-sided


def suspects(new: Mapping[str, Sequence[float]], base: Mapping[str, Sequence[float]], rate: float = 0.1) -> list[Suspect]:
    """Scenarios with trials in both runs whose scores fell, at a false discovery rate, the surest first. Higher scores are better."""
    shared = [scenario for scenario in new if new[scenario] and base.get(scenario)]
    p_values = [fell(new[scenario], base[scenario]) for scenario in shared]
    listed = [
        Suspect(scenario, math.fsum(base[scenario]) / len(base[scenario]), math.fsum(new[scenario]) / len(new[scenario]), p)
        for scenario, p, keep in zip(shared, p_values, benjamini_hochberg(p_values, rate), strict=True)
        if keep
    ]
    return sorted(listed, key=lambda suspect: (suspect.p, suspect.scenario))
