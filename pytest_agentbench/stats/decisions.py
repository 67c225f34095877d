"""The record that the gate's statistics hand over, and the three words in it."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
