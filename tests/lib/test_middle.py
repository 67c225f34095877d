"""Texts without their middles."""

from __future__ import annotations

from pytest_agentbench.lib.middle import without_middle


def test_without_middle() -> None:
    """A text that is too long keeps as many characters as it may have, and a line says how many it lost."""
    assert "abcdef" == without_middle("abcdef", 6)
    assert "abc\n[4 characters left out]\nhi" == without_middle("abcdefghi", 5)
    assert "a\n[8 characters left out]\n" == without_middle("abcdefghi", 1)
