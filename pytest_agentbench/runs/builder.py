"""The one way to a Run: its rollouts, read once, and what is known beside them, become what run.json holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_agentbench.metrics.performance import Performance
from pytest_agentbench.records import Rollout
from pytest_agentbench.runs.contents import Run, SessionFacts
from pytest_agentbench.runs.tally import SuiteTally, build_suite
from pytest_agentbench.suites.suite import Suite


@dataclass(frozen=True)
class AskedSuite:
    """A suite under one variant, as a run asks it."""

    name: str  # the suite, or suite-variant
    suite: Suite
    variant: str
    thresholds: Mapping[str, float] = field(default_factory=dict)  # in force
    trials: int = 1
    quarantined: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # scenario -> `tests` and `passed`
    population: Collection[str] = ()  # scores of which a rule asks the population


@dataclass
class Tallies:
    """One pass over the rollouts of a run, one in memory at a time."""

    performance: Performance
    suites: defaultdict[str, SuiteTally] = field(default_factory=lambda: defaultdict(SuiteTally))  # group -> what was counted

    def add(self, rollout: Rollout, main_score: str) -> None:
        """Takes a rollout of a scenario. One without times is in no timing: a span from 1970 on would be in every rate."""
        self.suites[rollout.key.group].add(rollout, main_score)
        if rollout.ended_ns:
            self.performance.add(rollout)


def build_run(facts: SessionFacts, groups: Sequence[AskedSuite], tallies: Tallies) -> Run:
    """The run of a session, of another tool's results, or of a run that is scored again."""
    suites = {
        each.name: build_suite(each.suite, each.variant, tallies.suites[each.name], each.thresholds, each.quarantined, each.population)
        for each in groups
    }
    performance = tallies.performance.summary()
    if facts.imported and facts.stopwatch.verdict is None:  # the other tool took no times of calls
        performance = replace(performance, split=None)
    return Run(**facts.facts(), suites=suites, performance=performance)
