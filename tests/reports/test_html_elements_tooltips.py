"""Definitions of abbreviations on HTML pages."""

from __future__ import annotations

import pytest

from pytest_agentbench.reports.html_elements import DEFINITIONS, definition_of, with_tooltips
from pytest_agentbench.scorers import SCORERS


@pytest.mark.parametrize("name", SCORERS)
def test_every_built_in_score_has_a_definition(name: str) -> None:
    """The definition of a score is the first sentence of its scorer, without markup."""
    text = definition_of(name)

    assert text[:1] == text[:1].upper() != ""
    assert not text.startswith("Returns")
    assert text.endswith(".")
    assert "`" not in text


def test_labels_and_sentences() -> None:
    """In a label, the keyboard reaches definitions of metrics, statistics and scores. In a sentence the mouse shows those of metrics."""
    ttft = f'<abbr title="{DEFINITIONS["TTFT"]}"'
    median = '<abbr title="Median: half of the values are at most this." tabindex="0">p50</abbr>'

    assert f'{ttft} tabindex="0">TTFT</abbr> {median}, ms' == with_tooltips("TTFT p50, ms", label=True)
    assert f"{ttft}>TTFT</abbr> p50 is &lt; 5" == with_tooltips("TTFT p50 is < 5")
    assert median == with_tooltips("p50", label=True)
    assert "The F1 score" in with_tooltips("tsq", label=True)
    assert "tsq" == with_tooltips("tsq")
    assert "an own score" == with_tooltips("an own score", label=True)
