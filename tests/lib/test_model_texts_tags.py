"""Extraction of texts between tags."""

from __future__ import annotations

import pytest

from pytest_agentbench.lib.model_texts import tagged


@pytest.mark.parametrize(
    ("text", "found"),
    [("a<x>b</x>c<X>d\n</X>", ["b", "d\n"]), ("<x><x>a</x></x>", ["<x>a"]), ("</x><x>", []), ("<x>" * 100_000, [])],
)
def test_texts_between_tags(text: str, found: list[str]) -> None:
    """A text extends from the first opening tag to the next closing one. A tag that is not closed gives no text."""
    assert found == tagged(text, "x")
