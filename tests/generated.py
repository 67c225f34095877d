"""Generates the tables of the documentation, and the Grafana dashboard in backends/monitoring from its panels.

The tables of result files come from the records, those of metrics from the registry, those of exports from the columns, those of YAMLs
from the models, those of shipped backends and environments from their files, and those of docs/coming-from/nat-config.md from the
conversion. `python -m tests.generated` writes all of them.

Texts in the code link a page by its name alone, such as `[roles](roles.md#limits)`. The generated tables contain the path instead.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Union

from pytest_agentbench.metrics import registry
from pytest_agentbench.schemas.result_files import FILES, PLAIN, Key, is_record, is_row, keys_of, records_of
from pytest_agentbench.tables import COLUMNS
from tests.grafana_dashboard import dashboard_text
from tests.nat_configs import table_of_keys, table_of_nine
from tests.stack_tables import backend_table, environment_table
from tests.yaml_keys import YAML_TABLES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference/run-json.md"
METRICS = ROOT / "docs" / "reference/metrics.md"
EXPORT = ROOT / "docs" / "reference/export.md"
TREND = ROOT / "docs" / "compare/trend.md"
DASHBOARD = ROOT / "backends" / "monitoring" / "dashboard.json"
STACKS, PREPARE = (ROOT / "docs" / "backends" / name for name in ("stacks.md", "prepare.md"))
NAT_CONFIG = ROOT / "docs" / "coming-from/nat-config.md"


def tables_of(name: str) -> Iterator[str]:
    """Yields the tables of a file's records, each below its name."""
    named: dict[type, None] = {}
    for kind in FILES[name][0]:
        records_of(kind, named)
    for kind in named:
        yield from (f"### {kind.__name__}", "", (inspect.getdoc(kind) or "").partition("\n\n")[0], "")
        yield from (f"| {'element' if is_row(kind) else 'key'} | type | is |", "|---|---|---|")
        yield from (_row(key) for key in keys_of(kind))
        yield ""


def _row(key: Key) -> str:
    name, kind = ("*", typing.get_args(key.kind)[1]) if key.open else (key.name, key.kind)
    doc = key.doc.replace("|", "\\|")
    return f"| `{name}` | {_type_text(kind)}{'' if key.required else ', not always'} | {doc} |".replace("|  |", "| |")


def _type_text(kind: Any) -> str:
    """Returns the text of a type, such as `list of [Limit](#limit)` or `number or null`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return "any"
    if kind in PLAIN:
        return PLAIN[kind]
    if is_record(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if origin in (Union, types.UnionType):
        return " or ".join(map(_type_text, inner))
    if origin in (tuple, list):
        return _list_text(inner)
    return "object" if inner[1] is Any else f"object of {_type_text(inner[1])}"


def _list_text(inner: tuple[Any, ...]) -> str:
    """Returns `list of string`, or the type of each element of a tuple."""
    return f"list of {_type_text(inner[0])}" if inner[1:] in ((), (Ellipsis,)) else f"list: {', '.join(map(_type_text, inner))}"


#: Maps a table of docs/reference/metrics.md to the metrics in it.
METRIC_TABLES = {"durations": registry.latencies, "rates": registry.rates, "efficiency": registry.efficiency, "answers": registry.answers}


def metrics_of(kind: str) -> Iterator[str]:
    """Yields a table of the registry's metrics."""
    yield from ("| metric | in rules, options and `run.json` | is |", "|---|---|---|")
    for name, metric in METRIC_TABLES[kind]().items():
        also = "" if metric.compared else ". It stands in reports and `run.json` alone"
        yield f"| {metric.title} | `{name}` | {metric.definition}{also} |"


def columns_of(table: str) -> Iterator[str]:
    """Yields the table of a run table's columns."""
    yield from ("| column | unit | is |", "|---|---|---|")
    yield from (f"| `{head.name}` | {head.unit or ' '} | {head.about} |".replace("|   |", "| |") for head in COLUMNS[table])


def with_paths(line: str, path: Path) -> str:
    """Replaces the names of linked pages by their paths from a page. The name of a page is unique in docs/."""

    def link(match: re.Match[str]) -> str:
        (target,) = (ROOT / "docs").rglob(match[1])
        return f"]({os.path.relpath(target, path.parent)}"

    return re.sub(r"\]\(([\w-]+\.md)", link, line)


def page(path: Path, tables: Mapping[str, Iterable[str]]) -> str:
    """Returns a page with up-to-date tables. Each table is between two comments with its name."""
    text = path.read_text(encoding="utf-8")
    for name, lines in tables.items():
        start, end = f"<!-- {name}: python -m tests.generated -->\n", f"<!-- {name} -->\n"
        head, _, rest = text.partition(start)
        text = "".join((head, start, "\n", *(f"{with_paths(line, path)}\n" for line in lines), end, rest.partition(end)[2]))
    return text


def generated() -> dict[Path, str]:
    """Maps each file to its correct content."""
    pages: dict[Path, Mapping[str, Iterable[str]]] = {
        PAGE: {name: tables_of(name) for name in FILES if name != "trend"},
        TREND: {"trend": tables_of("trend")},
        METRICS: {kind: metrics_of(kind) for kind in METRIC_TABLES},
        EXPORT: {table: columns_of(table) for table in COLUMNS},
        STACKS: {"backends": backend_table()},
        PREPARE: {"environments": environment_table()},
        NAT_CONFIG: {"nine": table_of_nine(), "keys": table_of_keys()},
        **{ROOT / "docs" / "reference" / name: tables for name, tables in YAML_TABLES.items()},
    }
    return {DASHBOARD: dashboard_text(), **{path: page(path, tables) for path, tables in pages.items()}}


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
