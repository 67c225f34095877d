"""Truncated secrets are not written to files, either."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_agentbench.lib.cut_marks import beginning, ending
from pytest_agentbench.lib.foreign import SLACK, cut
from pytest_agentbench.lib.redact import MARK, Redactor

CUTTERS: Mapping[str, Callable[[str, int], str]] = {
    "the beginning": beginning,
    "the beginning of bytes": lambda text, most: beginning(text.encode(), most),
    "the end": ending,
    "to a size": lambda text, most: cut(text, 2 * most + SLACK),
    "collapsed": lambda text, most: " ".join(cut(text, 2 * most + SLACK).split()),
    "in a repr": lambda text, most: repr(cut(text, 2 * most + SLACK)),
}


def nested(text: str, depth: int, ascii: bool) -> str:
    for _ in range(depth + 1):
        text = json.dumps({"arguments": text}, ensure_ascii=ascii)
    return text


@pytest.mark.parametrize("cutter", CUTTERS)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(7, 22), st.integers(0, 3), st.booleans())
def test_a_value_that_was_cut(monkeypatch: pytest.MonkeyPatch, cutter: str, kept: int, depth: int, ascii: bool) -> None:
    """The rest of a truncated secret value next to the mark of the cut is redacted, also in JSON within JSON. Nothing else is."""
    value = "wörd-fish/08\\15\"of'the~shop"
    monkeypatch.setenv("SHOP_PASSWORD", value)
    around = "x" * (2_000 - kept)
    text = CUTTERS[cutter](f"{around}{value}{'y' * 4_000}{value}{around}", 2_000)

    redacted = Redactor()(nested(text, depth, ascii))

    assert MARK in redacted
    assert not re.search(r"rd-fi|shop|~s", redacted)
    assert "x" * 1_500 in redacted
    assert MARK in Redactor().plain(text)


def test_a_key_that_was_cut() -> None:
    """The shortest recognisable beginning of a known key is redacted before the mark of a cut."""
    for key in ("sk-proj-abcd", "ghp_abcd", "eyJhbGciOiJI.eyJz"):
        assert f"with {MARK} [5 characters left out]" == Redactor().plain(beginning(f"with {key}12345", len(key) + 5))
    assert "a risk-abcd [5 characters left out]" == Redactor().plain("a risk-abcd [5 characters left out]")
