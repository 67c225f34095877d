"""`agentbench hints`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.exports.nat_trie import read_trie
from pytest_agentbench.metrics.prediction_trie import PredictedNumber
from pytest_agentbench.records import JUDGE, LLMCall, Rollout
from pytest_agentbench.tap.hint_table import read_table
from tests.made_runs import run_directory

Capture = pytest.CaptureFixture[str]


def made(reports: Path, tokens: int | None = 10) -> None:
    """Makes a run with one rollout of the shop: two calls of the agent, and one of a judge."""
    calls = [LLMCall(at, at, at + 1_000_000, dialect="chat", completion_tokens=tokens) for at in (1_000_000, 9_000_000)]
    judge = LLMCall(20_000_000, 20_000_000, 21_000_000, dialect="chat", completion_tokens=tokens, role=JUDGE)
    times: Any = {"started_at": 1.0, "started_ns": 1, "ended_ns": 30_000_000}
    run_directory(reports / "one", Rollout("shop", "s0", "default", 1, "ok", calls=tuple(calls), other_calls=(judge,), **times))


def learn(reports: Path, *more: str, action: str = "learn") -> int:
    return main(["hints", action, "one", "-o", str(reports / "hints.json"), "--reports", str(reports), *more])


def test_learning(tmp_path: Path, capsys: Capture) -> None:
    """The table has the turns of each role. The command says what was learnt, and how to use it."""
    made(tmp_path)

    assert 0 == learn(tmp_path)
    said = capsys.readouterr().out
    assert [("", 1, 1.0, 7.0), ("", 2, 0.0, 7.0), (JUDGE, 1, 0.0, None)] == [
        (row.role, row.turn, row.remaining, row.next_ms) for row in read_table(tmp_path / "hints.json")
    ]
    assert "agent: 2 calls, 2 turns, 2.0 calls per session\njudge: 1 calls, 1 turns, 1.0 calls per session\n" in said
    assert "learnt from 2 sessions of one" in said


@pytest.mark.parametrize(("options", "workflow"), [((), "shop"), (("--workflow", "flow"), "flow")])
def test_trie(tmp_path: Path, capsys: Capture, options: tuple[str, ...], workflow: str) -> None:
    """The trie has a node for the suite, or for the named workflow, and in it one for each role. The command says how to use it."""
    made(tmp_path)

    assert 0 == learn(tmp_path, *options, action="trie")
    root = read_trie(tmp_path / "hints.json")
    first = root.find([workflow, "agent"], 1)
    assert first is not None
    assert PredictedNumber(1, 2.0, 2.0, 2.0, 2.0) == first.remaining_calls
    assert PredictedNumber(1, 7.0, 7.0, 7.0, 7.0) == first.interarrival_ms
    assert {workflow: ["agent", JUDGE]} == {node.name: [*node.children] for node in root.children.values()}
    said = capsys.readouterr().out
    assert f"{workflow}/agent: 2 calls, 2 turns\n{workflow}/judge: 1 calls, 1 turns\n" in said
    assert "nvext_prediction_trie_path" in said


def test_nothing_for_a_trie(tmp_path: Path, capsys: Capture) -> None:
    """A suite that is not in the run is an error, and no file is written."""
    made(tmp_path)

    assert 0 != learn(tmp_path, "--suite", "shoop", action="trie")
    assert "of the suite 'shoop'; its suites: shop" in capsys.readouterr().err
    assert not (tmp_path / "hints.json").exists()


@pytest.mark.parametrize(
    ("tokens", "options", "sentence"),
    [
        (None, (), "no complete rollout with an answered call whose tokens were counted"),
        (10, ("--suite", "shoop"), "of the suite 'shoop'; its suites: shop"),
    ],
)
def test_nothing_to_learn(tmp_path: Path, capsys: Capture, tokens: int | None, options: tuple[str, ...], sentence: str) -> None:
    """A run without counted calls, or without the named suite, is an error, and no file is written."""
    made(tmp_path, tokens)

    assert 0 != learn(tmp_path, *options)
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "hints.json").exists()
