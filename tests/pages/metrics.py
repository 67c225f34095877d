"""The tables of docs/reference/metrics.md, from the registry of metrics and the texts of kinds of failures and mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.other_tools import PEERS, load_peer
from pytest_agentbench.records import ERROR_KINDS
from pytest_agentbench.scorers.mistakes import KINDS
from tests.pages.markdown import table_row

#: Maps a table to the metrics in it.
METRIC_TABLES = {"durations": registry.latencies, "rates": registry.rates, "efficiency": registry.efficiency, "answers": registry.answers}


def metric_tables() -> Mapping[str, list[str]]:
    """Maps the name of each table to its lines."""
    metrics = {kind: [*metrics_of(kind)] for kind in METRIC_TABLES}
    return {**metrics, "mistakes": [*_kinds("mistake", KINDS)], "failures": [*_kinds("kind", ERROR_KINDS)], "peers": [*_peers()]}


def metrics_of(kind: str) -> Iterator[str]:
    """Yields a table of the registry's metrics."""
    yield from ("| metric | in rules, options and `run.json` | is |", "|---|---|---|")
    for name, metric in METRIC_TABLES[kind]().items():
        also = "" if metric.compared else ". It stands in reports and `run.json` alone"
        yield table_row(metric.title, f"`{name}`", f"{metric.definition}{also}")


def _kinds(title: str, kinds: Mapping[str, str]) -> Iterator[str]:
    yield from (f"| {title} | is |", "|---|---|", *(table_row(f"`{kind}`", about) for kind, about in kinds.items()))


def _peers() -> Iterator[str]:
    """Yields a table of the tools whose definitions `agentbench show --as` applies, with the differences from ours."""
    yield from ("| `--as` | tool | differences |", "|---|---|---|")
    for name in PEERS:
        table = load_peer(name)([])
        yield table_row(f"`{name}`", table.title, " ".join(table.differs))
