"""Faults of answers, tested without a network."""

from __future__ import annotations

from pytest_agentbench.engine.answer import BROKEN_EVENT, TimedBytes, add_body_faults, add_stream_faults, split_characters
from pytest_agentbench.engine.chat import Delivery

ROLE, ONE, TWO, END = TimedBytes(b"role", 1), TimedBytes(b"one", 1, 2), TimedBytes(b"two", 2, 2), TimedBytes(b"end", 2)
STREAM = [ROLE, ONE, TWO, END]


def test_a_fault_follows_the_chunk_with_its_token() -> None:
    """A fault after 0 tokens follows the role, one inside a chunk follows that chunk, and one beyond the last token precedes the finish."""
    cuts = [add_stream_faults(STREAM, Delivery(cut_after=tokens)) for tokens in (0, 1, 2, 3, 99)]

    assert [[ROLE], [ROLE, ONE], [ROLE, ONE], [ROLE, ONE, TWO], [ROLE, ONE, TWO]] == cuts


def test_a_broken_event_has_the_time_of_the_one_before() -> None:
    """A broken event is sent at the same time as the token before it."""
    assert [ROLE, ONE, TimedBytes(BROKEN_EVENT, 1), TWO, END] == add_stream_faults(STREAM, Delivery(malformed_json_after=2))


def test_no_fault_changes_nothing() -> None:
    """A delivery without faults leaves streams and bodies unchanged."""
    assert (STREAM, b"{}") == (add_stream_faults(STREAM, Delivery()), add_body_faults(b"{}", Delivery()))


def test_characters_are_split_after_their_first_byte() -> None:
    """Each multi-byte character is split once, and the joined parts are the original bytes."""
    assert [b"a\xc3", b"\xa9b\xf0", b"\x9f\x99\x82c"] == split_characters("aéb🙂c".encode())
    assert [b"plain"] == split_characters(b"plain")
