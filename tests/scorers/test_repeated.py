"""The scorer `repeated`, which counts calls that were made before."""

from __future__ import annotations

from pytest_agentbench.records import ToolCall
from pytest_agentbench.scorers.repeated import repeated
from tests.scorers.records import records


def test_repeated() -> None:
    """A repeat has the same name and arguments, in any order. 1, 1.0 and true differ, and so do texts that cannot be parsed."""
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

    score = repeated(*records(calls))

    assert 4.0 == score
    assert {"calls": 11} == score.parts
    assert "repeated: t (3 times), t (2 times), v (2 times)" == score.explanation


def test_nothing_to_count() -> None:
    """A rollout without calls has the value 0."""
    assert (0.0, "repeated: none") == ((score := repeated(*records())), score.explanation)
