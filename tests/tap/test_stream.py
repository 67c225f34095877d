"""Server-sent events, read from stamped reads."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from pytest_agentbench.tap.stream import Event, EventReader, Read

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
mixed = st.lists(st.tuples(st.sampled_from(LINES), line_ends), max_size=24).map(lambda lines: "".join(line + end for line, end in lines))
uniform = st.tuples(st.lists(st.sampled_from(LINES), max_size=24), line_ends).map(lambda text: "".join(line + text[1] for line in text[0]))
texts = mixed | uniform | st.text("dat: \n\r\ufeffé", max_size=40)
some_cuts = st.lists(st.integers(0, 1000), max_size=12)


def reference(text: str) -> list[tuple[int, str, str]]:
    """(bytes up to its end, name, data) of the events of a text: the standard's rules as it writes them, one character after the other."""
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
    """(name, value); the name of a comment is empty."""
    if ":" not in line:
        return line, ""
    colon = line.index(":")
    return line[:colon], line[colon + 1 :].removeprefix(" ")


def cut(text: bytes, cuts: list[int]) -> list[Read]:
    """The text in pieces, each with its own number as its stamp."""
    places = [0, *sorted({place % (len(text) + 1) for place in cuts}), len(text)]
    return [Read(stamp, stamp + 100, text[start:end]) for stamp, (start, end) in enumerate(pairwise(places))]


def events(reads: list[Read], batches: list[int]) -> list[Event]:
    """The events of reads that are fed in batches."""
    reader = EventReader()
    places = [0, *sorted({place % (len(reads) + 1) for place in batches}), len(reads)]
    return [event for start, end in pairwise(places) for event in reader.feed(reads[start:end])]


@given(text=texts, bom=st.booleans(), cuts=some_cuts, batches=some_cuts)
@example(text="data: x\n\n" * 3, bom=False, cuts=[9, 18], batches=[1])
@example(text="event: a\n\ndata: x\n\nevent: a\ndata: x\n\n", bom=False, cuts=[10, 19, 28], batches=[])
@example(text="\rdata: x\n\n\ndata: x\n\n", bom=False, cuts=[1, 10, 11], batches=[])
def test_any_text_cut_anywhere(text: str, bom: bool, cuts: list[int], batches: list[int]) -> None:
    """Names and data are those of the standard, and each event has the stamp of the read with its last byte.

    That is so wherever reads and batches of reads end: inside a CRLF, a character, a field or a byte order mark.
    """
    whole = "\ufeff" * bom + text
    reads = cut(whole.encode(), cuts)

    found = events(reads, batches)

    expected = reference(whole)
    assert [(name, data) for _, name, data in expected] == [(event.name, event.data.decode()) for event in found]
    sizes = [sum(len(data) for _, _, data in reads[:place]) for place in range(1, len(reads) + 1)]
    stamps = [next(place for place, size in enumerate(sizes) if end <= size) for end, _, _ in expected]
    assert [(stamp, stamp + 100) for stamp in stamps] == [(event.at_ns, event.lag_ns) for event in found]
    assert [stamp not in stamps[place + 1 :] for place, stamp in enumerate(stamps)] == [event.own_stamp for event in found]


def test_no_event_is_held_back() -> None:
    """A CR at the end of a read ends the event at once; an LF that comes later belongs to it and is no line of its own."""
    reader = EventReader()

    assert [Event(1, None, True, "message", b"a")] == reader.feed([Read(1, None, b"data: a\r\n\r")])
    assert [] == reader.feed([Read(2, None, b"\n")])
    assert [Event(3, 7, True, "x", b"b")] == reader.feed([Read(3, 7, b"event: x\rdata: b\r\r")])


def test_an_event_that_is_not_finished_is_none() -> None:
    """What stands behind the last blank line has not been said."""
    found = events([Read(1, 5, b"data: a\n\nda"), Read(2, None, b"ta: b\n"), Read(3, None, b"data: c")], [])

    assert [(1, 5, True, "message", b"a")] == found


def test_bytes_that_are_no_text() -> None:
    """They are the business of whoever reads the data; a name is made readable."""
    assert [(1, None, True, "\ufffd", b"\xff\x00")] == events([Read(1, None, b"event: \xff\ndata: \xff\x00\n\n")], [])


def test_no_reads() -> None:
    """Nothing has no events."""
    assert [] == events([], [])
    assert [] == events([Read(1, None, b"")], [])


def test_a_long_event_in_small_pieces() -> None:
    """What has come of an event is not looked at again for every byte that follows: 4 MB in reads of 16 bytes, and in lines of 16."""
    reads = [Read(0, None, b"x" * 16)] * 250_000

    (long,) = events([Read(0, None, b"data: "), *reads, Read(1, None, b"\n\n")], [])
    (wide,) = events([*([Read(0, None, b"data: 456789012\n")] * 250_000), Read(1, None, b"\n")], [])

    assert (1, 4_000_000) == (long.at_ns, len(long.data))
    assert (1, 2_500_000 - 1) == (wide.at_ns, len(wide.data))
