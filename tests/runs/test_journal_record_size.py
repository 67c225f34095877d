"""If a record is too large, its texts are truncated, and its reason names the fields."""

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
    """A record below the limit is written unchanged."""
    assert (SMALL, record_line(SMALL)) == limit_size(SMALL, SIZES)


def test_long_texts_are_cut() -> None:
    """Texts are truncated to the largest size with which the record fits. The status becomes `limit`, and scores are kept."""
    large = replace(SMALL, messages=messages(2, 3_000_000), log="short")
    small, line = limit_size(large, SIZES)
    size = len(record_line(large))

    assert ("limit", {"tsq": 0.5}, "done", "short") == (small.status, small.scores, small.answer, small.log)
    assert f"record: {size:,} bytes, at most 1,000,000 are kept; raise --agentbench-size-record; cut: messages" == small.reason
    assert ["[2,738,112 bytes left out]"] * 2 == [each["content"].split("\n")[1] for each in small.messages]
    assert line == record_line(small)
    assert len(line) < 530_000


def test_many_texts_are_cut_shorter() -> None:
    """If the record does not fit with texts of 256 KiB, texts are truncated to 16 KiB or 1 KiB."""
    assert [16_128 + 26, 768 + 26] == [
        len(limit_size(replace(SMALL, messages=messages(count, 100_000)), SIZES)[0].messages[0]["content"]) + 1 for count in (50, 500)
    ]


def test_texts_of_tools_and_drafts() -> None:
    """Arguments of tools are truncated too, but numbers in them are kept."""
    call = ToolCall("find", {"item": "x" * 2_000_000, "count": 3}, 1, refusal="no")
    small, _ = limit_size(replace(SMALL, tool_calls=(call,), final_state={"seen": ["y" * 2_000_000, 7]}), SIZES)

    assert (3, "no") == (small.tool_calls[0].arguments["count"], small.tool_calls[0].refusal)
    assert small.final_state is not None
    assert 7 == small.final_state["seen"][1]
    assert small.reason.endswith("cut: tool_calls, final_state")


def test_countless_short_texts_are_dropped() -> None:
    """If there are too many messages to truncate, all messages are dropped."""
    small, line = limit_size(replace(SMALL, messages=messages(50_000, 10), log="kept"), SIZES)

    assert ((), "kept") == (small.messages, small.log)
    assert small.reason.endswith("cut: messages")
    assert len(line) < 2000


@pytest.mark.parametrize("status", ["agent_error", "infra_error", "cancelled"])
def test_another_status_is_kept(status: str) -> None:
    """The status of an error does not change, and its reason comes first."""
    small, _ = limit_size(replace(SMALL, status=status, reason="it broke", log="x" * 2_000_000), SIZES)

    assert status == small.status
    assert small.reason.startswith("it broke; record: ")


def test_llm_calls_are_kept() -> None:
    """LLM calls are never shortened, because timings need them. A record that they fill is written unchanged."""
    call = LLMCall(1, 1, 9, chunks=tuple(Chunk(number, "text") for number in range(50_000)))
    large = replace(SMALL, calls=(call,))

    assert (large, record_line(large)) == limit_size(large, SIZES)
    assert len(record_line(large)) > 1_000_000
