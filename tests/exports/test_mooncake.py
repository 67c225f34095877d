"""`agentbench export --as mooncake`: who waited for whom, and which prompts begin alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports import load_writer
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.records import Json, Rollout
from tests.made_runs import run_directory
from tests.tables.shop import ALL, BOUGHT, LOST, NOON, call, rollout

LONG = "Is there a lamp? " * 100  # seven blocks of 256 characters


def trace(folder: Path, *rollouts: Rollout) -> list[Json]:
    """The rows of a run."""
    load_writer("mooncake")(ChosenRuns([run_directory(folder / "run", *rollouts)]), folder)
    return [json.loads(line) for line in (folder / "run.jsonl").read_text(encoding="utf-8").splitlines()]


def asked(scenario: str, question: str, *tokens: int, at: int = 0) -> Rollout:
    """A rollout whose calls had prompts of so many tokens, each a message longer."""
    calls = tuple(
        replace(call(at + each * 100, at + each * 100 + 10, end=at + each * 100 + 50), prompt_tokens=size)
        for each, size in enumerate(tokens)
    )
    more = [
        message
        for each in range(len(tokens))
        for message in ({"role": "assistant", "content": f"{each} " * 300}, {"role": "user", "content": "So?"})
    ]
    return rollout(scenario, at, at + 1_000, calls=calls, messages=({"role": "user", "content": question}, *more))


def test_calls_wait_for_the_one_before(tmp_path: Path) -> None:
    """A session's first call has a time, a later one says after which call it came, how long a tool ran, and how long nothing did."""
    first, second, other = trace(tmp_path, *ALL)

    assert ("shop[shop-0]-1-1", "shop[shop-0]-1", 100, 3) == tuple(
        first[name] for name in ("request_id", "session_id", "input_length", "output_length")
    )
    assert 0.0 == first["timestamp"]
    assert {"wait_for": ["shop[shop-0]-1-1"], "delay": 100.0, "tool_wait_ms": 200.0}.items() <= second.items()
    assert 600.0 == pytest.approx(other["timestamp"], abs=0.01)
    assert ("shop[shop-1]-2", False) == (other["session_id"], "wait_for" in other)


def test_calls_at_once_wait_for_none_of_each_other(tmp_path: Path) -> None:
    """Of two calls that overlap both have a time; one that came after both waits for the last that ended."""
    both = rollout(calls=(call(0, 10, end=300), call(100, 110, end=200), call(400, 410, end=500)))
    rows = trace(tmp_path, both)

    assert [True, True, False] == ["timestamp" in row for row in rows]
    assert [rows[0]["request_id"]] == rows[2]["wait_for"]


def test_blocks_are_as_many_as_the_prompt_has(tmp_path: Path) -> None:
    """There is a number for each block of 64 tokens begun."""
    rows = trace(tmp_path, asked("shop-0", LONG, 1_000, 1_400), asked("shop-1", "Hello", 65))

    assert [16, 22, 2] == [len(row["hash_ids"]) for row in rows]


def test_prompts_that_begin_alike(tmp_path: Path) -> None:
    """A later call has the blocks of the earlier one and more; another rollout has those of the suite, and those of equal words."""
    first, second, same, other = trace(
        tmp_path, asked("shop-0", LONG, 1_000, 1_400), asked("shop-1", LONG, 1_000), asked("shop-2", "Is there a chair?" * 100, 1_000)
    )
    transcript = 7  # blocks of the question; the last of them is not full

    assert first["hash_ids"][:-1] == second["hash_ids"][:15]
    assert first["hash_ids"] == same["hash_ids"]
    assert first["hash_ids"][: 16 - transcript] == other["hash_ids"][: 16 - transcript]
    assert set() == {*first["hash_ids"][16 - transcript :]} & {*other["hash_ids"][16 - transcript :]}


def test_what_nobody_can_know(tmp_path: Path) -> None:
    """Of a call that the transcript does not tell of only the beginning is shared; the rest is its own."""
    made = asked("shop-0", LONG, 1_000, 1_400)
    first, second = trace(tmp_path, replace(made, messages=made.messages[:2]))

    assert first["hash_ids"] == second["hash_ids"][:16]
    assert len({*second["hash_ids"]}) == 22


def test_failed_calls_are_left_out(tmp_path: Path) -> None:
    """What failed is in no trace, and a run without a timed call is refused."""
    assert 2 == len(trace(tmp_path, replace(BOUGHT, calls=(*BOUGHT.calls, call(900, end=950, error_kind="cut")))))
    with pytest.raises(ConfigError, match="nothing can be replayed"):
        trace(tmp_path / "other", replace(LOST, started_at=NOON))


def test_what_stands_behind_other_words_is_another_block(tmp_path: Path) -> None:
    """A block is the same where all up to there is: equal words behind a different beginning are cached for neither."""
    ending = "Is there a lamp? " * 60
    one, other = trace(tmp_path, *(asked(f"shop-{letter}", letter * 300 + ending, 320) for letter in "ab"))

    assert 5 == len(one["hash_ids"])
    assert set() == {*one["hash_ids"]} & {*other["hash_ids"]}


def test_a_run_whose_calls_all_failed(tmp_path: Path) -> None:
    """There is nothing to replay, and a trace without a row is no answer."""
    failed = replace(call(0, 10, end=50), error_kind="server_error", error="HTTP 500")

    with pytest.raises(ConfigError, match="all calls of its scenarios failed, so nothing can be replayed"):
        trace(tmp_path, rollout(calls=(failed,)))
