"""Parameter accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_agentbench.records import Json, Rollout, ToolCall
from pytest_agentbench.scenarios import Scenario
from pytest_agentbench.scorers.parameter_accuracy import parameter_accuracy, same_value


def _records(actual: Sequence[ToolCall], expected: Sequence[Json]) -> tuple[Scenario, Rollout]:
    """A scenario that expects calls, beside a rollout that made some."""
    scenario = Scenario(id="s1", messages=({"role": "user", "content": "hello"},), expected=tuple(expected))
    return scenario, Rollout("bank", "s1", "default", 1, "ok", tool_calls=tuple(actual))


def _call(tool: str, **parameters: Any) -> Json:
    return {"tool": tool, "parameters": parameters}


@pytest.mark.parametrize(
    ("actual", "expected", "value"),
    [
        ([_call("t", a=1, b=2)], [_call("t", a=1, b=3)], 0.5),
        ([_call("t", a=1), _call("t", a=1)], [_call("t", a=1)], 1.0),  # no credit is given twice
        ([_call("t", a=1, extra=9)], [_call("t", a=1)], 1.0),  # arguments that no label mentions do not count
        ([_call("t"), _call("x", a=1)], [_call("t", a=1)], 0.0),  # nor does the right argument in the wrong tool
        ([_call("t", a=1)], [_call("t", a=1), _call("u", b=2)], 0.5),  # a tool that was not called has no credit
        ([_call("t")], [_call("t"), _call("u", b=2)], 0.5),  # a call without parameters only has to be made
        ([_call("t", a=None)], [_call("t", a=None)], 1.0),
        ([_call("t")], [_call("t", a=None)], 0.0),  # null is a value, leaving it out is not
        ([_call("bank__T", a=1)], [_call("t", a=1)], 1.0),
        ([_call("t", a=1)], [], 1.0),
        ([], [], 1.0),
    ],
)
def test_value(actual: list[Json], expected: list[Json], value: float) -> None:
    """The mean over expected calls of the share of right parameters."""
    calls = [ToolCall(call["tool"], call["parameters"], turn=1) for call in actual]

    assert value == parameter_accuracy(*_records(calls, expected))


def test_several_calls_of_one_tool_are_matched_best_first() -> None:
    """The better pairs are taken first, each call once; among equal shares the one with more right parameters goes first."""
    expected = [_call("t", a=1), _call("t", a=1, b=2), _call("t", a=7)]
    calls = [ToolCall("t", {"a": 1, "b": 2}, 1), ToolCall("t", {"a": 1}, 1)]

    score = parameter_accuracy(*_records(calls, expected))

    assert 2 / 3 == score
    assert {"expected_calls": 3, "called": 2, "parameters": 4, "correct": 3} == score.parts
    assert "3 of 4 expected parameters are right; 2 of 3 expected calls were made" == score.explanation


@pytest.mark.parametrize(("called", "value"), [("t u", 1.0), ("t", 0.5), ("", 0.0)])
def test_labels_without_parameters(called: str, value: float) -> None:
    """Without expected parameters the value is 1.0 only when all expected tools were called, and the explanation says why."""
    score = parameter_accuracy(*_records([ToolCall(name, {}, 1) for name in called.split()], [_call("t"), _call("u")]))

    assert value == score
    assert f"no parameters are expected; {len(called.split())} of 2 expected calls were made" == score.explanation


def test_labels_without_calls() -> None:
    """Where nothing is expected the explanation says so."""
    assert "no calls are expected" == parameter_accuracy(*_records([], [])).explanation


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        (5, 5.0, True),
        (500, "500", True),
        ("12.50", 12.5, True),
        ("0042", "42", False),  # account numbers are strings
        (1, True, False),
        (0, False, False),
        (True, True, True),
        (" Main  St", "main st", True),
        ("Straße", "STRASSE", True),
        ("main st", "mainst", False),
        ("five", 5, False),
        (None, None, True),
        (None, "", False),
        ([1, "A"], [1.0, "a"], True),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ({"a": " x"}, {"a": "X"}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([], {}, False),
    ],
)
def test_same_value(expected: Any, actual: Any, same: bool) -> None:
    """Numbers are compared as numbers, strings without case and spacing, lists and objects by their contents."""
    assert same is same_value(expected, actual)
    assert same is same_value(actual, expected)
