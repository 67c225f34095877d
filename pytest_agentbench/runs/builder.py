"""The one way to a Run: its rollouts, read once, and what is known beside them, become what run.json holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_agentbench.metrics.performance import Performance
from pytest_agentbench.records import Rollout
from pytest_agentbench.runs.contents import Run, SessionFacts
from pytest_agentbench.runs.results import NOTHING_MEASURED, Limit, SuiteResult
from pytest_agentbench.runs.tally import MEASURED, SuiteTally, build_suite, known_mean
from pytest_agentbench.scorers import LOWER_IS_BETTER
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
    limited: bool = True  # whether limits on means are judged; not where nothing could run


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
    limits = [limit for each in groups if each.limited for limit in judge_limits(each, suites[each.name], facts.settings.thresholds)]
    performance = tallies.performance.summary()
    if facts.imported and facts.stopwatch.verdict is None:  # the other tool took no times of calls
        performance = replace(performance, split=None)
    return Run(**facts.facts(), suites=suites, limits=tuple(limits), performance=performance)


def judge_limits(group: AskedSuite, result: SuiteResult, from_command_line: Collection[str]) -> list[Limit]:
    """Limits on the means of a suite under one variant; with nothing measured, one that fails, whatever was asked."""
    measured = sum(result.rollouts[status] for status in MEASURED)
    if not measured and group.thresholds:
        return [Limit.of(group.name, NOTHING_MEASURED, 1, 0, note="no rollout was measured, so no threshold is known to hold")]
    wanted = len(group.suite.scenarios) * group.trials
    limits = []
    for name, limit in group.thresholds.items():
        if name.endswith(".mean"):
            score = name.removesuffix(".mean")
            value, why = known_mean(result, score)
            whole = measured >= wanted or name in from_command_line
            part = f"not judged: {measured} of {wanted} rollouts were measured; --agentbench-threshold {name}=... judges any part"
            note = why if whole else part
            limits.append(Limit.of(group.name, name, limit, value, judged=whole, note=note, ceiling=score in LOWER_IS_BETTER))
    return limits
