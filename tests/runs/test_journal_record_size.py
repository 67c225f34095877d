"""The texts of a record that is too large are cut, and its reason says which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_agentbench.lib.foreign import Sizes
from pytest_agentbench.records import Chunk, LLMCall, Rollout, Score, ToolCall
from pytest_agentbench.runs.journal import limit_size, record_line

SIZES = Sizes(record=1_000_000)
SMALL = Rollout("suite", "scenario", "default", 1, status="ok", answer="done", scores={"tsq": Score(0.5)})


def messages(count: int, size: int) -> tuple[dict[str, str], ...]:
    return tuple({"role": "user", "content": "m" * size} for _ in range(count))


def test_a_small_record_is_unchanged() -> None:
    """A record below its size is the one that is written."""
    assert (SMALL, record_line(SMALL)) == limit_size(SMALL, SIZES)


def test_long_texts_are_cut() -> None:
    """Each text is cut to the largest size with which the record fits. Its status is `limit`, and scores are kept."""
    large = replace(SMALL, messages=messages(2, 3_000_000), log="short")
    small, line = limit_size(large, SIZES)
    size = len(record_line(large))

    assert ("limit", {"tsq": 0.5}, "done", "short") == (small.status, small.scores, small.answer, small.log)
    assert f"record: {size:,} bytes, at most 1,000,000 are kept; raise --agentbench-size-record; cut: messages" == small.reason
    assert ["[2,738,112 bytes left out]"] * 2 == [each["content"].split("\n")[1] for each in small.messages]
    assert line == record_line(small)
    assert len(line) < 530_000


def test_many_texts_are_cut_shorter() -> None:
    """If the record does not fit with texts of 256 KiB, it may with texts of 16 KiB or of 1 KiB."""
    assert [16_128 + 26, 768 + 26] == [
        len(limit_size(replace(SMALL, messages=messages(count, 100_000)), SIZES)[0].messages[0]["content"]) + 1 for count in (50, 500)
    ]


def test_texts_of_tools_and_drafts() -> None:
    """Arguments of tools are texts, too; numbers in them are kept."""
    call = ToolCall("find", {"item": "x" * 2_000_000, "count": 3}, 1, refusal="no")
    small, _ = limit_size(replace(SMALL, tool_calls=(call,), final_state={"seen": ["y" * 2_000_000, 7]}), SIZES)

    assert (3, "no") == (small.tool_calls[0].arguments["count"], small.tool_calls[0].refusal)
    assert small.final_state is not None
    assert 7 == small.final_state["seen"][1]
    assert small.reason.endswith("cut: tool_calls, final_state")


def test_countless_short_texts_are_dropped() -> None:
    """Messages that are too many to be cut are left out as a whole."""
    small, line = limit_size(replace(SMALL, messages=messages(50_000, 10), log="kept"), SIZES)

    assert ((), "kept") == (small.messages, small.log)
    assert small.reason.endswith("cut: messages")
    assert len(line) < 2000


@pytest.mark.parametrize("status", ["agent_error", "infra_error", "cancelled"])
def test_another_status_is_kept(status: str) -> None:
    """An error remains an error, and its reason stays in front."""
    small, _ = limit_size(replace(SMALL, status=status, reason="it broke", log="x" * 2_000_000), SIZES)

    assert status == small.status
    assert small.reason.startswith("it broke; record: ")


def test_llm_calls_are_kept() -> None:
    """Timings are computed from LLM calls, so a record that they fill is written as it is, and its status is unchanged."""
    call = LLMCall(1, 1, 9, chunks=tuple(Chunk(number, "text") for number in range(50_000)))
    large = replace(SMALL, calls=(call,))

    assert (large, record_line(large)) == limit_size(large, SIZES)
    assert len(record_line(large)) > 1_000_000
