"""Simulates sessions with several gate rules. Together they must not be wrong more often than one rule.

The reason is that all rules have to pass, and that rules without a margin share one level of error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.verdicts.kinds import KINDS, Floats, fade
from pytest_agentbench.gate.evidence import Evidence, RunFacts, Trial
from pytest_agentbench.gate.rules import SuiteRule, parse_rule
from pytest_agentbench.gate.verdict import judge_rules, session_verdict
from pytest_agentbench.records import SHARE
from pytest_agentbench.stats.decisions import FAIL, PASS

N, TRIALS = 100, 3


@dataclass(frozen=True)
class Family:
    """The results for sessions with a number of scores, each with a rule: shares of wrong verdicts."""

    rules: int
    wrong_pass: float  # the first score has dropped by the margin of 0.05, the others have not
    wrong_fail: float  # nothing has changed, and no rule has a margin


def families(runs: int, seed: int) -> list[Family]:
    return [family(rules, runs, seed + rules) for rules in (1, 3, 5)]


def family(rules: int, runs: int, seed: int) -> Family:
    """Simulates sessions with a number of rules, and returns how often their verdict is wrong."""
    random, passes, fails = np.random.default_rng(seed), 0, 0
    for _ in range(runs):
        base = [_scores(random, 0.0) for _ in range(rules)]
        passes += _verdict([_drop(random, each, 0.05 * (at == 0)) for at, each in enumerate(base)], base, "-0.05", random) == PASS
        fails += _verdict([_drop(random, each, 0.0) for each in base], base, "0", random) == FAIL
    return Family(rules, passes / runs, fails / runs)


def _scores(random: np.random.Generator, drop: float) -> Floats:
    """Returns random true means of the scenarios of a suite, lowered by `drop`."""
    return KINDS["continuous"].means(random, (1, N)) - drop


def _drop(random: np.random.Generator, means: Floats, drop: float) -> Floats:
    return fade(random, means, drop).means


def _verdict(new: list[Floats], base: list[Floats], limit: str, random: np.random.Generator) -> str:
    names = [f"score{at}" for at in range(len(new))]
    run, old = (_evidence(means, names, random) for means in (new, base))
    asked = [SuiteRule("suite", parse_rule(f"{name}.mean >= {limit} vs baseline", names), SHARE) for name in names]
    return session_verdict(judge_rules(asked, run, {"suite": old}))


def _evidence(means: list[Floats], names: list[str], random: np.random.Generator) -> Evidence:
    scores = [KINDS["continuous"].trials(random, each, TRIALS)[0] for each in means]
    trials = [
        Trial(
            "suite",
            "suite",
            str(i),
            k,
            "ok",
            {"scenario": "same"},
            scores={name: one[i, k] for name, one in zip(names, scores, strict=True)},
        )
        for i in range(N)
        for k in range(TRIALS)
    ]
    return Evidence.of(RunFacts("run", planned=len(trials), scenarios={"suite": N}), trials)
