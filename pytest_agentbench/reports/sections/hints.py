"""The section of hints: how right the hints were that routers got with calls, for each arm and role."""

from __future__ import annotations

from pytest_agentbench.metrics.call_hints import HintUse
from pytest_agentbench.reports import routing_phrases
from pytest_agentbench.reports.document import Fact, Section, Table, TableCell, heads, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.phrases import percent
from pytest_agentbench.reports.view import RunView

COLUMNS = heads(
    "role", ("calls", 0), "within the hinted tokens", ("error of tokens", 1), ("error of remaining calls", 2), ("error of pause, ms", 0)
)


def section(view: RunView) -> Section | None:
    """Returns how right the hints of a run were. A run without hints about calls has no such section."""
    uses = view.run.hints
    if not uses:
        return None
    with_arms = any(use.arm for use in uses)
    facts = [] if with_arms else [Fact("hints", say(routing_phrases.hints_were, use)) for use in uses]
    rows = tuple(((use.arm, *_row(use)) if with_arms else _row(use)) for use in uses)
    return of("Hints", [*facts, Table((*heads("arm"), *COLUMNS) if with_arms else COLUMNS, rows, repeated=2 if with_arms else 1)])


def _row(use: HintUse) -> tuple[TableCell, ...]:
    errors = use.tokens_error, use.remaining_error, use.next_error_ms
    return routing_phrases.role_of_hints(use), use.calls, percent(use.covered), *errors
