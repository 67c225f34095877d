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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

from pytest_agentbench.gate.evidence import CallTimes, RunFacts, Trial
from pytest_agentbench.gate.exit_status import EXITS, OK, WITHOUT_FAILURE
from pytest_agentbench.retriever.config import RetrieverFile
from pytest_agentbench.schemas.result_files import FILES, PLAIN, Key, is_record, is_row, keys_of, records_of
from pytest_agentbench.simulation.what_if import WhatIf
from tests.grafana_dashboard import dashboard_text
from tests.nat_configs import table_of_keys, table_of_nine
from tests.pages.api import api_parts, fixture_table, hook_sections
from tests.pages.cli import command_list, command_sections
from tests.pages.environment import read_variables, set_variables
from tests.pages.export import export_tables
from tests.pages.markdown import table_row
from tests.pages.metrics import metric_tables
from tests.pages.options import option_tables
from tests.pages.scorers import scorer_parts
from tests.pages.stability import public_table
from tests.pages.stacks import backend_table, environment_table
from tests.pages.yaml_keys import YAML_TABLES, table_of

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
PAGE = REFERENCE / "run-json.md"
METRICS = REFERENCE / "metrics.md"
EXPORT = REFERENCE / "export.md"
BASELINE = ROOT / "docs" / "compare/baselines.md"
WHAT_IF = ROOT / "docs" / "compare/what-if.md"
DASHBOARD = ROOT / "backends" / "monitoring" / "dashboard.json"
RETRIEVER = ROOT / "docs" / "agents/retriever.md"
STACKS, PREPARE = (ROOT / "docs" / "backends" / name for name in ("stacks.md", "prepare.md"))
NAT_CONFIG = ROOT / "docs" / "coming-from/nat-config.md"


def tables_of(name: str) -> Iterator[str]:
    """Yields the tables of a file's records, each below its name."""
    named: dict[type, None] = {}
    for kind in FILES[name][0]:
        records_of(kind, named)
    return tables_of_records(named)


def tables_of_records(kinds: Collection[type]) -> Iterator[str]:
    """Yields the tables of these records, each below its name. Other records that they contain are linked on the page of run.json."""
    here = {kind.__name__.lower() for kind in kinds}
    for kind in kinds:
        yield from (f"### {kind.__name__}", "", (inspect.getdoc(kind) or "").partition("\n\n")[0], "")
        yield from (f"| {'element' if is_row(kind) else 'key'} | type | is |", "|---|---|---|")
        yield from (re.sub(rf"\]\(#(?!({'|'.join(here)})\))", "](run-json.md#", _row(key)) for key in keys_of(kind))
        yield ""


def _row(key: Key) -> str:
    name, kind = ("*", typing.get_args(key.kind)[1]) if key.open else (key.name, key.kind)
    return table_row(f"`{name}`", f"{_type_text(kind)}{'' if key.required else ', not always'}", key.doc)


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
    if origin in (tuple, list, Sequence):
        return _list_text(inner)
    return "object" if inner[1] is Any else f"object of {_type_text(inner[1])}"


def _list_text(inner: tuple[Any, ...]) -> str:
    """Returns `list of string`, or the type of each element of a tuple."""
    return f"list of {_type_text(inner[0])}" if inner[1:] in ((), (Ellipsis,)) else f"list: {', '.join(map(_type_text, inner))}"


def session_exits() -> Iterator[str]:
    """Yields the table of exit statuses of sessions. Status 0 has several verdicts."""
    yield from ("| status | verdict | meaning | what to do |", "|---|---|---|---|")
    for status, exit in [(OK, EXITS[OK]), *((OK, each) for each in WITHOUT_FAILURE.values()), *[*EXITS.items()][1:]]:
        yield table_row(str(status), f"`{exit.verdict}`", exit.about, exit.advice)


def with_paths(line: str, path: Path) -> str:
    """Replaces the names of linked pages by their paths from a page. The name of a page is unique in docs/."""

    def link(match: re.Match[str]) -> str:
        targets = [*(ROOT / "docs").rglob(match[1])]
        assert len(targets) == 1, f"a link in the code leads to {match[1]}, but docs/ has {len(targets)} pages of this name"
        return f"]({os.path.relpath(targets[0], path.parent)}"

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
        PAGE: {name: tables_of(name) for name in FILES},
        BASELINE: {"baseline": tables_of_records([RunFacts, Trial, CallTimes])},
        WHAT_IF: {"what-if": tables_of_records(records_of(WhatIf))},
        METRICS: metric_tables(),
        EXPORT: export_tables(),
        REFERENCE / "cli.md": {"commands": command_list(), "sections": command_sections()},
        REFERENCE / "exit-statuses.md": {"sessions": session_exits()},
        REFERENCE / "environment.md": {"read": read_variables(), "set": set_variables()},
        REFERENCE / "options.md": option_tables(),
        REFERENCE / "api.md": {"fixtures": fixture_table(), **api_parts()},
        REFERENCE / "hooks.md": {"hooks": hook_sections()},
        REFERENCE / "stability.md": {"public": public_table()},
        REFERENCE / "scorers.md": scorer_parts(),
        STACKS: {"backends": backend_table()},
        PREPARE: {"environments": environment_table()},
        NAT_CONFIG: {"nine": table_of_nine(), "keys": table_of_keys()},
        RETRIEVER: {"retriever": table_of(RetrieverFile)},
        **{REFERENCE / name: tables for name, tables in YAML_TABLES.items()},
    }
    return {DASHBOARD: dashboard_text(), **{path: page(path, tables) for path, tables in pages.items()}}


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
