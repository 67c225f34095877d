"""The toolkit's scorer, compared with results of the toolkit's own functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_agentbench.records import Json, Rollout, ToolCall
from pytest_agentbench.scorers import load_scorer
from pytest_agentbench.scorers.nat_compat import nat_compat, nat_score
from pytest_agentbench.suites.suite import Scenario


def _records(actual: Sequence[ToolCall], expected: Sequence[Json]) -> tuple[Scenario, Rollout]:
    """Returns a scenario that expects calls, and a rollout that made some."""
    scenario = Scenario(id="s1", messages=({"role": "user", "content": "hello"},), expected=tuple(expected))
    return scenario, Rollout("bank", "s1", "default", 1, "ok", tool_calls=tuple(actual))


def _calls(*names: str, **parameters: Any) -> list[Json]:
    return [{"tool": name, "parameters": parameters} for name in names]


def _numbered(count: int) -> list[Json]:
    return _calls(*(f"tool_{i}" for i in range(count)))


WITHOUT_PARAMETERS = [  # number of the vector, actual, expected, score
    (1, _calls("get_a", "get_b", "get_c"), _calls("get_a", "get_b", "get_c"), 1.0),
    (2, _calls("get_a"), _calls("get_a", "get_b", "get_c", "get_d"), 0.4),
    (3, _numbered(20), _numbered(8), 0.571429),
    (4, _calls("x", "y"), _calls("get_a", "get_b"), 0.0),
    (5, _calls("get_a", "get_b"), _calls("get_a", "get_c"), 0.5),
    (6, _calls("get_a", "get_b", "get_c"), _calls("get_a"), 0.5),
    (8, _calls(*"abcdefg"), _calls(*"abcdz"), 0.666667),
    (10, [], _calls("get_a", "get_b"), 0.0),
    (11, _calls("get_a"), [], 0.0),
    (12, [], [], 1.0),
    (13, _calls("get_a", "get_a", "get_a", "get_b", "get_b"), _calls("get_a", "get_b"), 1.0),
    (15, _calls("banking_tools__report_lost_stolen_card"), _calls("report_lost_stolen_card"), 1.0),
    (16, _calls("a__b__c"), _calls("b_c"), 1.0),
    (18, _calls("__get_x"), _calls("get_x"), 1.0),
    (19, _calls("x"), _calls("get__x"), 1.0),
    (21, _calls("Get-Account-BALANCE"), _calls("get_account_balance"), 1.0),
    (22, _calls("  get_account_balance "), _calls("get_account_balance"), 1.0),
    (24, _calls("GetAccountBalance"), _calls("get_account_balance"), 1.0),
    (26, _calls("get_ab"), _calls("get_ab", "geta_b"), 1.0),
    (27, _calls(""), _calls("get_a"), 0.0),
    (28, _calls(""), _calls(""), 1.0),
    (29, [], _calls(""), 0.0),
]

WITH_PARAMETERS = [  # number, actual, expected, (weights, strict), tool accuracy, parameter accuracy, score
    (30, _calls("get_a", n="1"), _calls("get_a", n="1"), (0.6, 0.4, False), 1.0, 1.0, 1.0),
    (31, _calls("get_a", n="1"), _calls("get_a", n="<n>"), (0.6, 0.4, False), 1.0, 0.5, 0.8),
    (32, _calls("get_a", n="1"), _calls("get_a", n="<n>"), (0.6, 0.4, True), 1.0, 0.0, 0.6),
    (33, _calls("get_a"), _calls("get_a", n="<n>", days=0), (0.6, 0.4, False), 1.0, 0.0, 0.6),
    (35, _calls("t", flag=1), _calls("t", flag=True), (0.6, 0.4, False), 1.0, 1.0, 1.0),
    (36, _calls("t", n=True), _calls("t", n=0), (0.6, 0.4, False), 1.0, 0.5, 0.8),
    (39, _calls("get_a", a="1") + _calls("get_a", a="2"), _calls("get_a", a="1"), (0.6, 0.4, True), 1.0, 0.0, 0.6),
    (40, _calls("get_a", a="1"), _calls("get_a", a="1"), (1.0, 0.4, False), 1.0, 1.0, 1.4),
    (41, _calls("get_a"), [], (0.6, 0.4, False), 0.0, 1.0, 0.4),
    (42, _calls("x"), _calls("get_a"), (0.6, 0.4, False), 0.0, 1.0, 0.4),
    (43, _calls("get_a", a="1", z=9), _calls("get_a", a="1"), (0.6, 0.4, False), 1.0, 1.0, 1.0),
]


@pytest.mark.parametrize(("number", "actual", "expected", "value"), WITHOUT_PARAMETERS)
def test_vectors_without_parameters(number: int, actual: list[Json], expected: list[Json], value: float) -> None:
    """With the default weights the score is the tool accuracy, and parameter accuracy is 1.0."""
    score = nat_score(actual, expected)

    assert value == round(score, 6), number
    assert {"tool_accuracy": value, "parameter_accuracy": 1.0} == {name: round(part, 6) for name, part in score.parts.items()}


@pytest.mark.parametrize(("number", "actual", "expected", "settings", "tools", "parameters", "value"), WITH_PARAMETERS)
def test_vectors_with_parameters(
    number: int,
    actual: list[Json],
    expected: list[Json],
    settings: tuple[float, float, bool],
    tools: float,
    parameters: float,
    value: float,
) -> None:
    """Weights are not normalised. A value of the right type earns half unless strict, and the last call of a tool counts."""
    score = nat_score(actual, expected, *settings)

    assert value == round(score, 6), number
    assert {"tool_accuracy": tools, "parameter_accuracy": parameters} == score.parts


def test_a_tool_that_was_not_called_dilutes_the_parameters() -> None:
    """Parameters of an expected tool that was not called count as wrong."""
    score = nat_score(_calls("a", n=1), _calls("a", n=1) + _calls("b", n=1, m=2), 0.5, 0.5)

    assert {"tool_accuracy": 2 / 3, "parameter_accuracy": 1 / 3} == score.parts
    assert "0.5 x tool accuracy 0.667 + 0.5 x parameter accuracy 0.333" == score.explanation


def test_the_calls_that_count() -> None:
    """Calls of unknown tools and calls without a name do not count. Calls with invalid arguments do."""
    calls = [
        ToolCall("bank__a", {"n": 1}, 1),
        ToolCall("b", {}, 1, problem="invalid_arguments"),
        ToolCall("made_up", {}, 1, problem="unknown_tool"),
        ToolCall("", {}, 2),
    ]

    score = nat_compat(*_records(calls, _calls("a", "b")))

    assert 1.0 == score
    assert {"tool_accuracy": 1.0, "parameter_accuracy": 1.0} == score.parts


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({}, 1.0),
        ({"parameter_weight": 0.4}, 1.2),  # weight of the toolkit's full configurations
        ({"tool_weight": 0.6, "parameter_weight": 0.4}, 0.8),  # weights of its minimal configuration
        ({"tool_weight": 0.6, "parameter_weight": 0.4, "strict_mode": True}, 0.6),
    ],
)
def test_weights_are_options(options: Json, value: float) -> None:
    """The evaluator's weights and strictness are options with the toolkit's names and defaults."""
    scorer = load_scorer("nat_compat", options=options)

    score = scorer(*_records([ToolCall("get_a", {"n": "1"}, 1)], _calls("get_a", n="<n>")))

    assert value == pytest.approx(score)
