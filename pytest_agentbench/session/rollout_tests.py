"""Tests that read rollouts: which rollout and thresholds a test reads, and how it ends if there is nothing to judge or the gate decides."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NoReturn

import pytest

from pytest_agentbench.errors import NoScore
from pytest_agentbench.records import Rollout, RolloutKey, Scale
from pytest_agentbench.records.rollout import missed_scores
from pytest_agentbench.rollouts.questions_of_tests import WorkerSuite


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


KEY = "_rollout_key"  # Name of the fixture that parametrizes a test with rollouts


ROLLOUT = pytest.StashKey[Rollout]()
TROUBLE = pytest.StashKey[tuple[str, str]]()  # Reason why there is nothing to judge, and status of the rollout


class Unmeasured(pytest.fail.Exception):  # type: ignore[name-defined, misc]  # pytest declares it as a variable
    """Ends a test as an ERROR because it has nothing to judge. Tests with the same reason have the same `cause`."""

    def __init__(self, cause: str, outcome: str = "") -> None:
        """`outcome` names the rollout and its status, or is empty."""
        super().__init__(f"{outcome}: {cause}" if outcome else cause, pytrace=False)
        self.cause, self.outcome = cause, outcome


Unmeasured.__module__ = "builtins"  # As for pytest's own exceptions, so that summaries show the name without the module


def reads_thresholds(item: pytest.Item) -> bool:
    """Returns whether a test uses the fixtures `rollout` and `thresholds`, so that its failure means a score below its threshold."""
    return wants_rollout(item) and "thresholds" in getattr(item, "fixturenames", ())


def excuse(report: pytest.TestReport, mark: str, why: str, error: BaseException) -> None:
    """Turns a failure into an expected failure (xfail), so that JUnit, --lf, -x and others do not count it."""
    report.outcome = "skipped"  # `skipped` with `wasxfail` is an expected failure.
    report.wasxfail = f"{why}: {str(error).partition(chr(10))[0]}"
    setattr(report, mark, True)


def refuse(cause: str, status: str, rollout: str = "") -> NoReturn:
    """Ends a test that has nothing to judge: as a SKIP if this machine lacks something, else as an ERROR."""
    if status == "missing":
        pytest.skip(cause)
    raise Unmeasured(cause, f"{rollout}: {status}" if rollout else "")


def suite_keys(suite: WorkerSuite) -> list[RolloutKey]:
    """Returns the keys of a suite's rollouts: by variant, then by trial, then in the order of the data set."""
    return [
        RolloutKey(suite.name, scenario, variant, trial)
        for variant in suite.info.variants
        for trial in range(1, suite.info.trials + 1)
        for scenario in suite.info.ids[: suite.sizes.get(variant)]
    ]


def rollout_key(item: pytest.Item) -> RolloutKey:
    key: RolloutKey = item.callspec.params[KEY]  # type: ignore[attr-defined]  # has_key has checked it.
    return key


def wants_rollout(item: pytest.Item) -> bool:
    """Returns whether a test reads a rollout. Tests that only read `scenario` do not."""
    return "rollout" in getattr(item, "fixturenames", ()) and has_key(item)


def has_key(item: pytest.Item) -> bool:
    return KEY in getattr(getattr(item, "callspec", None), "params", ())


def is_skipped(item: pytest.Item) -> bool:
    """Returns whether marks prevent a test from running. Conditions given as text are left to pytest."""
    return any(map(_skips, item.iter_markers()))


def _skips(mark: pytest.Mark) -> bool:
    """Returns whether a mark prevents a test from running. It does if it has no condition, or if one of its conditions is true."""
    if mark.name == "skip":
        return True
    if not (mark.name == "skipif" or (mark.name == "xfail" and mark.kwargs.get("run") is False)):
        return False
    conditions = (mark.kwargs["condition"],) if "condition" in mark.kwargs else mark.args
    return not conditions or any(bool(condition) for condition in conditions if not isinstance(condition, str))
