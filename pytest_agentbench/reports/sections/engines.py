"""The section of engines: how the calls of a session were distributed over the engines of a stack with several, for each arm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_agentbench.backends.telemetry.engine_use import EngineUse
from pytest_agentbench.reports import routing_phrases
from pytest_agentbench.reports.document import AnyBlock, Fact, Level, Section, Table, TableCell, heads, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.phrases import percent
from pytest_agentbench.reports.view import RunView

COLUMNS = heads("engine", ("calls", 0), "share", "kind")
ARM_COLUMNS = heads("arm", "calls of its engines", ("in all", 0), ("at the tap", 0), ("uncertain", 0), "sessions that stayed")
SECOND = heads(("second requests", 0))


def section(view: RunView) -> Section | None:
    """Returns the calls of each engine, the sessions that stayed on one engine, and the calls at the tap.

    A run whose backends have a single engine each has only warnings.
    """
    uses = view.run.engines
    several = any(len(use.engines) > 1 or len(use.named) > 1 for use in uses)
    return of("Engines", [*_warnings(uses), *(_blocks(uses) if several else ())])


def _warnings(uses: Sequence[EngineUse]) -> Iterator[AnyBlock]:
    for use in uses:
        yield from (
            Fact("engines", say(routing_phrases.engine_warning, use, each), "open", level=Level.FIRST_PAGE, spare=-1)
            for each in use.warnings
        )


def _blocks(uses: Sequence[EngineUse]) -> Iterator[AnyBlock]:
    if any(use.arm for use in uses):
        second = any(use.second_requests for use in uses)
        in_arms = tuple((*_arm(use), use.second_requests) if second else _arm(use) for use in uses)
        yield Table((*ARM_COLUMNS, *SECOND) if second else ARM_COLUMNS, in_arms)
        rows = tuple((use.arm, *row) for use in uses for row in _engines(use))
        yield Table((*heads("arm"), *COLUMNS), rows, level=Level.VERBOSE, repeated=2)
        return
    for use in uses:
        yield Fact("engines", say(routing_phrases.calls_at_engines, use))
        yield Fact("engines", say(routing_phrases.sessions_stayed, use))
        yield Table(COLUMNS, tuple(_engines(use)))


def _arm(use: EngineUse) -> tuple[TableCell, ...]:
    sessions = say(routing_phrases.stayed, use)
    return use.arm, say(routing_phrases.calls_of_engines, use), use.at_engines or None, use.tap_calls, use.uncertain_calls, sessions


def _engines(use: EngineUse) -> Iterator[tuple[TableCell, ...]]:
    """Yields a row for each engine that counts its calls. Without such counters, the engines are those that the answers name."""
    for engine in use.engines:
        of_group = sum(each.calls for each in use.engines if each.group == engine.group)
        yield engine.name, engine.calls, percent(engine.calls / of_group if of_group else None), say(routing_phrases.engine_kind, engine)
    if not use.engines:
        for name, calls in use.named.items():
            yield name, calls, percent(calls / sum(use.named.values())), routing_phrases.NAMED
