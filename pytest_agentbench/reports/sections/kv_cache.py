"""The section of KV cache events: the blocks that each engine stored and removed, and those that calls found in its cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_agentbench.backends.telemetry.kv_cache import KvCacheUse
from pytest_agentbench.reports import routing_phrases
from pytest_agentbench.reports.document import AnyBlock, Fact, Level, Note, Section, Table, TableCell, heads, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.phrases import percent
from pytest_agentbench.reports.view import RunView

COLUMNS = heads("engine", ("stored", 0), ("again", 0), ("removed", 0), ("most at once", 0), ("hit", 0), "of prompts", "calls known")


def section(view: RunView) -> Section | None:
    """Returns the KV cache events of each engine that publishes them. report.html has them over time, in its section on speed."""
    uses = view.run.kv_cache
    return of("KV cache events", _blocks(uses) if uses else [])


def _blocks(uses: Sequence[KvCacheUse]) -> Iterator[AnyBlock]:
    yield Fact("KV cache", say(routing_phrases.cache_events, uses))
    yield from (Fact("KV cache", say(routing_phrases.lost_events, use), "open", level=Level.FIRST_PAGE) for use in uses if use.lost)
    yield Table(COLUMNS, tuple(_engine(use) for use in uses))
    yield Note(routing_phrases.OF_BLOCKS, level=Level.VERBOSE)


def _engine(use: KvCacheUse) -> tuple[TableCell, ...]:
    hit_share = percent(use.hit_tokens / use.prompt_tokens if use.prompt_tokens else None)
    known = percent(use.joined / use.stored if use.stored else None)
    return use.name, use.stored, use.stored_again, use.removed, use.peak, use.hit, hit_share, known
