"""Lines of messages.jsonl are parsed as they were written, and the ways in which clients write JSON are recognised."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.lib.kept_values import STYLES, NodeLine, ValueLine, node_id, parsed, style_of, value_id

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
BODY = {"model": "m", "content": "Grüße <b> & \u2028 日本 \U0001f600 \n", "temperature": 0.7, "top_p": 1.0, "n": 1}


@given(JSON)
def test_values(value: object) -> None:
    """A value has the same id and the same text after its line was parsed."""
    text = orjson.dumps(value)
    line = ValueLine(value_id("m", text), text)

    assert line == parsed(line.written())
    assert value_id("m", text) == parsed(line.written()).id


def test_nodes() -> None:
    """The id of a node depends on its message and on all messages before it."""
    first = NodeLine(node_id("", "m1"), "", "m1")
    second = NodeLine(node_id(first.id, "m1"), first.id, "m1")

    assert [first, second] == [parsed(each.written()) for each in (first, second)]
    assert first.id != second.id


@pytest.mark.parametrize("line", [b"", b"{}", b'{"id":"m1"}', b'{"id":"n1","before":"","message":"m1"', b'{"value":1,"id":"m1"}'])
def test_other_lines(line: bytes) -> None:
    """Any other text is refused, also a line that was truncated."""
    with pytest.raises(ValueError, match="not a line of messages"):
        parsed(line)


@pytest.mark.parametrize("style", STYLES)
def test_styles(style: str) -> None:
    """Each style is recognised by the text that it writes, whichever is tried first."""
    text = STYLES[style](BODY)

    assert {text} == {STYLES[style_of(orjson.loads(text), text, first)](BODY) for first in ("", *STYLES)}


@given(JSON, st.sampled_from([*STYLES]))
def test_a_style_writes_the_same_text(value: object, style: str) -> None:
    """What a style has written, it writes again after it was parsed."""
    text = STYLES[style](value)

    assert text == STYLES[style_of(json.loads(text), text, style)](json.loads(text))


def test_a_style_of_nobody() -> None:
    """A text with other spaces has no style."""
    assert "" == style_of({"a": 1}, b'{ "a" : 1 }')
