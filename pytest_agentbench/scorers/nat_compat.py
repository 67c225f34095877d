"""The `tsq_evaluator` of NVIDIA's NeMo Agent Toolkit, its quirks included, so that numbers can be compared with published ones.

Quirks: the weights are not normalised (1.0 and 0.4 give up to 1.4), a wrong tool still earns the parameter weight when no
parameters are expected, and of several calls of one tool the last one's parameters count. `tsq` and `parameter_accuracy` are
the scorers without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pytest_agentbench.records import Json, Rollout, Score
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.matches import normalised

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


def _range(*, tool_weight: float, parameter_weight: float, **_: Any) -> tuple[float, float]:
    """Both accuracies are shares, so the weights say how great their sum can be."""
    ends = [min(0.0, tool_weight) + min(0.0, parameter_weight), max(0.0, tool_weight) + max(0.0, parameter_weight)]
    return (ends[0], ends[1]) if ends[0] < ends[1] else (0.0, 1.0)  # without weights every score is 0


@scorer(range=_range)
def nat_compat(
    scenario: Scenario, rollout: Rollout, *, tool_weight: float = 1.0, parameter_weight: float = 0.0, strict_mode: bool = False
) -> Score:
    """The score under the options of the toolkit's evaluator, by the names and with the defaults that they have there."""
    return nat_score(nat_calls(rollout), scenario.expected, tool_weight, parameter_weight, strict_mode)


def nat_calls(rollout: Rollout) -> list[Json]:
    """The calls that count, as `{tool, parameters}`: one of a tool that does not exist leaves no trace in the toolkit's trajectory."""
    called = [call for call in rollout.tool_calls if call.name and call.problem != "unknown_tool"]
    return [{"tool": call.name, "parameters": call.arguments} for call in called]


def nat_score(
    actual: Sequence[Json], expected: Sequence[Json], tool_weight: float = 1.0, parameter_weight: float = 0.0, strict: bool = False
) -> Score:
    """The weighted sum of tool and parameter accuracy; calls are `{tool, parameters}`. `strict` gives no credit for the right type."""
    tools = _tool_accuracy(actual, expected)
    parameters = _parameter_accuracy(actual, expected, strict)
    return Score(
        tool_weight * tools + parameter_weight * parameters,
        {"tool_accuracy": tools, "parameter_accuracy": parameters},
        f"{tool_weight:g} x tool accuracy {tools:.3f} + {parameter_weight:g} x parameter accuracy {parameters:.3f}",
    )


def _tool_accuracy(actual: Sequence[Json], expected: Sequence[Json]) -> float:
    """F1 of the sets of names."""
    if not expected:
        return 0.0 if actual else 1.0
    called, labelled = _names(actual), _names(expected)
    matched = len(called & labelled)
    if not matched:
        return 0.0
    precision, recall = matched / len(called), matched / len(labelled)
    return 2 * precision * recall / (precision + recall)


def _parameter_accuracy(actual: Sequence[Json], expected: Sequence[Json], strict: bool) -> float:
    """Credits per expected parameter; 1.0 when there are none."""
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
    """Of several calls of one tool, the last one's parameters."""
    return {normalised(call["tool"]): call.get("parameters") or {} for call in calls}


def _credit(expected: Any, actual: Any, strict: bool) -> float:
    if actual == expected:
        return 1.0
    same_type = isinstance(actual, type(expected)) or isinstance(expected, type(actual))
    return 0.5 if same_type and not strict else 0.0
