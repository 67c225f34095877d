"""The scenarios that --agentbench-limit selects."""

from __future__ import annotations

from pytest_agentbench.records import RolloutKey
from pytest_agentbench.session.discovery import first_scenarios


def test_the_first_ones_of_each_suite_and_variant() -> None:
    """The first scenarios in the order of the data set are selected, with all their trials, whatever the order of the tests."""
    keys = [
        RolloutKey("shop", "c"),
        RolloutKey("shop", "b", trial=2),
        RolloutKey("shop", "b"),
        RolloutKey("shop", "d"),
        RolloutKey("shop", "d", "warm"),
        RolloutKey("bank", "y"),
    ]

    first = first_scenarios(keys, {"shop": ["a", "b", "c", "d"], "bank": ["x", "y"]}, 2)

    assert {("shop", "b"), ("shop", "c"), ("shop-warm", "d"), ("bank", "y")} == first


def test_a_suite_that_does_not_run() -> None:
    """The single test of a suite that does not run stays selected."""
    assert {("shop", "not_run")} == first_scenarios([RolloutKey("shop", "not_run")], {"shop": []}, 1)
