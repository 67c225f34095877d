"""The report of a simulation: its error, a row for each setting, and a ranking of the settings."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_agentbench.reports import capacity_phrases
from pytest_agentbench.reports.document import AnyBlock, Document, Fact, Note, Table, TableCell, heads, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.simulation.what_if import SettingEstimate, WhatIf


def document(what_if: WhatIf) -> Document:
    """Returns the report of a simulation. Its first section says how far the results can be trusted."""
    simulation = (
        Fact("anchor", say(capacity_phrases.anchor, what_if)),
        Fact("replayed", say(capacity_phrases.replayed, what_if)),
        Fact("speed", say(capacity_phrases.worker_speed, what_if.timing)),
    )
    parts = (of("", simulation), of("Settings", [_settings(what_if)]), of("Ranking", _ranking(what_if)))
    return Document.of(f"What if: {what_if.run}", parts)


def _settings(what_if: WhatIf) -> Table:
    columns = heads("setting", *((f"{each.title} {each.unit}".rstrip(), each.digits) for each in what_if.measures))
    run: tuple[TableCell, ...] = ("measured", *map(what_if.measured.value, what_if.measures))
    return Table(columns, (run, *(_row(what_if, answer) for answer in what_if.answers)))


def _row(what_if: WhatIf, answer: SettingEstimate) -> tuple[TableCell, ...]:
    values = [(answer.figures.value(each), each.digits, answer.ranks.get(each.name)) for each in what_if.measures]
    return say(capacity_phrases.setting, answer), *(say(capacity_phrases.ranked, *each) for each in values)


def _ranking(what_if: WhatIf) -> Iterator[AnyBlock]:
    """Yields for each metric how much settings must differ to be ranked, or why they are not ranked."""
    if len(what_if.answers) < 2:
        return
    if what_if.own is None:
        yield Note(capacity_phrases.NOT_RANKED)
        return
    yield from (Fact(each.title, say(capacity_phrases.ranking, what_if, each)) for each in what_if.measures)
