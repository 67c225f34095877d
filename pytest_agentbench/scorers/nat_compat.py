"""Scores as the `tsq_evaluator` of NVIDIA's NeMo Agent Toolkit does, so that numbers can be compared with published ones.

Its quirks are included:

The weights are not normalised: 1.0 and 0.4 give up to 1.4. Calls of a wrong tool still earn the parameter weight if no parameters are
expected. Only the parameters of a tool's last call count.

`tsq` and `parameter_accuracy` are scorers without these quirks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pytest_agentbench.records import Json, Rollout, Score
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.matching import normalised

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


def _range(*, tool_weight: float, parameter_weight: float, **_: Any) -> tuple[float, float]:
    """Returns the least and the greatest possible score. Tool and parameter accuracy are from 0 to 1, so only their weights matter."""
    ends = [min(0.0, tool_weight) + min(0.0, parameter_weight), max(0.0, tool_weight) + max(0.0, parameter_weight)]
    return (ends[0], ends[1]) if ends[0] < ends[1] else (0.0, 1.0)  # If both weights are 0, every score is 0.


@scorer(range=_range)
def nat_compat(
    scenario: Scenario, rollout: Rollout, *, tool_weight: float = 1.0, parameter_weight: float = 0.0, strict_mode: bool = False
) -> Score:
    """Returns the TSQ that the evaluator of NVIDIA's NeMo Agent Toolkit computes.

    The value is the weighted sum of the F1 of the sets of tools and the share of expected parameters. Weights are not normalised: with 1.0
    and 0.4 the best score is 1.4. Options have the names and defaults of the toolkit. With the defaults it differs from `tsq` in one way: a
    call of a tool that does not exist does not count, because the toolkit does not record it.

    Options:
        tool_weight: Factor of the F1 of the sets of tools.
        parameter_weight: Factor of the share of expected parameters. A value of the right type counts half.
        strict_mode: Whether a value that only has the right type counts nothing.
    """
    return nat_score(nat_calls(rollout), scenario.expected, tool_weight, parameter_weight, strict_mode)


def nat_calls(rollout: Rollout) -> list[Json]:
    """Returns the calls of a rollout as `{tool, parameters}`. Calls of unknown tools are left out, as in the toolkit's trajectories."""
    called = [call for call in rollout.tool_calls if call.name and call.problem != "unknown_tool"]
    return [{"tool": call.name, "parameters": call.arguments} for call in called]


def nat_score(
    actual: Sequence[Json], expected: Sequence[Json], tool_weight: float = 1.0, parameter_weight: float = 0.0, strict: bool = False
) -> Score:
    """Returns the weighted sum of tool and parameter accuracy. Calls are `{tool, parameters}`.

    A wrong value of the right type counts half, or nothing if `strict` is set.
    """
    tools = _tool_accuracy(actual, expected)
    parameters = _parameter_accuracy(actual, expected, strict)
    return Score(
        tool_weight * tools + parameter_weight * parameters,
        {"tool_accuracy": tools, "parameter_accuracy": parameters},
        f"{tool_weight:g} x tool accuracy {tools:.3f} + {parameter_weight:g} x parameter accuracy {parameters:.3f}",
    )


def _tool_accuracy(actual: Sequence[Json], expected: Sequence[Json]) -> float:
    """Returns the F1 score of the set of called tools against the set of expected tools."""
    if not expected:
        return 0.0 if actual else 1.0
    called, labelled = _names(actual), _names(expected)
    matched = len(called & labelled)
    if not matched:
        return 0.0
    precision, recall = matched / len(called), matched / len(labelled)
    return 2 * precision * recall / (precision + recall)


def _parameter_accuracy(actual: Sequence[Json], expected: Sequence[Json], strict: bool) -> float:
    """Returns the mean credit (0, 0.5 or 1) of the expected parameters, or 1.0 if no parameters are expected."""
    called = _parameters_by_tool(actual)
    earned = [
        _credit(value, called[tool].get(name), strict) if tool in called else 0.0
        for tool, parameters in _parameters_by_tool(expected).items()
        for name, value in parameters.items()
    ]
    return sum(earned) / len(earned) if earned else 1.0


def _names(calls: Iterable[Json]) -> set[str]:
    return {normalised(call["tool"]) for call in calls}


def _parameters_by_tool(calls: Iterable[Json]) -> dict[str, Json]:
    """Returns tool -> parameters of its last call."""
    return {normalised(call["tool"]): call.get("parameters") or {} for call in calls}


def _credit(expected: Any, actual: Any, strict: bool) -> float:
    if actual == expected:
        return 1.0
    same_type = isinstance(actual, type(expected)) or isinstance(expected, type(actual))
    return 0.5 if same_type and not strict else 0.0
