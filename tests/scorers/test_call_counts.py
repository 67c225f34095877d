"""Scorers that count calls that should not be."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_agentbench.records import Json, Rollout, ToolCall
from pytest_agentbench.scorers.hallucinated import hallucinated
from pytest_agentbench.scorers.repeated import repeated
from pytest_agentbench.suites.suite import Scenario


def _records(actual: Sequence[ToolCall], expected: Sequence[Json]) -> tuple[Scenario, Rollout]:
    """A scenario that expects calls, beside a rollout that made some."""
    scenario = Scenario(id="s1", messages=({"role": "user", "content": "hello"},), expected=tuple(expected))
    return scenario, Rollout("bank", "s1", "default", 1, "ok", tool_calls=tuple(actual))


def test_hallucinated() -> None:
    """Every call of an unknown tool counts; calls with wrong arguments are another matter."""
    calls = [
        ToolCall("get_a", {}, 1),
        ToolCall("fly", {}, 1, problem="unknown_tool"),
        ToolCall("fly", {}, 2, problem="unknown_tool"),
        ToolCall("get_b", {}, 2, problem="invalid_arguments"),
    ]

    score = hallucinated(*_records(calls, []))

    assert 2.0 == score
    assert {"calls": 4} == score.parts
    assert "unknown tools: fly" == score.explanation


def test_repeated() -> None:
    """A repeat has the same name and the same arguments, in whatever order; 1, 1.0 and true differ, as do unparsed texts."""
    calls = [
        ToolCall("t", {"a": 1, "b": "x"}, 1),
        ToolCall("t", {"b": "x", "a": 1}, 2),
        ToolCall("t", {"a": 1, "b": "x"}, 3),
        ToolCall("t", {"a": 1.0, "b": "x"}, 3),
        ToolCall("t", {"a": True, "b": "x"}, 3),
        ToolCall("u", {"a": 1, "b": "x"}, 3),
        ToolCall("t", {}, 4, raw="{a"),
        ToolCall("t", {}, 4, raw="{b"),
        ToolCall("t", {}, 5, raw="{b"),
        ToolCall("v", {"a": 1}, 5),
        ToolCall("v", {"a": 1}, 6, raw="{'a': 1}", repaired=True),
    ]

    score = repeated(*_records(calls, []))

    assert 4.0 == score
    assert {"calls": 11} == score.parts
    assert "repeated: t (3 times), t (2 times), v (2 times)" == score.explanation


def test_nothing_to_count() -> None:
    """A rollout without calls has none of either."""
    assert (0.0, "unknown tools: none") == ((score := hallucinated(*_records([], []))), score.explanation)
    assert (0.0, "repeated: none") == ((score := repeated(*_records([], []))), score.explanation)
