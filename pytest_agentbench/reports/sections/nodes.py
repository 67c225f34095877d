"""The section of nodes: which node workers made the rollouts of a run, and what is known of their clocks and machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_agentbench.gate.usable_numbers import MAX_CLOCK_SHARE, connect_note
from pytest_agentbench.launchers import LOCAL
from pytest_agentbench.reports import serving_phrases
from pytest_agentbench.reports.document import AnyBlock, Fact, Note, Section, Table, heads, say
from pytest_agentbench.reports.document import section as of
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.nodes import NodeRecord, clock_share, connect_times
from pytest_agentbench.runs.run_file import Run

HEADS = heads(
    *("node worker", "machine", ("slots", 0), ("cores", 0), ("attempts", 0), ("lost", 0)),
    *(("clock width ms", 2), ("connect ms", 2), ("lag ms", 0), ("nice", 0)),
)


def section(view: RunView) -> Section | None:
    """Returns a table of the node workers, how they were started, why they left, and doubts about rates and latencies.

    None without node workers.
    """
    return of("Nodes", _blocks(view.run) if view.run.nodes or view.run.launches else [])


def _blocks(run: Run) -> Iterator[AnyBlock]:
    if run.nodes:
        yield table(run.nodes)
    for launch in run.launches:
        if launch.launcher.partition(":")[0] != LOCAL:
            yield Fact("launch", say(serving_phrases.launched, launch), "open" if launch.problems else "")
    for each in run.nodes:
        if each.why_left:
            yield Fact("left", say(serving_phrases.node_left, each), "open")
    if doubtful := [name for name, seconds in _times(run).items() if clock_share(run.nodes, seconds) > MAX_CLOCK_SHARE]:
        yield Fact("rates", say(serving_phrases.uncertain_rates, doubtful), "open")
    if times := connect_times(run.nodes):
        yield Fact("latencies", connect_note(times), "open")
    yield Note(serving_phrases.CLOCKS)


def table(nodes: Sequence[NodeRecord]) -> Table:
    """Returns a table with a row for each node worker."""
    several = len({each.session for each in nodes}) > 1
    return Table(HEADS, tuple(_row(each, with_session=several) for each in nodes))


def _times(run: Run) -> dict[str, float]:
    """Returns the name of each part of the time over which rates are taken -> its seconds."""
    performance = run.performance
    parts = {"the run": performance.span_s}
    if steady := performance.steady.rollouts:
        parts["the steady window"] = steady.seconds
    if performance.window:
        parts["the chosen window"] = performance.window.seconds
    return parts


def _row(node: NodeRecord, *, with_session: bool) -> tuple[str | float | None, ...]:
    name = f"{node.name} (session {node.session})" if with_session else node.name
    counts = node.slots, node.cores, node.attempts, node.lost
    return name, node.node, *counts, node.clock_width_ms, node.connect_ms, node.lag_ms, node.niceness
