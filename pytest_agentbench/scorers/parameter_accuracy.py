"""Parameter accuracy: did the expected calls carry the expected arguments?

It says as much as the labels do. Labels of source `heuristic-v1` hold placeholders ("<account_number>", 0, true), so use it with
labels made by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_agentbench.records import Json, Rollout, Score, ToolCall
from pytest_agentbench.scorers.names import normalised

if TYPE_CHECKING:
    from pytest_agentbench.scenarios import Scenario


class _Pair(NamedTuple):
    """An expected call beside an actual call of the same tool; both are positions."""

    share: float  # of the expected parameters that the actual call has right; 1.0 when none are expected
    correct: int
    expected: int
    actual: int


def parameter_accuracy(scenario: Scenario, rollout: Rollout) -> Score:
    """The mean over expected calls of the share of their parameters that are right.

    - An expected call is compared with one actual call of that tool, and no two of them with the same one; the best pairs are
      taken first. An expected call that is left without one counts 0, whether or not it has parameters.
    - A call that is expected without parameters counts 1 when it was made. So labels without any parameters give 1.0 only
      when every expected call was made, and the explanation says so.
    - Values are equal as JSON, save that 5, 5.0 and "5" are one number, and strings differ neither by case nor by spaces.
    - Arguments and calls that no label mentions do not count; where nothing is expected the value is 1.0.
    """
    pairs = _best_first(_pairs(scenario.expected, rollout.tool_calls))
    expected, called = len(scenario.expected), len(pairs)
    parameters = sum(len(_parameters(call)) for call in scenario.expected)
    correct = sum(pair.correct for pair in pairs)
    return Score(
        sum(pair.share for pair in pairs) / expected if expected else 1.0,
        {"expected_calls": expected, "called": called, "parameters": parameters, "correct": correct},
        _explanation(expected, called, parameters, correct),
    )


def same_value(expected: Any, actual: Any) -> bool:
    """Whether two JSON values mean the same: 5, 5.0 and "5" do, "Main St" and " main  st" do, 1 and true do not."""
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    if isinstance(expected, str) and isinstance(actual, str):
        return _plain(expected) == _plain(actual)
    if isinstance(expected, dict) and isinstance(actual, dict):
        return expected.keys() == actual.keys() and all(same_value(value, actual[name]) for name, value in expected.items())
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(same_value, expected, actual))
    return bool(_number(expected) == _number(actual))


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _number(value: Any) -> Any:
    """The number that a string spells; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def _parameters(expected: Json) -> Json:
    return expected.get("parameters") or {}


def _pairs(expected: Iterable[Json], actual: Iterable[ToolCall]) -> list[_Pair]:
    actual = list(actual)
    return [
        _pair(i, _parameters(label), j, call.arguments)
        for i, label in enumerate(expected)
        for j, call in enumerate(actual)
        if normalised(str(label["tool"])) == normalised(call.name)
    ]


def _pair(i: int, parameters: Json, j: int, arguments: Json) -> _Pair:
    correct = sum(name in arguments and same_value(value, arguments[name]) for name, value in parameters.items())
    return _Pair(correct / len(parameters) if parameters else 1.0, correct, i, j)


def _best_first(pairs: list[_Pair]) -> list[_Pair]:
    """Pairs that share no call: highest share first, then most right parameters, then order of appearance."""
    chosen: list[_Pair] = []
    for pair in sorted(pairs, key=lambda pair: (-pair.share, -pair.correct, pair.expected, pair.actual)):
        if all(pair.expected != other.expected and pair.actual != other.actual for other in chosen):
            chosen.append(pair)
    return chosen


def _explanation(expected: int, called: int, parameters: int, correct: int) -> str:
    if not expected:
        return "no calls are expected"
    if not parameters:
        return f"no parameters are expected; {called} of {expected} expected calls were made"
    return f"{correct} of {parameters} expected parameters are right; {called} of {expected} expected calls were made"
