"""Which scenarios a limit takes."""

from __future__ import annotations

from pytest_agentbench.records import RolloutKey
from pytest_agentbench.session.discovery import first_scenarios


def test_the_first_ones_of_each_suite_and_variant() -> None:
    """In the order of the data set, whatever the order of the tests; trials of a scenario stay together."""
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
    """The one test that says why a suite does not run is left as it is."""
    assert {("shop", "not_run")} == first_scenarios([RolloutKey("shop", "not_run")], {"shop": []}, 1)
