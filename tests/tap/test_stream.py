"""Server-sent events, parsed from reads with timestamps."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_agentbench.tap.stream import Event, EventReader, NetworkRead

LINES = [
    "data: x",
    "data:x",
    "data:  x",
    "data",
    "data:",
    "data: a:b",
    "data: ä€😀\x85\u2028\x0b\x00",
    'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}}]}',
    "event: error",
    "event",
    ": comment",
    ":",
    "id: 1",
    "retry: 5",
    "nonsense",
    " data: x",
    "datax: y",
    "\ufeffdata: x",
    "",
    "",
    "",
]

line_ends = st.sampled_from(["\n", "\r", "\r\n"])
blocks = st.lists(st.sampled_from(LINES), min_size=1, max_size=3).map(lambda lines: [*lines, ""])
all_lines = st.lists(blocks, max_size=8).map(lambda blocks: [line for block in blocks for line in block])


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Streams of events, with one kind of line ends, with several kinds, or of arbitrary characters with a meaning."""
    lines, end = draw(all_lines), draw(line_ends | st.none())
    said = "".join(line + (draw(line_ends) if end is None else end) for line in lines)
    return draw(st.sampled_from(["", "\ufeff"])) + draw(st.just(said) | st.text("data:: \n\n\r\r\ufeffé", max_size=40))


@st.composite
def all_reads(draw: st.DrawFn) -> tuple[str, list[NetworkRead]]:
    """A stream and its reads: one for each byte, one for each blank line, or split anywhere."""
    text = draw(texts())
    data = text.encode()
    behind_blanks = [match.end() for match in re.finditer(rb"\n\n|\r\r|\r\n\r\n?", data)]
    anywhere = st.lists(st.integers(0, len(data)), max_size=12)
    return text, cut(data, draw(anywhere | st.just(range(len(data))) | st.just(behind_blanks)))


def reference(text: str) -> list[tuple[int, str, str]]:
    """Returns (end in bytes, name, data) of each event, by a literal implementation of the standard, character by character."""
    found, name, data, line, end = [], "", "", "", 0
    for place, character in enumerate(text):
        end += len(character.encode())
        if place == 0 and character == "\ufeff":
            continue
        if character not in "\r\n":
            line += character
            continue
        if character == "\n" and place and text[place - 1] == "\r":
            continue  # the second half of a CRLF
        if line == "":
            if data:
                found.append((end, name or "message", data.removesuffix("\n")))
            name = data = ""
        field, value = field_of(line)
        if field == "event":
            name = value
        elif field == "data":
            data += value + "\n"
        line = ""
    return found


def field_of(line: str) -> tuple[str, str]:
    """Returns (name, value) of a line. The name of a comment is empty."""
    if ":" not in line:
        return line, ""
    colon = line.index(":")
    return line[:colon], line[colon + 1 :].removeprefix(" ")


def cut(text: bytes, cuts: Iterable[int]) -> list[NetworkRead]:
    """Returns the text in pieces, each with its number as its timestamp."""
    places = [0, *sorted(cuts), len(text)]
    return [NetworkRead(stamp, stamp + 100, text[start:end]) for stamp, (start, end) in enumerate(pairwise(places))]


def events(reads: list[NetworkRead], batches: list[int]) -> list[Event]:
    """Returns the events of reads that are fed in batches."""
    reader = EventReader()
    places = [0, *sorted(min(place, len(reads)) for place in batches), len(reads)]
    return [event for start, end in pairwise(places) for event in reader.feed(reads[start:end])]


@settings(max_examples=300)
@given(stream=all_reads(), batches=st.lists(st.integers(0, 20), max_size=4))
@example(stream=("data: x\r\n\n", cut(b"data: x\r\n\n", [8, 9])), batches=[])
@example(stream=("data: x\n\ndata: x\rdata: y\n\n", cut(b"data: x\n\ndata: x\rdata: y\n\n", [9])), batches=[])
@example(
    stream=("event: a\n\ndata: x\n\nevent: a\ndata: x\n\n", cut(b"event: a\n\ndata: x\n\nevent: a\ndata: x\n\n", [10, 19, 28])), batches=[]
)
def test_any_text_cut_anywhere(stream: tuple[str, list[NetworkRead]], batches: list[int]) -> None:
    """Names and data are as in the standard, and each event has the timestamp of the read with its last byte.

    Reads and batches may end anywhere, even in a CRLF, a character, a field or a byte order mark.
    """
    text, reads = stream

    found = events(reads, batches)

    expected = reference(text)
    assert [(name, data) for _, name, data in expected] == [(event.name, event.data.decode()) for event in found]
    sizes = [sum(len(data) for _, _, data in reads[:place]) for place in range(1, len(reads) + 1)]
    stamps = [next(place for place, size in enumerate(sizes) if end <= size) for end, _, _ in expected]
    assert [(stamp, stamp + 100) for stamp in stamps] == [(event.at_ns, event.lag_ns) for event in found]
    assert [stamp not in stamps[place + 1 :] for place, stamp in enumerate(stamps)] == [event.own_stamp for event in found]


def test_a_byte_order_mark_is_one_at_the_start_only() -> None:
    """A byte order mark elsewhere is part of a field name, which is then unknown."""
    reads = [NetworkRead(place, None, data) for place, data in enumerate((b"data: x\n\n", b"\xef\xbb\xbfdata: y\n\n", b"data: z\n\n"))]

    assert [b"x", b"z"] == [event.data for event in events(reads, [])]


def test_no_event_is_held_back() -> None:
    """A CR at the end of a read ends the event at once. An LF that follows later belongs to it, and is not another line end."""
    reader = EventReader()

    assert [Event(1, None, True, "message", b"a")] == reader.feed([NetworkRead(1, None, b"data: a\r\n\r")])
    assert [] == reader.feed([NetworkRead(2, None, b"\n")])
    assert [Event(3, 7, True, "x", b"b")] == reader.feed([NetworkRead(3, 7, b"event: x\rdata: b\r\r")])


def test_an_incomplete_event_is_ignored() -> None:
    """Data after the last blank line is not an event."""
    found = events([NetworkRead(1, 5, b"data: a\n\nda"), NetworkRead(2, None, b"ta: b\n"), NetworkRead(3, None, b"data: c")], [])

    assert [(1, 5, True, "message", b"a")] == found


def test_invalid_utf_8() -> None:
    """Invalid UTF-8 in the data is passed on as bytes. In a name it is replaced."""
    assert [(1, None, True, "\ufffd", b"\xff\x00")] == events([NetworkRead(1, None, b"event: \xff\ndata: \xff\x00\n\n")], [])


def test_no_reads() -> None:
    """Without reads there are no events."""
    assert [] == events([], [])
    assert [] == events([NetworkRead(1, None, b"")], [])


def test_a_long_event_in_small_pieces() -> None:
    """Earlier data of an event is not scanned again for each read: 4 MB in reads of 16 bytes, and in lines of 16."""
    reads = [NetworkRead(0, None, b"x" * 16)] * 250_000

    (long,) = events([NetworkRead(0, None, b"data: "), *reads, NetworkRead(1, None, b"\n\n")], [])
    (wide,) = events([*([NetworkRead(0, None, b"data: 456789012\n")] * 250_000), NetworkRead(1, None, b"\n")], [])

    assert (1, 4_000_000) == (long.at_ns, len(long.data))
    assert (1, 2_500_000 - 1) == (wide.at_ns, len(wide.data))
