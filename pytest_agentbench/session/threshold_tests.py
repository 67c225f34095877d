"""Tests that compare scores with thresholds: which thresholds a test reads, and whether the gate decides in place of a failure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pytest

from pytest_agentbench.errors import NoScore
from pytest_agentbench.records import Rollout, Scale
from pytest_agentbench.records.rollout import missed_scores


class NotedThresholds(dict[str, float]):
    """The thresholds that the fixture `thresholds` gives to a test, with a note of those that the test has read."""

    def __init__(self, values: Mapping[str, float]) -> None:
        super().__init__(values)
        self.read: dict[str, float] = {}

    def __getitem__(self, name: str) -> float:
        self.read[name] = value = super().__getitem__(name)
        return value

    def __iter__(self) -> Iterator[str]:  # With a method of its own, `dict(thresholds)` reads the values by `__getitem__`.
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        value = super().get(name, default)
        if isinstance(value, int | float):
            self.read[name] = value
        return value

    def items(self) -> Any:
        self.read.update(self)
        return super().items()

    def values(self) -> Any:
        self.read.update(self)
        return super().values()


def is_left_to_gate(
    test: pytest.Item, error: AssertionError, rollout: Rollout, scales: Mapping[str, Scale], compared: Collection[str]
) -> bool:
    """Returns whether a failure of a test is left to the gate, because it is about scores that the gate compares with a baseline.

    That is so if the test has read the threshold of such a score, the rollout misses it, and the rollout misses no threshold of another
    score that the test reads or names. An assertion may have ended the test before it read the threshold of a later one.

    Args:
        test: The failed test.
        error: The assertion that failed.
        rollout: The rollout that the test read.
        scales: Score -> its scale.
        compared: The scores that the gate compares with a baseline.
    """
    given = getattr(test, "funcargs", {}).get("thresholds")
    own = given if isinstance(given, Mapping) else {}
    read = dict(own.read if isinstance(own, NotedThresholds) else own)
    absent = {error.score} if isinstance(error, NoScore) else set()  # The test ended before it could read a threshold.
    code = getattr(getattr(test, "function", None), "__code__", None)
    named = {name: own[name] for name in getattr(code, "co_consts", ()) if isinstance(name, str) and name in own}
    missed = {*missed_scores(rollout, {**named, **read}, scales), *absent}
    return bool(missed & {*read, *absent}) and missed <= {*compared}
