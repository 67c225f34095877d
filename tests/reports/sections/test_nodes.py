"""The section of node workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_agentbench.records import Rollout
from pytest_agentbench.reports import serving_phrases
from pytest_agentbench.reports.document import Document, Level, Table
from pytest_agentbench.reports.sections import nodes
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.nodes import LaunchRecord, NodeRecord
from tests.findings import facts, report, said
from tests.made_runs import run_of

W1 = NodeRecord(1, "w1", "node-a", 4, 8, 0, "3.11", "then", attempts=9, clock_width_ms=9.0, connect_ms=0.25, lag_ms=4.0)
W2 = replace(W1, name="w2", node="node-b", niceness=10, lost=2, left_at="now", why_left="its tap died")
HERE = Path()
ROLLOUT = Rollout("shop", "s0", "default", 1, "ok", started_at=1.0, started_ns=1, ended_ns=1_000_000_001)


def full(*records: NodeRecord) -> Document:
    return report(run_of(ROLLOUT, nodes=records), Level.FULL)


def test_a_row_for_each_node_worker() -> None:
    """The table has the node workers of the run. With several sessions, it has the numbers of the sessions, too."""
    section = nodes.section(RunView(run_of(ROLLOUT, nodes=(W1, W2)), HERE))
    assert section is not None
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    again = nodes.section(RunView(run_of(ROLLOUT, nodes=(W1, replace(W1, session=2))), HERE))
    assert again is not None

    assert (("w1", "node-a", 4, 8, 9, 0, 9.0, 0.25, 4.0, 0), ("w2", "node-b", 4, 8, 9, 2, 9.0, 0.25, 4.0, 10)) == table.rows
    assert ["w1 (session 1)", "w1 (session 2)"] == [row[0] for block in again.blocks if isinstance(block, Table) for row in block.rows]


def test_nothing_without_nodes() -> None:
    """A run on one machine has no such section. On the first page there is none, either."""
    assert nodes.section(RunView(run_of(ROLLOUT), HERE)) is None
    assert [] == said(report(run_of(ROLLOUT, nodes=(W2,)), Level.FIRST_PAGE), serving_phrases.node_left)


def test_node_workers_that_left() -> None:
    """A node worker that left before the end is named, with the reason and the attempts that others made again."""
    assert [(W2,)] == said(full(W1, W2), serving_phrases.node_left)
    assert "w2 on node-b: its tap died, 2 attempts made again" == serving_phrases.node_left(W2)


def test_how_node_workers_were_started() -> None:
    """A launch on other machines is a fact with the time in the queue. One on this machine is not."""
    launch = LaunchRecord(1, "slurm", "job 17", 33.6, problems=("job 17 was cancelled",))
    waits = LaunchRecord(2, "kubernetes", "", None, "1 pod is Unschedulable")
    told = report(run_of(ROLLOUT, nodes=(W1,), launches=(LaunchRecord(1, "local:2", "", 0.0), launch, waits)), Level.FULL)

    assert [(launch,), (waits,)] == said(told, serving_phrases.launched)
    assert "slurm, job 17: all machines were there after 34 s; job 17 was cancelled" == serving_phrases.launched(launch)
    assert "kubernetes: not all machines were there (1 pod is Unschedulable)" == serving_phrases.launched(waits)


def test_doubts() -> None:
    """Clocks that are too uncertain for rates over a second, and connect times that differ, are facts."""
    late, far = replace(W1, clock_width_ms=10.1), replace(W2, connect_ms=1.5)

    assert ([], [(["the run"],)]) == (said(full(W1), serving_phrases.uncertain_rates), said(full(late), serving_phrases.uncertain_rates))
    assert ([], 1) == (facts(full(W1, W2), "latencies"), len(facts(full(W1, far), "latencies")))
