"""The one way to a Run: its rollouts, read once, and what is known beside them, become what run.json holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import fsum

from pytest_agentbench.lib.config import validate
from pytest_agentbench.metrics.efficiency import Efficiency
from pytest_agentbench.metrics.performance import Performance
from pytest_agentbench.metrics.prices import Prices
from pytest_agentbench.records import Rollout, Scale
from pytest_agentbench.runs.contents import BackendUse, Run, SessionFacts
from pytest_agentbench.runs.results import PlannedSuite
from pytest_agentbench.runs.suite_result import build_suite
from pytest_agentbench.runs.tally import SuiteTally


@dataclass
class Tallies:
    """One pass over the rollouts of a run, one in memory at a time."""

    performance: Performance
    suites: defaultdict[str, SuiteTally] = field(default_factory=lambda: defaultdict(SuiteTally))  # group -> what was counted

    def add(self, rollout: Rollout, main_score: str, scale: Scale) -> None:
        """Takes a rollout of a scenario; `scale` is that of the suite's main score.

        One without times is in no timing: a span from 1970 on would be in every rate.
        """
        self.suites[rollout.key.group].add(rollout, main_score, scale)
        if rollout.ended_ns:
            self.performance.add(rollout)


def build_run(facts: SessionFacts, groups: Sequence[PlannedSuite], tallies: Tallies) -> Run:
    """The run of a session, of another tool's results, or of a run that is scored again."""
    suites = {
        each.name: build_suite(_with_roles(each, facts.backend), tallies.suites[each.name], prices_of(facts.backend, each.facts.variant))
        for each in groups
    }
    performance = tallies.performance.summary()
    if facts.imported and facts.stopwatch.verdict is None:  # the other tool took no times of calls
        performance = replace(performance, split=None)
    return Run(**facts.facts(), suites=suites, performance=performance, costs=total_costs([each.efficiency for each in suites.values()]))


def prices_of(backend: BackendUse, variant: str) -> Prices | None:
    """Those of the backend that served a variant."""
    prices = backend.described(variant).get("prices")
    return validate(Prices, prices, f"backend {backend.name}: prices") if prices else None


def _with_roles(planned: PlannedSuite, backend: BackendUse) -> PlannedSuite:
    """The suite with the roles that the backend's YAML names in the place of its own."""
    return replace(planned, roles={**planned.roles, **backend.described(planned.facts.variant).get("roles", {})})


def total_costs(suites: Iterable[Efficiency]) -> dict[str, float | None]:
    """Currency -> what suites cost together; None where that of one is not known."""
    costs = defaultdict[str, list[float | None]](list)
    for each in suites:
        if each.currency:
            costs[each.currency].append(each.cost)
    return {currency: None if None in values else fsum(filter(None, values)) for currency, values in costs.items()}
