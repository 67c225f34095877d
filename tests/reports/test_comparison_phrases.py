"""Phrases of reports that compare: the values that are in them, in their order."""

from __future__ import annotations

import pytest

from pytest_agentbench.gate.run_pair import setup_changes
from pytest_agentbench.records import Json
from pytest_agentbench.reports import comparison_phrases
from pytest_agentbench.sweep.verdict import Criteria, SustainedRange
from tests.gate.test_run_pair import run


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"prompt": "q"}, ["shop.system_prompt", "hash p", "q"]),
        ({"backend": {"run": ["vllm", "--len", "8", "-v"]}}, ["spec.run: 4 -> 8"]),
        ({"gpus": ["NVIDIA H200"]}, ["gpus", "nothing", "NVIDIA H200"]),
        ({"agent": {"kind": "tool_calling", "note": "long " * 50}}, ["shop.note", "unset", f"{('long ' * 50)[:57]}..."]),
    ],
)
def test_changes(change: Json, values: list[str]) -> None:
    """Prompts differ by hash, lists by the words that do, and nothing takes more than a line; what one run lacks is named as such."""
    old = run(backend={"run": ["vllm", "--len", "4", "-v"]} if "backend" in change else {})

    [said] = [comparison_phrases.change(each) for each in setup_changes(old, run(**change))]

    places = [said.index(value) for value in values]
    assert sorted(places) == places
    assert said.endswith(values[-1] if "prompt" not in change else ")")


def test_a_knee_at_the_end() -> None:
    """One that is the greatest level may lie beyond it, and says so; one between two levels does not."""
    last, between = comparison_phrases.knee(4, 4), comparison_phrases.knee(4, 8)

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
    """It has the level that is shown, the one that is not, those between, and by which criteria."""
    terms = Criteria({"ttft": 500.0}, 0.75, 0.25)
    criteria = comparison_phrases.criteria(terms)

    said = comparison_phrases.greatest(found, terms)

    assert ["75.0 %", "500.0", "0.25"] == [value for value in ("75.0 %", "500.0", "0.25") if value in criteria]
    assert f"({criteria})" in said
    assert levels == [word.strip(",;") for word in said.replace(criteria, "").split() if word.strip(",;").isdigit()]
