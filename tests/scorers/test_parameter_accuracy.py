"""The scorer `parameter_accuracy`: the share of right parameters in expected calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_agentbench.records import Json, Rollout, ToolCall
from pytest_agentbench.scorers.parameter_accuracy import parameter_accuracy
from pytest_agentbench.suites.suite import Scenario, Tool


def _records(actual: Sequence[ToolCall], expected: Sequence[Json]) -> tuple[Scenario, Rollout]:
    """Returns a scenario that expects calls, and a rollout that made some."""
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
    """The value is the mean over expected calls of the share of right parameters."""
    calls = [ToolCall(call["tool"], call["parameters"], turn=1) for call in actual]

    assert value == parameter_accuracy(*_records(calls, expected))


def test_several_calls_of_one_tool() -> None:
    """Each call is used in one comparison. Among equal values, the pairs with more right parameters are taken."""
    expected = [_call("t", a=1), _call("t", a=1, b=2), _call("t", a=7)]
    calls = [ToolCall("t", {"a": 1, "b": 2}, 1), ToolCall("t", {"a": 1}, 1)]

    score = parameter_accuracy(*_records(calls, expected))

    assert 2 / 3 == score
    assert {"expected_calls": 3, "called": 2, "parameters": 4, "correct": 3} == score.parts
    assert "3 of 4 expected parameters are right; 2 of 3 expected calls were made" == score.explanation


def test_the_best_pair_first_would_not_be_best() -> None:
    """Pairs have the highest sum: the first call fits both labels, and is paired with the one that no other call fits."""
    whole = {"a": 1, "b": 2, "c": 3, "d": 4}
    expected = [_call("t", **whole), _call("t", c=3, d=4)]
    calls = [ToolCall("t", whole, 1), ToolCall("t", {"a": 1, "b": 2}, 1)]

    score = parameter_accuracy(*_records(calls, expected))

    assert 0.75 == score
    assert {"expected_calls": 2, "called": 2, "parameters": 6, "correct": 4} == score.parts


def test_many_calls_of_one_tool() -> None:
    """A hundred calls of one tool in the wrong order are all right."""
    expected = [_call("t", at=number, half=number // 2) for number in range(100)]
    calls = [ToolCall("t", {"at": number, "half": number // 2}, 1) for number in reversed(range(100))]

    assert 1.0 == parameter_accuracy(*_records(calls, expected))


@pytest.mark.parametrize(("called", "value"), [("t u", 1.0), ("t", 0.5), ("", 0.0)])
def test_labels_without_parameters(called: str, value: float) -> None:
    """Without expected parameters the value is 1.0 only if all expected tools were called, and the explanation says why."""
    score = parameter_accuracy(*_records([ToolCall(name, {}, 1) for name in called.split()], [_call("t"), _call("u")]))

    assert value == score
    assert f"no parameters are expected; {len(called.split())} of 2 expected calls were made" == score.explanation


def test_labels_without_calls() -> None:
    """If no call is expected, the explanation says so."""
    assert "no calls are expected" == parameter_accuracy(*_records([], [])).explanation


def test_values_are_compared_by_the_schema() -> None:
    """Values are compared as in `arguments`: any accepted value is right, and an optional one may be missing."""
    tool = Tool("t", "", {"type": "object", "properties": {"n": {"type": "integer"}, "code": {"type": "string"}}})
    label = {"tool": "t", "accepts": {"n": [5, 6], "code": ["007"], "more": [1]}, "optional": ["more"]}
    scenario, rollout = _records([ToolCall("t", {"n": "6.0", "code": 7, "extra": 1}, 1)], [label])

    score = parameter_accuracy(dataclasses.replace(scenario, tools=(tool,)), rollout)

    assert 2 / 3 == score
    assert score.explanation.endswith('1 of 1 expected calls were made; t: code is 7, expected "007"')


def test_unreadable_arguments() -> None:
    """A call whose arguments could not be parsed counts as made, with no right parameters."""
    score = parameter_accuracy(*_records([ToolCall("t", {}, 1, problem="malformed_arguments", raw="{")], [_call("t", a=1, b=2)]))

    assert 0.0 == score
    assert (
        "0 of 2 expected parameters are right; 1 of 1 expected calls were made; t: the arguments could not be parsed" == score.explanation
    )


def test_turns() -> None:
    """If labels have turns, only calls of the same user turn are compared."""
    labels = [{**_call("t", a=1), "turn": 1}, {**_call("t", a=2), "turn": 2}]
    calls = [ToolCall("t", {"a": 2}, 1, user_turn=1), ToolCall("t", {"a": 2}, 2, user_turn=2)]

    assert 0.5 == parameter_accuracy(*_records(calls, labels))
