"""Counting mistakes by rollout, independent of the order in which rollouts end."""

from __future__ import annotations

from itertools import permutations

from pytest_agentbench.records import Rollout, ToolCall
from pytest_agentbench.runs.tasks_and_mistakes import Confusion, MistakeCount, MistakeCounts, ToolMistakes, Triage


def rollout(scenario: str, *calls: str, expected: tuple[str, ...] = ("find",), status: str = "ok") -> Rollout:
    labels = tuple({"tool": tool, "parameters": {}} for tool in expected)
    made = tuple(ToolCall(name, {}, 1) for name in calls)
    return Rollout("shop", scenario, "default", 1, status, tool_calls=made, expected=labels)


def triage(*rollouts: Rollout) -> Triage | None:
    found = MistakeCounts()
    for each in rollouts:
        found.add(each)
    return found.triage()


def test_counts() -> None:
    """Kinds of mistakes, confused pairs of tools, and mistakes by tool are counted."""
    found = triage(
        rollout("a", "find"),
        rollout("b", "order"),
        rollout("c", "order"),
        rollout("d"),
        rollout("e", "find", "pay", "ship"),
        rollout("f", status="infra_error"),
    )

    assert found is not None
    assert (5, 4) == (found.rollouts, found.faulty)
    assert found.kinds == (
        MistakeCount("wrong tool", 2, ("b", "c"), "order instead of find"),
        MistakeCount("gave up", 1, ("d",), "no find"),
        MistakeCount("extra call", 1, ("e",), "pay"),
    )
    assert found.confused == (Confusion("find", "order", 2),)
    assert found.tools == (
        ToolMistakes("find", 5, 3, 0, 0),
        ToolMistakes("order", 0, 0, 2, 0),
        ToolMistakes("pay", 0, 0, 1, 0),
        ToolMistakes("ship", 0, 0, 1, 0),
    )


def test_missing_tools_of_a_rollout_that_gave_up() -> None:
    """All expected tools of a rollout that gave up are counted as missing, whatever characters their names contain."""
    counts = triage(rollout("a", expected=("find, or order", "pay")))

    assert counts is not None
    assert (ToolMistakes("find, or order", 1, 1, 0, 0), ToolMistakes("pay", 1, 1, 0, 0)) == counts.tools
    assert (MistakeCount("gave up", 1, ("a",), "no find, or order, pay"),) == counts.kinds


def test_examples_are_the_lowest_ids() -> None:
    """Each kind keeps the three examples with the lowest ids, independent of the order of ending."""
    found = {triage(*order) for order in permutations([rollout(each, "order") for each in "dbcae"])}

    assert 1 == len(found)
    assert ("a", "b", "c") == next(iter(found)).kinds[0].examples  # type: ignore[union-attr]


def test_nothing_measured() -> None:
    """Without measured rollouts the summary is None. Without mistakes, its lists are empty."""
    assert triage(rollout("a", status="cancelled")) is None
    assert Triage(1, 0, (), (), ()) == triage(rollout("a", "find"))
