"""The call tree of agents, whose branches have names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_agentbench.profile.tree import Branch, CallTree, top
from pytest_agentbench.records import Rollout, ToolCall
from tests.tables.shop import ALL, BOUGHT, LOST, MS, START, TRIED, call, rollout


def tree(*rollouts: Rollout) -> dict[tuple[str, ...], Branch]:
    grown = CallTree()
    for each in rollouts:
        grown.add(each)
    return {branch.path: branch for branch in grown.branches()}


def tool(name: str, start: int, end: int) -> ToolCall:
    return ToolCall(name, {}, 1, started_ns=START + start * MS, ended_ns=START + end * MS)


def figures(branch: Branch) -> tuple[int, float, float]:
    """Returns count, total time and self time of a branch. The times are in milliseconds."""
    return branch.count, round(branch.total_s * 1e3, 6), round(branch.self_s * 1e3, 6)


def test_the_shop() -> None:
    """The calls of a rollout are below it by name, and the parts of a call below the call. Earlier attempts are separate."""
    branches = tree(*ALL)

    assert {
        ("shop",): (3, 2_300.0, 600.0),
        ("shop", "LLM m"): (3, 1_200.0, 0.0),
        ("shop", "LLM m", "first token"): (3, 700.0, 700.0),
        ("shop", "LLM m", "decoding"): (3, 500.0, 500.0),
        ("shop", "LLM m", "before it was sent"): (3, 0.0, 0.0),
        ("shop", "earlier attempts"): (1, 200.0, 100.0),
        ("shop", "earlier attempts", "LLM m"): (1, 100.0, 100.0),
        ("shop", "tool find_item"): (1, 200.0, 200.0),
        ("shop", "judge judge"): (1, 100.0, 0.0),
        ("shop", "judge judge", "first token"): (1, 50.0, 50.0),
        ("shop", "judge judge", "decoding"): (1, 50.0, 50.0),
        ("shop", "judge judge", "before it was sent"): (1, 0.0, 0.0),
    } == {path: figures(branch) for path, branch in branches.items()}
    assert 1.0 == branches["shop",].share
    assert 200 / 2_300 == pytest.approx(branches["shop", "tool find_item"].share)


def test_a_tool_that_asks_a_model() -> None:
    """A call during a tool is below the tool in the tree, and its time is not part of the tool's self time."""
    within = rollout(calls=(call(0, 100, end=200), call(300, 350, end=400)), tool_calls=(tool("ask_expert", 250, 500),))
    branches = tree(within)

    assert (1, 250.0, 150.0) == figures(branches["shop", "tool ask_expert"])
    assert (1, 100.0, 0.0) == figures(branches["shop", "tool ask_expert", "LLM m"])
    assert (1, 200.0, 0.0) == figures(branches["shop", "LLM m"])
    assert (1, 1_000.0, 550.0) == figures(branches["shop",])


def test_two_at_once() -> None:
    """Concurrent tools count twice in the total, but their common time is subtracted once from the self time of the rollout."""
    branches = tree(rollout(tool_calls=(tool("find_item", 100, 300), tool("find_item", 200, 400), tool("find_item", 200, 400))))

    assert (3, 600.0, 600.0) == figures(branches["shop", "tool find_item"])
    assert (1, 1_000.0, 700.0) == figures(branches["shop",])


def test_a_tool_without_times() -> None:
    """A tool call without times is counted, with a duration of 0."""
    branches = tree(rollout(tool_calls=(ToolCall("find_item", {}, 1),)))

    assert (1, 0.0, 0.0) == figures(branches["shop", "tool find_item"])


def test_order() -> None:
    """Siblings are sorted by their totals, and parents come first. The top five exclude roots."""
    other = replace(TRIED, suite="bank")
    paths = [*tree(BOUGHT, LOST, other)]

    assert [("bank",), ("shop",)] == [path for path in paths if len(path) == 1]
    assert ("bank", "LLM m") == paths[1]
    assert ["LLM m", "LLM m", "first token", "decoding", "first token"] == [each.name for each in top(tree(BOUGHT, other).values())]


def test_rollouts_without_times() -> None:
    """Attempts without times are not counted."""
    assert {} == {path: branch for path, branch in tree(replace(BOUGHT, started_ns=0)).items() if branch.count}
