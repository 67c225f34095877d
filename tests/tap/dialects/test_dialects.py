"""The table of APIs."""

from __future__ import annotations

from pytest_agentbench.tap.dialects import DIALECTS
from pytest_agentbench.tap.dialects.reader import AnswerReader
from tests.tap.dialects.answer_events import fault, read, tokens


def test_the_table() -> None:
    """Each API has a route and a name, and each answer gets its own reader."""
    assert {
        "/chat/completions": "chat",
        "/completions": "completions",
        "/responses": "responses",
        "/messages": "messages",
    } == {route: dialect.name for route, dialect in DIALECTS.items()}
    for dialect in DIALECTS.values():
        assert "bad_json" == read(dialect, b"{").error_kind
        assert ("empty", "the stream ended without a single event") == fault(read(dialect))


def test_the_base_reader() -> None:
    """The base reader has no chunks, counts or fault."""
    reading = AnswerReader()

    assert ((None, None, None, "none"), (None, "")) == (tokens(reading), fault(reading))
    assert ([], None, False) == (reading.chunks, reading.finish_reason, reading.done)


def test_a_long_answer_in_small_pieces() -> None:
    """Earlier text is not copied for each new piece: 100,000 characters are read one by one in time."""
    chunk = b'{"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": null}]}'
    last = b'{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}'

    answer = read(DIALECTS["/chat/completions"], *[chunk] * 100_000, last)

    assert 100_000 == answer.completion_tokens
    assert b"x" * 100_000 in answer.assemble()
