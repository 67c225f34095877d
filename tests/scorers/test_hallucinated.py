"""The scorer `hallucinated`, which counts calls of tools that do not exist."""

from __future__ import annotations

from pytest_agentbench.records import ToolCall
from pytest_agentbench.scorers.hallucinated import hallucinated
from tests.scorers.records import records


def test_hallucinated() -> None:
    """Every call of an unknown tool counts. Calls with wrong arguments do not."""
    calls = [
        ToolCall("get_a", {}, 1),
        ToolCall("fly", {}, 1, problem="unknown_tool"),
        ToolCall("fly", {}, 2, problem="unknown_tool"),
        ToolCall("get_b", {}, 2, problem="invalid_arguments"),
    ]

    score = hallucinated(*records(calls))

    assert 2.0 == score
    assert {"calls": 4} == score.parts
    assert "unknown tools: fly" == score.explanation


def test_nothing_to_count() -> None:
    """A rollout without calls has the value 0."""
    assert (0.0, "unknown tools: none") == ((score := hallucinated(*records())), score.explanation)
