"""Phrases about a sweep."""

from __future__ import annotations

import pytest

from pytest_agentbench.reports import capacity_phrases
from pytest_agentbench.sweep.levels import Criteria, SustainedRange


def test_a_knee_at_the_end() -> None:
    """If the knee is at the greatest level, the text adds that it may be beyond it. For a knee between two levels it does not."""
    last, between = capacity_phrases.knee(4, 4), capacity_phrases.knee(4, 8)

    assert last.startswith(between)
    assert len(last) > len(between)
    assert "4" in between


@pytest.mark.parametrize(
    ("found", "levels"),
    [
        (SustainedRange(2, 8), ["2", "8"]),
        (SustainedRange(2, 8, (4,)), ["2", "8", "4"]),
        (SustainedRange(2, None), ["2"]),
        (SustainedRange(None, 8), ["8"]),
    ],
)
def test_the_greatest_level(found: SustainedRange, levels: list[str]) -> None:
    """The text has the level that passes, the one that fails, those between them, and the criteria."""
    terms = Criteria({"ttft": 500.0}, 0.75, 0.25)
    criteria = capacity_phrases.criteria(terms)

    said = capacity_phrases.greatest(found, terms)

    assert ["75.0 %", "500.0", "0.25"] == [value for value in ("75.0 %", "500.0", "0.25") if value in criteria]
    assert f"({criteria})" in said
    assert levels == [word.strip(",;") for word in said.replace(criteria, "").split() if word.strip(",;").isdigit()]
