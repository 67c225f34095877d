"""Thresholds that are suggested from several runs: those runs pass them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_agentbench.gate.evidence import Evidence
from pytest_agentbench.gate.repeats import Flaky, calibrate
from pytest_agentbench.gate.rules import SuiteRule, parse_rule
from pytest_agentbench.gate.verdict import judge_rules
from pytest_agentbench.records import Scale
from tests.gate.evidences import asked, evidence, trial

scores = st.lists(st.floats(0, 1), min_size=12, max_size=12)


def run_of(values: list[float]) -> Evidence:
    return evidence([trial(number, score) for number, score in enumerate(values)])


@settings(max_examples=30)
@given(st.lists(scores, min_size=2, max_size=3))
def test_suggestions_hold(values: list[list[float]]) -> None:
    """Every pair of runs passes with the suggested margin, but not if it is smaller by 0.01. Every run passes the threshold of the mean."""
    runs = [run_of(each) for each in values]
    found = calibrate(runs, "shop", "tsq")

    assert found.margin is not None
    assert found.limit is not None
    assert {"PASS": found.pairs} == dict(found.verdicts[found.margin])
    less = asked(f"tsq.mean >= -{found.margin - 0.01:.2f} vs baseline", any_part=True)
    pairs = [(new, base) for new in runs for base in runs if new is not base]
    assert any("PASS" != judge_rules([less], new, {"shop": base})[0].decision.verdict for new, base in pairs)
    if found.limit >= 0:
        mean = asked(f"tsq.mean >= {found.limit:.2f}", any_part=True)
        assert {"PASS"} == {judge_rules([mean], each, {})[0].decision.verdict for each in runs}


def test_the_flaky_scenarios() -> None:
    """The result has the flaky scenarios (widest first), the means of the runs, and the lowest score."""
    first, second = run_of([1.0, 0.5, 1.0, 0.9]), run_of([1.0, 0.75, 0.0, 0.9])
    found = calibrate([first, second], "shop", "tsq")

    assert (Flaky("2", 0.0, 1.0), Flaky("1", 0.5, 0.75)) == found.flaky
    assert (0.85, 0.6625) == pytest.approx(found.means)
    assert (4, 2, 0.0) == (found.scenarios, found.pairs, found.worst)


def test_equal_variation_is_sorted_by_id() -> None:
    """Scenarios with equal variation are sorted by id, in whatever order rollouts ended."""
    runs = [evidence([trial(id, score) for id in (2, 1)]) for score in (0.0, 1.0)]

    assert ["1", "2"] == [each.scenario for each in calibrate(runs, "shop", "tsq").flaky]


def test_real_differences_are_false_alarms() -> None:
    """If two runs really differ, the comparison in one direction fails with a small margin."""
    found = calibrate([run_of([1.0] * 50), run_of([0.5] * 50)], "shop", "tsq")

    assert {"PASS": 1, "FAIL": 1} == dict(found.verdicts[0.1])


@pytest.mark.parametrize("runs", [[run_of([1.0, 1.0])], [run_of([1.0]), evidence([trial(1, None)])]])
def test_nothing_to_compare(runs: list[Evidence]) -> None:
    """A single run, or a run without the score, is refused."""
    with pytest.raises(ValueError, match="needs two or more runs"):
        calibrate(runs, "shop", "tsq")


def test_less_is_better() -> None:
    """If lower is better, margin and threshold are upper ones. Every pair of runs and every run passes."""
    marks = Scale("lower", 0.0, 10.0, declared=True)
    runs = [
        evidence([trial(number, float((number + shift) % 3)) for number in range(20)], scales={"shop": {"tsq": marks}}) for shift in (0, 1)
    ]
    found = calibrate(runs, "shop", "tsq")

    assert (2.0, True) == (found.worst, found.limit is not None and 0.95 < found.limit < 10)
    assert found.margin is not None
    assert {"PASS": 2} == dict(found.verdicts[found.margin])
    rule = SuiteRule("shop", parse_rule(f"tsq.mean <= {found.limit}", ("tsq",), {"tsq": marks}), marks, any_part=True)
    assert ["PASS"] * 2 == [judge_rules([rule], each, {})[0].decision.verdict for each in runs]
