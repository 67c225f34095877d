"""What the gate found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_agentbench.stats.decisions import Decision
from pytest_agentbench.stats.multiple import Suspect


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
    notes: tuple[str, ...] = ()  # what else is not as in the baseline
    suspects: tuple[Suspect, ...] = ()  # scenarios that fell: first those of which that [is claimed](gates.md#which-scenarios-got-worse)


@dataclass(frozen=True)
class GateResult:
    """The verdicts of all rules."""

    verdict: str  # `PASS`, `FAIL` or `INCONCLUSIVE` of all rules together
    decides: bool  # whether it has a say in the exit status: `--agentbench-verdict=gate`
    tests_below: int  # tests below a threshold that did not fail the session
    compared: tuple[str, ...]  # suites whose scores were compared with a baseline, so that the gate decides in place of thresholds
    baselines: Mapping[str, BaselineRun]  # suite, or `suite-variant`, -> the run that it was compared with
    rules: tuple[RuleResult, ...]  # in the order of `suite.yaml`, then of the command line
    unmeasured: tuple[str, ...]  # suites of which too much was lost or could not be measured
