"""`agentbench export --as mooncake`: dependencies between calls, and common beginnings of prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports import load_writer
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.records import Json, Rollout
from tests.exports.kept_run import asked as asked_for
from tests.exports.kept_run import kept_run
from tests.made_runs import run_directory
from tests.tables.shop import ALL, BOUGHT, LOST, NOON, call, rollout

LONG = "Is there a lamp? " * 100  # Seven blocks of 256 characters.


def trace(folder: Path, *rollouts: Rollout) -> list[Json]:
    """Returns the rows of an exported run."""
    load_writer("mooncake")(ChosenRuns([run_directory(folder / "run", *rollouts)]), folder)
    return [json.loads(line) for line in (folder / "run.jsonl").read_text(encoding="utf-8").splitlines()]


def asked(scenario: str, question: str, *tokens: int, at: int = 0) -> Rollout:
    """Returns a rollout whose calls had prompts with these numbers of tokens, each with two messages more than the one before."""
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
    """The first call of a session has a time. A later one has the call that it waited for, the time of tools, and the remaining delay."""
    first, second, other = trace(tmp_path, *ALL)

    assert ("shop[shop-0]-1-1", "shop[shop-0]-1", 100, 3) == tuple(
        first[name] for name in ("request_id", "session_id", "input_length", "output_length")
    )
    assert 0.0 == first["timestamp"]
    assert {"wait_for": ["shop[shop-0]-1-1"], "delay": 100.0, "tool_wait_ms": 200.0}.items() <= second.items()
    assert 600.0 == pytest.approx(other["timestamp"], abs=0.01)
    assert ("shop[shop-1]-2", False) == (other["session_id"], "wait_for" in other)


def test_overlapping_calls_do_not_wait(tmp_path: Path) -> None:
    """Two overlapping calls each have a time. A later call waits for the one that ended last."""
    both = rollout(calls=(call(0, 10, end=300), call(100, 110, end=200), call(400, 410, end=500)))
    rows = trace(tmp_path, both)

    assert [True, True, False] == ["timestamp" in row for row in rows]
    assert [rows[0]["request_id"]] == rows[2]["wait_for"]


def test_one_number_for_each_block(tmp_path: Path) -> None:
    """There is a number for each block of 64 tokens, including an incomplete last one."""
    rows = trace(tmp_path, asked("shop-0", LONG, 1_000, 1_400), asked("shop-1", "Hello", 65))

    assert [16, 22, 2] == [len(row["hash_ids"]) for row in rows]


def test_prompts_that_begin_alike(tmp_path: Path) -> None:
    """A later call has the earlier call's blocks and more. Another rollout shares the suite's blocks, and those of equal text."""
    first, second, same, other = trace(
        tmp_path, asked("shop-0", LONG, 1_000, 1_400), asked("shop-1", LONG, 1_000), asked("shop-2", "Is there a chair?" * 100, 1_000)
    )
    transcript = 7  # Blocks of the question; the last one is incomplete.

    assert first["hash_ids"][:-1] == second["hash_ids"][:15]
    assert first["hash_ids"] == same["hash_ids"]
    assert first["hash_ids"][: 16 - transcript] == other["hash_ids"][: 16 - transcript]
    assert set() == {*first["hash_ids"][16 - transcript :]} & {*other["hash_ids"][16 - transcript :]}


def test_calls_that_the_transcript_lacks(tmp_path: Path) -> None:
    """If the transcript lacks a call, its prompt shares the blocks that are known, and the rest of its blocks are unique."""
    made = asked("shop-0", LONG, 1_000, 1_400)
    first, second = trace(tmp_path, replace(made, messages=made.messages[:2]))

    assert first["hash_ids"] == second["hash_ids"][:16]
    assert len({*second["hash_ids"]}) == 22


def test_failed_calls_are_left_out(tmp_path: Path) -> None:
    """Failed calls are left out, and a run without a timed call is refused."""
    assert 2 == len(trace(tmp_path, replace(BOUGHT, calls=(*BOUGHT.calls, call(900, end=950, error_kind="cut")))))
    with pytest.raises(ConfigError, match="nothing can be replayed"):
        trace(tmp_path / "other", replace(LOST, started_at=NOON))


def test_blocks_depend_on_all_text_before_them(tmp_path: Path) -> None:
    """Two blocks are the same only if all text before them is the same, as in a prefix cache."""
    ending = "Is there a lamp? " * 60
    one, other = trace(tmp_path, *(asked(f"shop-{letter}", letter * 300 + ending, 320) for letter in "ab"))

    assert 5 == len(one["hash_ids"])
    assert set() == {*one["hash_ids"]} & {*other["hash_ids"]}


def test_a_run_whose_calls_all_failed(tmp_path: Path) -> None:
    """A run whose calls all failed is refused, because there is nothing to replay."""
    failed = replace(call(0, 10, end=50), error_kind="server_error", error="HTTP 500")

    with pytest.raises(ConfigError, match="all calls of its scenarios failed, so nothing can be replayed"):
        trace(tmp_path, rollout(calls=(failed,)))


def kept(
    folder: Path, *conversations: list[list[Json]], tools: Sequence[str] = ("", ""), tokens: Sequence[int] = (1_000, 1_000)
) -> list[Json]:
    """Returns the rows of a run that kept these conversations, the messages of each call, and no transcripts."""
    made = []
    for conversation, name, count in zip(conversations, tools, tokens, strict=True):
        bodies = [{"tools": [{"name": name, "description": "x" * 3_000}] if name else [], "messages": each} for each in conversation]
        calls = [asked_for(number * 100, body) for number, body in enumerate(bodies)]
        made.append([(replace(call, prompt_tokens=count), body, reply) for call, body, reply in calls])
    load_writer("mooncake")(ChosenRuns([kept_run(folder / "run", *made)]), folder)
    return [json.loads(line) for line in (folder / "run.jsonl").read_text(encoding="utf-8").splitlines()]


def test_prompts_that_were_kept(tmp_path: Path) -> None:
    """A run that kept its requests has the blocks of the real prompts, even without transcripts, or of an agent that rewrites history."""
    long, other = ({"role": "user", "content": question * 100} for question in ("Is there a lamp? ", "Is there a chair?"))
    first, second, rewritten = kept(tmp_path, [[long], [long, other]], [[other]])

    assert [*range(16)] == first["hash_ids"]
    assert first["hash_ids"][:15] == second["hash_ids"][:15]
    assert set() == {*first["hash_ids"], *second["hash_ids"]} & {*rewritten["hash_ids"]}


def test_tools_are_part_of_kept_prompts(tmp_path: Path) -> None:
    """Prompts with other tools share no block, although their messages are equal."""
    first, other = kept(tmp_path, [[{"role": "user", "content": LONG}]], [[{"role": "user", "content": LONG}]], tools=("lamp", "chair"))

    assert set() == {*first["hash_ids"]} & {*other["hash_ids"]}


def test_prompts_of_other_lengths_share_their_tools(tmp_path: Path) -> None:
    """Blocks begin at the same places in all prompts, whatever their lengths: prompts with equal tools share the blocks of these."""
    questions = ([[{"role": "user", "content": text}]] for text in ("Is there a lamp?", "Is there a chair? " * 40))
    first, other = kept(tmp_path, *questions, tools=("lamp", "lamp"), tokens=(1_000, 1_400))

    assert (16, 22) == (len(first["hash_ids"]), len(other["hash_ids"]))
    assert first["hash_ids"][:15] == other["hash_ids"][:15]
    assert set() == {*first["hash_ids"][15:]} & {*other["hash_ids"][15:]}
