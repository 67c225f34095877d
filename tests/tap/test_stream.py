"""Server-sent events, read from stamped reads."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.tap.stream import Read, events

LINES = [
    "data: x",
    "data:x",
    "data:  x",
    "data",
    "data:",
    "data: a:b",
    "data: ä€😀\x85\u2028\x0b",
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

texts = st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(["\n", "\r", "\r\n"])), max_size=24).map(
    lambda lines: "".join(line + end for line, end in lines)
)


def reference(text: str) -> list[tuple[str, str]]:
    """(name, data) of the events of a text: the rules of the standard as it writes them down, one character after the other."""
    found, name, data, line = [], "", "", ""
    text = text.removeprefix("\ufeff")
    for place, character in enumerate(text):
        if character not in "\r\n":
            line += character
            continue
        if character == "\n" and place and text[place - 1] == "\r":
            continue  # the second half of a CRLF
        if line == "":
            if data:
                found.append((name or "message", data.removesuffix("\n")))
            name = data = ""
        field, colon, value = line.partition(":")
        value = value[1:] if colon and value.startswith(" ") else value
        if field == "event":
            name = value
        elif field == "data":
            data += value + "\n"
        line = ""
    return found


def cut(text: bytes, cuts: list[int]) -> list[Read]:
    places = [0, *sorted({place % (len(text) + 1) for place in cuts}), len(text)]
    return [(stamp, text[start:end]) for stamp, (start, end) in enumerate(pairwise(places))]


@given(text=texts, bom=st.booleans(), cuts=st.lists(st.integers(0, 1000), max_size=12))
def test_any_text_cut_anywhere(text: str, bom: bool, cuts: list[int]) -> None:
    """Names and data are those of the standard, wherever the reads end: inside a CRLF, a character or a byte order mark."""
    whole = "\ufeff" * bom + text

    found = events(cut(whole.encode(), cuts))

    assert reference(whole) == [(event.name, event.data.decode()) for event in found]


@given(text=texts, cuts=st.lists(st.integers(0, 1000), max_size=12))
def test_stamps_are_those_of_the_last_byte(text: str, cuts: list[int]) -> None:
    """An event came when the fewest reads that hold it were there, and shares its stamp with a later one of the same read."""
    reads = cut(text.encode(), cuts)

    found = events(reads)

    stamps = [event.at_ns for event in found]
    assert sorted(stamps) == stamps
    assert [stamp not in stamps[place + 1 :] for place, stamp in enumerate(stamps)] == [event.own_stamp for event in found]
    if b"\r" not in text.encode():  # a CR that ends a read ends a line only when it is known that no LF follows
        assert [sum(stamp <= last for stamp in stamps) for last, _ in reads] == [len(events(reads[: last + 1])) for last, _ in reads]


def test_an_event_that_is_not_finished_is_none() -> None:
    """What stands behind the last blank line has not been said."""
    found = events([(1, b"data: a\n\nda"), (2, b"ta: b\n"), (3, b"data: c")])

    assert [(1, True, "message", b"a")] == found


def test_no_reads() -> None:
    """Nothing has no events."""
    assert [] == events([])
    assert [] == events([(1, b"")])
