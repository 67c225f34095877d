"""The one way to a Run: its rollouts, read once, and what is known beside them, become what run.json holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from math import fsum
from typing import TYPE_CHECKING

from pytest_agentbench.lib.config import validate
from pytest_agentbench.metrics.performance import PerformanceSettings, summarize
from pytest_agentbench.metrics.prices import Prices
from pytest_agentbench.metrics.suite_metrics import Efficiency
from pytest_agentbench.metrics.terms import TokenPrices
from pytest_agentbench.records import Rollout, Scale
from pytest_agentbench.runs.contents import BackendUse, Run, SessionFacts
from pytest_agentbench.runs.results import PlannedSuite, SuiteResult
from pytest_agentbench.runs.suite_result import build_suite
from pytest_agentbench.runs.tally import SuiteTally

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Frame


class RunReader:
    """One pass over the rollouts of a run, one in memory at a time."""

    def __init__(self) -> None:
        from pytest_agentbench.metrics.frame_reader import FrameReader  # here numpy is imported

        self._frame = FrameReader()
        self.suites = defaultdict[str, SuiteTally](SuiteTally)  # group -> counts and texts beside the numbers

    def add(self, rollout: Rollout, main_score: str, scale: Scale) -> None:
        """Takes a rollout of a scenario; `scale` is that of the suite's main score."""
        self.suites[rollout.key.group].add(rollout, main_score, scale)
        self._frame.add(rollout)

    @cached_property
    def frame(self) -> Frame:
        """All numbers, when all rollouts have been read."""
        return self._frame.frame()


def build_run(facts: SessionFacts, groups: Sequence[PlannedSuite], read: RunReader) -> Run:
    """Returns the run of a session, of another tool's results, or of a run that is scored again."""
    frame = read.frame
    suites = {each.name: _suite(_with_roles(each, facts.backend), read, facts.backend) for each in groups}
    asked = {each.session: each.concurrency for each in facts.sessions}
    performance = summarize(frame, PerformanceSettings(facts.settings.concurrency or 1, asked, facts.settings.slo, facts.settings.window))
    if facts.imported and facts.stopwatch.verdict is None:  # the other tool took no times of calls
        performance = replace(performance, split=None)
    return Run(**facts.facts(), suites=suites, performance=performance, costs=total_costs([each.efficiency for each in suites.values()]))


def _suite(planned: PlannedSuite, read: RunReader, backend: BackendUse) -> SuiteResult:
    prices = prices_of(backend, planned.facts.variant)
    return build_suite(planned, read.suites[planned.name], read.frame.scenarios().where(group=planned.name), prices)


def prices_of(backend: BackendUse, variant: str) -> TokenPrices | None:
    """Returns those of the backend that served a variant."""
    prices = backend.described(variant).get("prices")
    return validate(Prices, prices, f"backend {backend.name}: prices").token_prices if prices else None


def _with_roles(planned: PlannedSuite, backend: BackendUse) -> PlannedSuite:
    """The suite with the roles that the backend's YAML names in the place of its own."""
    return replace(planned, roles={**planned.roles, **backend.described(planned.facts.variant).get("roles", {})})


def total_costs(suites: Iterable[Efficiency]) -> dict[str, float | None]:
    """Currency -> what suites cost together; None where that of one is not known."""
    costs = defaultdict[str, list[float | None]](list)
    for each in suites:
        if each.currency:
            costs[each.currency].append(each.metrics["cost"])
    return {currency: None if None in values else fsum(filter(None, values)) for currency, values in costs.items()}
