"""Tool selection quality: were the expected tools called, and no others?

This is the F1 of two sets of tool names, as NVIDIA's NeMo Agent Toolkit has it (`nat_compat` is its exact arithmetic). Galileo's
agent leaderboard gives the name to something else: there a language model judges the tools and their arguments turn by turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.names import normalised

if TYPE_CHECKING:
    from pytest_agentbench.scenarios import Scenario


def tsq(scenario: Scenario, rollout: Rollout) -> Score:
    """2 x precision x recall / (precision + recall) over distinct tool names; order, repeats and arguments do not count.

    Where no tool is expected, a rollout without tool calls has 1.0 and any other 0.0.
    """
    expected = _distinct(str(call["tool"]) for call in scenario.expected)
    actual = _distinct(rollout.tools)
    matched = len(expected.keys() & actual.keys())
    nothing_to_do = not expected and not actual
    precision = 1.0 if nothing_to_do else _ratio(matched, len(actual))
    recall = 1.0 if nothing_to_do else _ratio(matched, len(expected))
    value = 1.0 if nothing_to_do else 2 * matched / (len(expected) + len(actual))
    missing = [name for key, name in expected.items() if key not in actual]
    unexpected = [name for key, name in actual.items() if key not in expected]
    return Score(
        value,
        {"precision": precision, "recall": recall, "expected": len(expected), "actual": len(actual), "matched": matched},
        f"precision {precision:.2f}, recall {recall:.2f}; missing: {_listed(missing)}; unexpected: {_listed(unexpected)}",
    )


def _distinct(names: Iterable[str]) -> dict[str, str]:
    """Normalised name -> the name as it was first written, in order of appearance."""
    distinct: dict[str, str] = {}
    for name in names:
        distinct.setdefault(normalised(name), name)
    return distinct


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _listed(names: list[str]) -> str:
    return ", ".join(name or "''" for name in names) or "none"
