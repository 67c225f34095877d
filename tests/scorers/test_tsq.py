"""The scorer `tsq`: tool selection quality."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_agentbench.records import Json, Rollout, ToolCall
from pytest_agentbench.scorers.matching import normalised
from pytest_agentbench.scorers.tsq import tsq
from pytest_agentbench.suites.suite import Scenario


def _records(actual: Sequence[ToolCall], expected: Sequence[Json]) -> tuple[Scenario, Rollout]:
    """Returns a scenario that expects calls, and a rollout that made some."""
    scenario = Scenario(id="s1", messages=({"role": "user", "content": "hello"},), expected=tuple(expected))
    return scenario, Rollout("bank", "s1", "default", 1, "ok", tool_calls=tuple(actual))


@pytest.mark.parametrize(
    ("actual", "expected", "value", "precision", "recall"),
    [
        ("a b c", "a b c d", 6 / 7, 1.0, 0.75),  # documented as 0.857
        ("a b x", "a b c d", 4 / 7, 2 / 3, 0.5),  # documented as 0.571
        ("c b a a", "a b c", 1.0, 1.0, 1.0),
        ("bank__Get-Balance", "get_balance", 1.0, 1.0, 1.0),
        ("x", "a", 0.0, 0.0, 0.0),
        ("", "a", 0.0, 0.0, 0.0),
        ("a", "", 0.0, 0.0, 0.0),
        ("", "", 1.0, 1.0, 1.0),
    ],
)
def test_f1_of_the_sets_of_names(actual: str, expected: str, value: float, precision: float, recall: float) -> None:
    """The value is F1, and precision and recall are parts. Order, repeats, prefixes and spelling do not count."""
    calls = [ToolCall(name, {"n": i}, turn=1) for i, name in enumerate(actual.split())]

    score = tsq(*_records(calls, [{"tool": name, "parameters": {}} for name in expected.split()]))

    assert pytest.approx(value) == score
    assert precision == score.parts["precision"]
    assert recall == score.parts["recall"]


def test_the_documented_examples_to_three_places() -> None:
    """If 3 of 3 called tools are right and 3 of 4 expected ones were called, the score is 0.857. For 2 of 3 and 2 of 4 it is 0.571."""
    expected = [{"tool": name} for name in "abcd"]

    assert "0.857" == repr(tsq(*_records([ToolCall(name, {}, 1) for name in "abc"], expected)))
    assert "0.571" == repr(tsq(*_records([ToolCall(name, {}, 1) for name in "abx"], expected)))


def test_parts_and_explanation() -> None:
    """Counts are of distinct tools, and the explanation has the names as they were written."""
    calls = [ToolCall(name, {}, turn=1) for name in ("Get_A", "get_a", "Made-Up", "made_up")]

    score = tsq(*_records(calls, [{"tool": "get_a"}, {"tool": "get_b"}, {"tool": "get_c"}]))

    assert {"precision": 0.5, "recall": 1 / 3, "expected": 3, "actual": 2, "matched": 1} == score.parts
    assert "precision 0.50, recall 0.33; missing: get_b, get_c; unexpected: Made-Up" == score.explanation


def test_a_perfect_rollout_misses_nothing() -> None:
    """The explanation says `none` if there is nothing to list."""
    score = tsq(*_records([ToolCall("a", {}, 1)], [{"tool": "a"}]))

    assert "precision 1.00, recall 1.00; missing: none; unexpected: none" == score.explanation


@pytest.mark.parametrize(
    ("name", "plain"),
    [("__get_x", "getx"), ("a__b__c", "bc"), (" Get-X ", "getx"), ("get__", ""), ("", "")],
)
def test_normalised_names(name: str, plain: str) -> None:
    """Normalisation of a name removes the first group prefix, dashes, underscores and outer spaces, and ignores case."""
    assert plain == normalised(name)
