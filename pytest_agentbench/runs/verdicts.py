"""What the gate found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_agentbench.stats.decisions import Decision, Suspect


@dataclass(frozen=True)
class BaselineRun:
    """The run that a suite was compared with."""

    run: str  # its `id`
    commit: str | None  # of the repository
    finished_at: str  # ISO 8601


@dataclass(frozen=True, kw_only=True)
class RuleResult(Decision):
    """A rule of the gate, and what was decided of it."""

    suite: str  # suite, or `suite-variant`
    rule: str  # as it was written
    kind: str  # `score`, `passes`, `latency`, `rate`, `share` or `goodput`
    vs_baseline: bool
    width: float | None = None  # of a score: the greatest possible difference of two values; null if it is unknown
    notes: tuple[str, ...] = ()  # what else is not as in the baseline
    suspects: tuple[Suspect, ...] = ()  # scenarios that fell: first those of which that [is claimed](gates.md#which-scenarios-got-worse)


@dataclass(frozen=True)
class InterimLook:
    """At a run after a whole round of trials."""

    round: int  # after this one
    verdict: str  # of the rules that are looked at: `PASS`, `FAIL` or `INCONCLUSIVE`
    stands: bool  # whether more rounds would not change it
    rules: tuple[RuleResult, ...]  # `confidence` is that of the look


@dataclass(frozen=True)
class RoundsResult:
    """Trials that were [added until the gate's verdict stood](gates.md#trials-until-the-verdict-stands)."""

    most: int  # rounds, so many at most
    ran: int  # whole ones, up to the last look; 0 where the run was broken off before the first
    stands: bool  # whether that look was the last because more trials would not change the verdict
    saved: int  # rollouts that were not run for it
    looks: tuple[InterimLook, ...]  # one after each round from the second on


@dataclass(frozen=True)
class EarlierRuns:
    """Runs of the same setup before this one in the same folder of reports ([what that is](gates.md#run-until-it-is-green))."""

    runs: int  # those that came to a verdict; 0 where the setup is not known, as without git
    not_passed: tuple[str, ...]  # of them, those that were not `PASS`, the oldest first: their `id`


@dataclass(frozen=True)
class GateResult:
    """The verdicts of all rules."""

    verdict: str  # `PASS`, `FAIL` or `INCONCLUSIVE` of all rules together
    decides: bool  # whether it has a say in the exit status: `--agentbench-verdict=gate`
    tests_below: int  # tests below a threshold that did not fail the session
    compared: tuple[str, ...]  # suites whose scores were compared with a baseline, so that the gate decides in place of thresholds
    baselines: Mapping[str, BaselineRun]  # suite, or `suite-variant`, -> the run that it was compared with
    rules: tuple[RuleResult, ...]  # of `suite.yaml`, of the command line, of thresholds, each in its order
    unmeasured: tuple[str, ...]  # suites of which too much was lost or could not be measured
