"""Argument modes in suite.yaml: arguments that are compared in a different way."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.records import ToolCall
from pytest_agentbench.scorers import load_scorer
from pytest_agentbench.suites.folder import with_modes
from pytest_agentbench.suites.suite import Tool
from tests.scorers.records import records

ORDER = Tool("order", "", {"type": "object", "properties": {"item": {"type": "string"}, "count": {"type": "number"}, "note": {}}})


def score(mode: str, wanted: dict[str, Any], given: dict[str, Any], scorer: str = "tsq_arguments", argument: str = "item") -> float:
    label = {"tool": "order", "parameters": wanted}
    scenario, rollout = records([ToolCall("order", given, 1)], [label], [ORDER])
    (scenario,) = with_modes({"order": {argument: mode}}, [scenario])
    return float(load_scorer(scorer)(scenario, rollout))


@pytest.mark.parametrize(
    ("mode", "wanted", "given", "value"),
    [
        ("exact", {"item": "Lamp"}, {"item": "Lamp"}, 1.0),
        ("exact", {"item": "Lamp"}, {"item": "lamp"}, 0.0),
        ("exact", {"item": "Lamp"}, {}, 0.0),
        ("exact", {}, {"item": "Lamp"}, 0.0),
        ("ignore", {"item": "Lamp"}, {"item": "chair"}, 1.0),
        ("ignore", {"item": "Lamp"}, {}, 1.0),
        ("ignore", {}, {"item": "Lamp"}, 1.0),
        ("ignore", {"item": "Lamp", "count": 1}, {"item": "Lamp", "count": 2}, 0.0),
        ("pattern", {"item": "[Ll]amps?"}, {"item": "lamps"}, 1.0),
        ("pattern", {"item": "[Ll]amps?"}, {"item": "two lamps"}, 0.0),
        ("pattern", {"item": "[0-9]+"}, {"item": 12}, 1.0),
        ("pattern", {"item": ".*"}, {}, 0.0),
    ],
)
def test_modes(mode: str, wanted: dict[str, Any], given: dict[str, Any], value: float) -> None:
    """`exact` requires equal JSON, `ignore` accepts anything, and `pattern` must match the whole text.

    Other arguments are compared as usual.
    """
    assert [value] * 2 == [score(mode, wanted, given, scorer) for scorer in ("tsq_arguments", "exact_match")]


def test_ignored_arguments_are_not_counted() -> None:
    """Parameter accuracy does not count ignored arguments."""
    assert 1.0 == score("ignore", {"item": "lamp", "count": 1}, {"item": "chair", "count": 1}, "parameter_accuracy")
    assert 0.0 == score("ignore", {"item": "lamp", "count": 1}, {"item": "lamp", "count": 2}, "parameter_accuracy")


@pytest.mark.parametrize(
    ("modes", "wanted", "sentence"),
    [
        ({"ordr": {"item": "exact"}}, "lamp", "arguments: no tool 'ordr' (did you mean 'order'?); known: order"),
        ({"order": {"itm": "exact"}}, "lamp", "arguments.order: no argument 'itm' (did you mean 'item'?); known: count, item, note"),
        (
            {"order": {"item": "pattern"}},
            "(",
            "arguments.order.item: in scenario 's1' the label is not a regular expression: '('; correct the label, or use another mode",
        ),
    ],
)
def test_invalid_modes(modes: dict[str, dict[str, str]], wanted: str, sentence: str) -> None:
    """Modes of unknown tools and arguments are refused with the known ones. So are invalid patterns."""
    scenario, _ = records([], [{"tool": "order", "parameters": {"item": wanted}}], [ORDER])

    with pytest.raises(ConfigError) as refusal:
        with_modes(modes, [dataclasses.replace(scenario)])
    assert sentence == str(refusal.value)
