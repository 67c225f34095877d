"""Requests as they are compared: what does not matter, what a redacted text stands for, and what differs."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.recordings.tape import RequestContent, differences, fits
from pytest_agentbench.records import Json
from tests.recordings.made_recordings import asking


def content(body: Json, path: str = "/chat/completions") -> RequestContent:
    return RequestContent.of(path, body)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (asking("Hello", stream=True, stream_options={"include_usage": True}), True),
        (asking("Hello", user="me", nvext={"a": 1}, program_id="p"), True),
        ({"messages": [{"content": "Hello", "role": "user"}], "model": "m"}, True),
        (asking("Hello", temperature=0), False),
        (asking("Hello", model="big"), False),
        (asking("Hello!"), False),
        (asking("Hello", "Hello"), False),
    ],
)
def test_same(other: Json, same: bool) -> None:
    """Streaming, labels, the name of a user and the order of keys do not matter; messages, model and parameters do."""
    assert same == (content(asking("Hello")).digest() == content(other).digest())


def test_path_matters() -> None:
    """The same body at another path, or with another query, is another request."""
    digests = {content(asking("Hello"), path).digest() for path in ("/chat/completions", "/chat/completions?v=1", "/messages")}

    assert 3 == len(digests)


@pytest.mark.parametrize(
    ("recorded", "now", "fitting"),
    [
        ("key [redacted] of me", "key abc of me", True),
        ("key [redacted] of me", "key of me", False),
        ("key [redacted] of me", "key  of me", True),
        ("key [redacted]key", "key", False),
        ("[redacted], [redacted] and [redacted]", "a, b and c and d", True),
        ("[redacted], [redacted] and [redacted]", "a and b, c", False),
        ("[redacted]x[redacted]x", "x", False),
        ("[redacted]", "line\nline", True),
        ({"a": ["x", "[redacted]"]}, {"a": ["x", "y"]}, True),
        ({"a": ["x", "[redacted]"]}, {"a": ["z", "y"]}, False),
        ({"a": "[redacted]"}, {"a": "y", "b": 1}, False),
        (["[redacted]"], ["a", "b"], False),
        ("[redacted]", 5, False),
        (1, 1.0, True),
    ],
)
def test_redacted_texts(recorded: Any, now: Any, fitting: bool) -> None:
    """A redacted text stands for any text, and everything around it has to be equal."""
    assert fitting == fits(recorded, now)


@pytest.mark.parametrize(
    ("recorded", "now", "expected"),
    [
        (asking("Hello", temperature=0.0), asking("Hello", temperature=0.5), ["'temperature' was 0.0, and is now 0.5"]),
        (asking("Hello"), asking("Hello", seed=1), ["'seed' was not sent, and is now 1"]),
        (asking("Hello", seed=1), asking("Hello"), ["'seed' was 1, and is not sent any more"]),
        (asking("Hello"), asking("Hello", "Yes", "And?"), ["it has 1 message, and this one 3"]),
    ],
)
def test_differences(recorded: Json, now: Json, expected: list[str]) -> None:
    """Each difference is a phrase with both values."""
    assert expected == [*differences(content(recorded), content(now))]


def test_first_message_that_differs() -> None:
    """Its number is named, and a long text is shown from shortly before the first difference."""
    [phrase] = differences(content(asking("Hello", "Yes", "x" * 500 + "old")), content(asking("Hello", "Yes", "x" * 500 + "new")))

    assert phrase.startswith("message 3 of 3 was ...")
    assert "old" in phrase
    assert "new" in phrase
    assert len(phrase) < 300


def test_redacted_message_that_differs() -> None:
    """The phrase says that the recorded message was redacted, because the difference may be there."""
    [phrase] = differences(content(asking("[redacted], hello")), content(asking("abc, hi")))

    assert "was redacted in the recording" in phrase
