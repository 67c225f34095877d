"""The prediction trie. The expected numbers are those that version 1.9.0 of the NeMo Agent Toolkit computes for the same calls."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_agentbench.metrics.prediction_trie import CallPrediction, PredictedNumber, TrieBuilder, TrieNode
from pytest_agentbench.records import LLMCall, Rollout

MS = 1_000_000


def trace(lasted_ms: int, *calls: tuple[int, int, int, str], status: str = "ok") -> Rollout:
    """Makes a rollout from its calls: begin, end, output tokens and role."""
    made = [
        LLMCall(begun * MS, begun * MS, ended * MS, dialect="chat", completion_tokens=tokens, role=role)
        for begun, ended, tokens, role in calls
    ]
    times = {"started_at": 1.0, "started_ns": 0, "ended_ns": lasted_ms * MS}
    return Rollout("shop", "s0", "default", 1, status, calls=tuple(made), **times)  # type: ignore[arg-type]


TRACES = (
    trace(1000, (0, 100, 10, ""), (150, 200, 20, ""), (600, 700, 30, ""), (750, 900, 5, "judge")),
    trace(2000, (0, 400, 12, ""), (500, 900, 24, ""), (550, 800, 7, "helper"), (1000, 1900, 40, "")),
    trace(300, (10, 210, 90, "")),
)


def built(workflow: str = "", rollouts: Sequence[Rollout] = TRACES) -> TrieNode:
    builder = TrieBuilder(workflow)
    for rollout in rollouts:
        builder.add(rollout)
    return builder.build()


def numbers(number: PredictedNumber) -> list[float]:
    return [number.sample_count, number.mean, number.p50, number.p90, number.p95]


def said(node: TrieNode, index: str) -> tuple[object, object, object, int | None]:
    every = node.predictions_any_index if index == "any" else node.predictions_by_call_index[index]
    assert isinstance(every, CallPrediction)
    of = (numbers(each) for each in (every.remaining_calls, every.interarrival_ms, every.output_tokens))
    remaining, pause, tokens = (pytest.approx(each) for each in of)
    return remaining, pause, tokens, every.latency_sensitivity


@pytest.mark.parametrize(
    ("path", "index", "vector"),
    [
        ("", "1", ([5, 1.6, 2, 3, 3], [3, 350 / 3, 100, 180, 190], [5, 24.8, 10, 58.8, 74.4], 3)),
        ("", "2", ([2, 1.5, 1.5, 1.9, 1.95], [2, 250, 250, 370, 385], [2, 22, 22, 23.6, 23.8], 2)),
        ("", "3", ([2, 0.5, 0.5, 0.9, 0.95], [1, 50, 50, 50, 50], [2, 35, 35, 39, 39.5], 2)),
        ("", "any", ([9, 4 / 3, 1, 3, 3], [6, 150, 100, 300, 350], [9, 238 / 9, 20, 50, 70], 2)),
        ("shop", "any", ([9, 4 / 3, 1, 3, 3], [6, 150, 100, 300, 350], [9, 238 / 9, 20, 50, 70], 2)),
        ("shop.agent", "1", ([3, 2, 3, 3, 3], [2, 75, 75, 95, 97.5], [3, 112 / 3, 12, 74.4, 82.2], 4)),
        ("shop.agent", "any", ([7, 10 / 7, 1, 3, 3], [5, 140, 100, 280, 340], [7, 226 / 7, 24, 60, 75], 3)),
        ("shop.judge", "1", ([1, 0, 0, 0, 0], [0, 0, 0, 0, 0], [1, 5, 5, 5, 5], 1)),
        ("shop.helper", "1", ([1, 2, 2, 2, 2], [1, 200, 200, 200, 200], [1, 7, 7, 7, 7], 1)),
    ],
)
def test_vectors(path: str, index: str, vector: tuple[object, ...]) -> None:
    """Distributions and sensitivities are those of the toolkit, in every node and for every number of a call."""
    node = built()
    for name in filter(None, path.split(".")):
        node = node.children[name]

    assert vector == said(node, index)


def test_calls_at_the_same_time() -> None:
    """Calls that overlap, also through a third one, are one step of the trace. So they are equally far from its end."""
    calls = (0, 400, 1, "a"), (300, 800, 1, "b"), (700, 900, 1, "c"), (1000, 1100, 1, "d"), (1200, 1900, 1, "e")
    roles = built(rollouts=[trace(2000, *calls)]).children["shop"].children
    found = {name: node.predictions_any_index for name, node in roles.items()}

    assert {"a": 5, "b": 5, "c": 4, "d": 1, "e": 2} == {name: each.latency_sensitivity for name, each in found.items() if each}


def test_lookup() -> None:
    """The deepest node on the path of functions answers, first for the number of the call, then for all calls."""
    root = built("flow")
    agent = root.children["flow"].children["agent"]

    assert agent.predictions_by_call_index["1"] == root.find(["flow", "agent"], 1) == root.find(["flow", "agent", "deeper"], 1)
    assert agent.predictions_any_index == root.find(["flow", "agent"], 99)
    assert root.predictions_by_call_index["2"] == root.find(["other"], 2)
    assert None is TrieNode("root", {}, None).find([], 1)


@pytest.mark.parametrize("status", ["agent_error", "infra_error"])
def test_incomplete_rollouts(status: str) -> None:
    """Rollouts that ended early are left out, because the number of their calls says nothing."""
    assert TrieNode("root", {}, None) == built(rollouts=[trace(1000, (0, 100, 10, ""), status=status)])
