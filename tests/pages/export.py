"""The tables of docs/reference/export.md: the formats, and the fields that an export followed by an import loses or changes."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping

from pytest_agentbench.exports import EXPORTS
from pytest_agentbench.tables import COLUMNS
from tests.pages.markdown import table_row

#: Record and fate -> tool -> names of its fields. `each` has the fields for which the fate is the same with every tool.
#: tests/exports/test_exports.py compares them with what happens.
ROUND_TRIPS: Mapping[str, Mapping[str, str]] = {
    "rollout: lost": {
        "each": "content cluster attempt earlier_attempts node other_calls drafts programs sandbox verification final_state log",
        "nat": "reference settings",
        "harbor": "reference expected",
        "toolorchestra": "started_at started_ns ended_ns calls expected settings",
    },
    "rollout: other": {
        "each": "suite variant messages",
        "harbor": "settings",
    },
    "call: lost": {
        "each": "called_ns dialect upgraded answered_by role endpoint http_status request_bytes request_crc finish_reason "
        "stamp held_ns head_ns idle_since_ns repeats response_id server hints speculative kept",
        "nat": "cached_tokens",
        "harbor": "sent_ns chunks streamed",
        "toolorchestra": "ALL",
    },
    "call: other": {
        "each": "received_ns",
        "nat": "sent_ns",
        "harbor": "ended_ns model",
        "toolorchestra": "ALL",
    },
    "tool call: lost": {
        "each": "raw repaired user_turn refusal injected",
        "nat": "problem detail",
        "harbor": "problem detail started_ns ended_ns",
        "toolorchestra": "started_ns ended_ns",
    },
    "tool call: other": {
        "toolorchestra": "name arguments",
    },
}


def export_tables() -> Mapping[str, list[str]]:
    """Maps the name of each table to its lines."""
    return {"formats": [*_formats()], "round-trips": [*_round_trips()], **{table: [*_columns(table)] for table in COLUMNS}}


def _formats() -> Iterator[str]:
    yield from ("| format | what it writes |", "|---|---|")
    for name, path in EXPORTS.items():
        doc = inspect.getdoc(importlib.import_module(path.partition(":")[0])) or ""
        yield table_row(f"`{name}`", doc.partition("\n\n")[0])


def _round_trips() -> Iterator[str]:
    tools = ("each", "nat", "harbor", "toolorchestra")
    yield from (f"| | each | {' | '.join(f'`{tool}`' for tool in tools[1:])} |", "|---|---|---|---|---|")
    for record, fates in ROUND_TRIPS.items():
        cells = (fates.get(tool, "") for tool in tools)
        yield table_row(record, *("all" if names == "ALL" else ", ".join(f"`{name}`" for name in names.split()) for names in cells))


def _columns(table: str) -> Iterator[str]:
    """Yields the table of a run table's columns."""
    yield from ("| column | unit | is |", "|---|---|---|")
    yield from (table_row(f"`{head.name}`", head.unit or "", head.about) for head in COLUMNS[table])
