"""Phrases for measures, and for texts that all sections use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_agentbench.reports import phrases, suite_phrases
from pytest_agentbench.reports.document import Code, Measure
from pytest_agentbench.reports.phrases import brackets
from pytest_agentbench.stats.quantiles import latency_spread
from tests.amounts import amounts
from tests.made_runs import mean


def test_means() -> None:
    """A mean has its interval, or says that it has none, or that nothing was measured."""
    assert "0.612 [0.571, 0.653]" == phrases.mean(mean(0.6123, 0.5712, 0.6528))
    assert "0.500 (no interval)" == phrases.mean(mean(0.5, None, None))
    assert "0.000 [0.000, 0.000]" == phrases.mean(mean(0.0, 0.0, 0.0))
    assert "not measured" == phrases.mean(None)


@pytest.mark.parametrize(
    ("measure", "figure", "numbers"),
    [
        (Measure(None, "ms"), "not measured", []),
        (Measure(0.0), "0.000", ["0.000"]),
        (Measure(11.26, "ms", digits=1), "11.3", ["11.3 ms"]),
        (Measure(0.959, "%"), "95.9 %", ["95.9 %"]),
        (Measure(11.26, "ms", "median", 9.64, 10.91, 1, "p90 12.0 ms"), "11.3", ["11.3 ms", "95 %", "9.6", "10.9", "12.0 ms"]),
        (Measure(0.5, low=0.25), "0.500", ["0.500"]),
    ],
    ids=["nothing", "zero", "unit", "share", "all", "half an interval"],
)
def test_measures(measure: Measure, figure: str, numbers: list[str]) -> None:
    """A measure has its number, unit, interval and remark. `figure` returns the number alone."""
    assert figure == phrases.figure(measure)
    assert numbers == amounts(phrases.measure(measure))


def test_a_measure_in_words() -> None:
    """The order is number, unit, statistic, interval, remark."""
    measure = Measure(11.26, "ms", "median", 9.64, 10.91, 1, "of 9 calls")

    assert "11.3 ms, median (95 % interval 9.6 to 10.9); of 9 calls" == phrases.measure(measure)
    assert ("ms", "") == (phrases.unit_of(measure), phrases.unit_of(replace(measure, unit="%")))
    assert "not measured" == phrases.measure(Measure(None, "ms"))


def test_cells_with_intervals() -> None:
    """A number in a table is followed by its interval, if it has one. Two numbers of a spread are in one cell."""
    spread = latency_spread([1.0] * 20)
    assert spread is not None

    assert ("12.0 [11.0, 13.5]", "12.0") == (phrases.with_interval(12.0, (11.0, 13.5)), phrases.with_interval(12.0, None))
    assert ("[11.0, 13.5]", "") == (brackets((11.0, 13.5)), brackets(None))
    assert ["0.111", "0.889"] == amounts(phrases.ends(0.1111, 0.8888))
    assert ("1.0, 1.0", "1.0, -", "-") == tuple(map(phrases.median_and_p95, (spread, replace(spread, p95=None), None)))


def test_left_out_items() -> None:
    """The text about left-out items has their number, and is empty for zero."""
    assert (["4"], "", "") == (amounts(phrases.more(4)), phrases.more(0), phrases.more(-1))


def test_foreign_texts_are_marked_as_code() -> None:
    """Commands, settings and names of tools are marked as code."""
    assert Code("pytest 'a b'", "command") == phrases.command(["pytest", "a b"])
    assert (Code('{"seed": "ü"}', "command"), "none") == (phrases.settings({"seed": "ü"}), phrases.settings({}))
    assert (Code("find, order, find"), Code("none")) == (suite_phrases.tools(["find", "order", "find"]), suite_phrases.tools([]))
