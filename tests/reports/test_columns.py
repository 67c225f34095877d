"""Texts and tables by their width on a terminal."""

from __future__ import annotations

import pytest

from pytest_agentbench.reports.columns import columns, cut, fold


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("日本", 4), ("e\u0301", 1), ("", 0)], ids=["plain", "wide", "accent", "nothing"])
def test_columns(text: str, width: int) -> None:
    """A wide character takes two columns, an accent none."""
    assert width == columns(text)


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [("a lamp", 6, "a lamp"), ("a lamp!", 6, "a l..."), ("日本日本", 7, "日本..."), ("abcdef", 3, "..."), ("abcdef", 0, "")],
)
def test_cutting(text: str, width: int, short: str) -> None:
    """A truncated text ends in dots, and is never wider than the limit."""
    assert short == cut(text, width)
    assert columns(short) <= width


def test_folding() -> None:
    """Lines break at spaces. A longer word stays whole, so that it can be copied."""
    assert ["a lamp and", "a-very-long-word", "or two"] == [*fold("a lamp and a-very-long-word or two", 10)]
    assert [""] == [*fold("", 10)]
