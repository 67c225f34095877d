"""What a script's faults do to an answer that is otherwise right."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from pytest_agentbench.engine.answer import DONE
from pytest_agentbench.engine.pace import TimedBytes
from pytest_agentbench.engine.protocol import Delivery

BROKEN_EVENT = b'data: {"id": "chatcmpl-broken", "choices": [{"delta": {"content": "\n\n'
ERROR = orjson.dumps(
    {"error": {"message": "the script ends this answer with an error", "type": "server_error", "param": None, "code": None}}
)


def spoil_stream(events: Sequence[TimedBytes], delivery: Delivery) -> list[TimedBytes]:
    """The events of a streamed answer, with the faults of `delivery`; `cut_after` leaves only what is sent before the cut."""
    spoilt = list(events)
    if delivery.malformed_json_after is not None:
        place = _place(spoilt, delivery.malformed_json_after)
        spoilt.insert(place, TimedBytes(BROKEN_EVENT, spoilt[place - 1].due))
    if delivery.error_event_after is not None:
        place = _place(spoilt, delivery.error_event_after)
        due = spoilt[place - 1].due
        spoilt[place:] = [TimedBytes(b"data: %b\n\n" % ERROR, due), TimedBytes(DONE, due)]
    if delivery.cut_after is not None:
        del spoilt[_place(spoilt, delivery.cut_after) :]
    return [] if delivery.empty else spoilt


def spoil_body(body: bytes, delivery: Delivery) -> bytes:
    """A whole answer's body, with the faults of `delivery`: there is only one place for each of them."""
    if delivery.empty:
        return b""
    if delivery.error_event_after is not None:
        return ERROR
    return body if delivery.malformed_json_after is None else body[: len(body) // 2]


def split_characters(data: bytes) -> list[bytes]:
    """`data` in parts that end behind the first byte of each multi-byte character; one part when there is none."""
    cuts = [index + 1 for index, byte in enumerate(data) if byte >= 0xC0]  # the first byte of a character of several
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _place(events: Sequence[TimedBytes], tokens: int) -> int:
    """Index behind the event with token number `tokens`, or behind the last token of a shorter answer; 0 is behind the role."""
    sent, place = 0, 1
    for index, event in enumerate(events[1:], start=1):
        if sent >= tokens:
            break
        if event.tokens:
            sent, place = sent + event.tokens, index + 1
    return place
