"""Tables with a column for each arm, or for each run."""

from __future__ import annotations

from dataclasses import replace

from pytest_agentbench.metrics.stopwatch import SATURATED, Stopwatch
from pytest_agentbench.records import Chunk, LLMCall, Rollout, Score
from pytest_agentbench.reports.document import Finding, Table
from pytest_agentbench.reports.sections import side_by_side
from tests.gate.test_ab import both
from tests.gate.test_ab import compared as two_arms
from tests.gate.test_ab_arms import compared as three_arms
from tests.made_runs import run_of

GOOD = LLMCall(0, 0, 40_000_000, (Chunk(10_000_000, "content"), Chunk(30_000_000, "content")), called_ns=0, completion_tokens=2)
ONE = Rollout("shop", "s", "default", 1, "ok", ended_ns=50_000_000, calls=(*[GOOD] * 9,), scores={"tsq": Score(0.5)})


def rows(table: Table) -> dict[str, list[object]]:
    shown = [[each.words if isinstance(each, Finding) else each for each in row] for row in table.rows]
    return {str(row[0]): [*row[1:]] for row in shown}


def test_each_arm_has_a_column() -> None:
    """The values of a metric are in the columns of their arms, and its differences from the first arm below."""
    two, three = side_by_side.of_arms(two_arms(*both(-0.3, 2.0))), side_by_side.of_arms(three_arms({"c": 2.0}, {}))

    assert ["arm", "old", "new"] == [column.title for column in two.columns]
    assert 4 == len(three.columns)
    found = rows(two)
    old, new = (float(str(value)) for value in found["tsq"])
    assert new < old - 0.2
    assert {"rollouts", "TTFT p50, ms", "output tok/s", "rollouts/h", "LLM calls", "prefix cache hits"} <= {*found}
    assert "TTFT p90, ms" not in found
    titles = [row[0] for row in two.rows]
    difference = two.rows[titles.index("tsq") + 1]
    assert ("  vs old", "") == difference[:2]
    assert isinstance(difference[2], Finding) and str(difference[2].words).endswith(": worse")


def test_each_run_has_a_column() -> None:
    """Runs have their verdict, means, latencies and rates in one table. What is not usable or not measured has no number."""
    usual = run_of(ONE, verdict="PASS")
    saturated = replace(usual, stopwatch=Stopwatch(verdict=SATURATED), verdict="FAIL")
    recorded = replace(usual, backend=replace(usual.backend, kind="recorded"), suites={})
    table = side_by_side.of_runs(["a", "b", "c"], [usual, saturated, recorded])

    found = rows(table)
    assert ["run", "a", "b", "c"] == [column.title for column in table.columns]
    assert ["PASS", "FAIL", "PASS"] == found["verdict"]
    assert ["10.0 [10.0, 10.0]", "10.0", None] == found["TTFT p50, ms"]
    assert "-" == found["output tok/s"][2]
    assert None is found["tsq"][2]
