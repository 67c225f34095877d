"""The report of a run that has not ended."""

from __future__ import annotations

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.reports import phrases, suite_phrases
from pytest_agentbench.reports.document import Document, Level, Table
from pytest_agentbench.reports.sections.so_far import SHOWN, SoFar, document_so_far
from pytest_agentbench.runs.nodes import NodeRecord
from pytest_agentbench.runs.sessions import Session
from tests.findings import facts, measure, said


def rollout(scenario: str, score: float | None, status: str = "ok", suite: str = "shop") -> Rollout:
    scores = {} if score is None else {"tsq": Score(score)}
    return Rollout(suite, scenario, "default", 1, status, scores=scores)


def report_of(*rollouts: Rollout, session: Session | None = None, stopped: bool = False) -> Document:
    so_far = SoFar()
    for each in rollouts:
        so_far.add(each)
    return document_so_far("night", session, so_far, stopped=stopped)


def test_means_and_statuses() -> None:
    """A mean covers the rollouts with the score, has their number and no interval. All finished rollouts are counted."""
    report = report_of(rollout("a", 1.0), rollout("b", 0.5), rollout("c", None, "infra_error"))

    mean, count = measure(report, "tsq"), measure(report, "rollouts")
    assert (0.75, None, phrases.mean_so_far(2)) == (mean.value, mean.low, mean.about)
    assert (3, suite_phrases.statuses({"ok": 2, "infra_error": 1})) == (count.value, count.about)
    assert [(3,)] == said(report, phrases.running)


def test_a_removed_rollout() -> None:
    """A removed rollout is not counted any more."""
    so_far = SoFar()
    so_far.add(rollout("a", 0.0))
    so_far.add(rollout("b", 1.0))
    so_far.remove(rollout("a", 0.0))
    report = document_so_far("night", None, so_far, stopped=False)

    assert (1.0, 1) == (measure(report, "tsq").value, measure(report, "rollouts").value)


def test_several_suites() -> None:
    """Each suite has its own numbers, labelled with its name."""
    report = report_of(rollout("a", 1.0), rollout("a", 0.0, suite="bank"))

    assert (1.0, 0.0) == (measure(report, "shop tsq").value, measure(report, "bank tsq").value)


def test_many_scores() -> None:
    """Only the first scores of a suite with many are shown."""
    scores = {f"s{number}": Score(1.0) for number in range(SHOWN + 1)}
    report = report_of(Rollout("shop", "a", "default", 1, "ok", scores=scores))

    assert [1, 0] == [len(facts(report, f"s{number}")) for number in (SHOWN - 1, SHOWN)]


def test_phases() -> None:
    """A stopped run says how to resume it. Without finished rollouts, there are no means. Everything is in the summary."""
    stopped, empty = report_of(rollout("a", 1.0), stopped=True), report_of()

    assert ([(1,)], [("night",)]) == (said(stopped, phrases.stopped), said(stopped, phrases.how_to_resume))
    assert ([(0,)], ()) == (said(empty, phrases.running), empty.sections)
    assert stopped.at(Level.SUMMARY) == stopped.at(Level.VERBOSE) == stopped


def test_node_workers() -> None:
    """A run on several machines has a row for each node worker, also before it has ended."""
    node = NodeRecord(1, "w1", "gpu-1", 4, 8, 0, "3.11", "2026-03-04T05:06:07+00:00", attempts=3)

    (nodes,) = [each for each in document_so_far("night", None, SoFar(), stopped=False, nodes=[node]).sections if each.title == "Nodes"]

    assert [("w1", "gpu-1", 4, 8, 3)] == [row[:5] for block in nodes.blocks if isinstance(block, Table) for row in block.rows]
