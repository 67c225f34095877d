"""Judges pairs of real runs with the gate and with two simpler methods (a plain threshold, and a pooled z test)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import NamedTuple

import numpy as np

from benchmarks.measurement import BenchmarkError
from benchmarks.verdicts.population import Interval, pooled_z
from pytest_agentbench.gate.evidence import Evidence, samples
from pytest_agentbench.gate.rules import SuiteRule, parse_rule
from pytest_agentbench.gate.verdict import judge_rules
from pytest_agentbench.stats.decisions import FAIL, PASS

SCORE = "tsq"


@dataclass(frozen=True)
class Run:
    """The evidence of one run of one suite, in which every scenario has a score."""

    evidence: Evidence
    group: str
    mean: float
    trials: int

    @classmethod
    def of(cls, evidence: Evidence) -> Run:
        """Returns the Run of some evidence. Raises BenchmarkError if a scenario has no score, because the mean would be wrong."""
        ((group, trials),) = evidence.groups.items()
        found = samples(trials, SCORE, evidence.scale(group, SCORE))
        if missing := [scenario for scenario, sample in found.items() if not sample.scores]:
            raise BenchmarkError(f"{evidence.facts.run}: no {SCORE} for {len(missing)} of {len(found)} scenarios, such as {missing[0]}")
        scores = [score for sample in found.values() for score in sample.scores]
        return cls(evidence, group, fsum(scores) / len(scores), len(scores))


class Pair(NamedTuple):
    """A run and the baseline that it is compared with."""

    run: Run
    base: Run


class Shares(NamedTuple):
    """The shares of PASS and FAIL among the pairs, for one margin. The other pairs are INCONCLUSIVE."""

    passes: float
    fails: float


@dataclass(frozen=True)
class Verdicts:
    """The verdicts of each method on the same pairs."""

    pairs: int
    shares: Mapping[tuple[str, float], Shares]  # (method, margin); methods are gate, threshold and pooled
    intervals: Mapping[str, Interval]  # by method; those of `threshold` have no width

    def half_width(self, method: str) -> float:
        found = self.intervals[method]
        return float((found.high - found.low).mean()) / 2


def judge_pairs(pairs: Sequence[Pair], margins: Sequence[float]) -> Verdicts:
    """Judges each pair with each method and margin. Raises BenchmarkError if the runs are too small for the gate."""
    words, gate = gate_says(pairs, margins)
    new, old = (np.array([run.mean for run in runs]) for runs in zip(*pairs, strict=True))
    intervals = {"gate": gate, "threshold": Interval(new - old, new - old), "pooled": pooled_z(old, new, pairs[0].run.trials)}
    shares = {("gate", margin): Shares(*(words[margin][verdict] / len(pairs) for verdict in (PASS, FAIL))) for margin in margins}
    for method in ("threshold", "pooled"):
        found = intervals[method]
        shares |= {(method, margin): Shares(found.passes(margin), found.fails(margin)) for margin in margins}
    return Verdicts(len(pairs), shares, intervals)


def gate_says(pairs: Sequence[Pair], margins: Sequence[float]) -> tuple[Mapping[float, Counter[str]], Interval]:
    """Judges each pair with the code of the gate. Returns the number of each verdict by margin, and the intervals, which need no margin."""
    words: dict[float, Counter[str]] = {margin: Counter() for margin in margins}
    bounds = []
    for run, base in pairs:
        scale = run.evidence.scale(run.group, SCORE)
        asked = [SuiteRule(run.group, parse_rule(f"{SCORE}.mean >= -{margin:.9f} vs baseline", (SCORE,)), scale) for margin in margins]
        decisions = [judged.decision for judged in judge_rules(asked, run.evidence, {run.group: base.evidence})]
        for margin, decision in zip(margins, decisions, strict=True):
            words[margin][decision.verdict] += 1
        low, high = decisions[0].low, decisions[0].high
        if low is None or high is None:
            raise BenchmarkError(f"the gate cannot compare {run.evidence.facts.run} with {base.evidence.facts.run}: {decisions[0].reason}")
        bounds.append((low, high))
    return words, Interval(*np.array(bounds).T)
