"""The scorer `state_equals`, which compares final states."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.records import Rollout
from pytest_agentbench.scorers.state_equals import state_equals
from pytest_agentbench.suites.suite import Scenario

BEFORE = {"accounts": {"checking": 100, "savings": 5}, "cards": [{"blocked": False}]}
WANTED = {"accounts": {"checking": 60, "savings": 45}, "cards": [{"blocked": False}]}


def scenario(final: Any = WANTED) -> Scenario:
    return Scenario("s-0", (), state=BEFORE, final_state=final)


def rollout(final: Any) -> Rollout:
    return Rollout("shop", "s-0", "default", 1, "ok", final_state=final)


@pytest.mark.parametrize(
    ("is_there", "score", "changes", "explanation"),
    [
        (WANTED, 1, 1, "the state is as it should be"),
        ({"cards": [{"blocked": False}], "accounts": {"savings": 45.0, "checking": 60}}, 1, 1, "the state is as it should be"),
        ({**WANTED, "accounts": {"checking": 60, "savings": 5}}, 0, 0.5, "accounts.savings is 5, expected 45"),
        (BEFORE, 0, 0, "accounts.checking is 100, expected 60; accounts.savings is 5, expected 45"),
        ({**WANTED, "cards": [{"blocked": True}]}, 0, 2 / 3, "cards[0].blocked is true, expected false"),
        ({**WANTED, "cards": [{"blocked": 0}]}, 0, 2 / 3, "cards[0].blocked is 0, expected false"),
        ({"accounts": WANTED["accounts"]}, 0, 2 / 3, "cards[0].blocked is not there, expected false"),
        ({**WANTED, "notes": []}, 0, 2 / 3, "notes is [], expected not there"),
        ({**WANTED, "notes": None}, 0, 2 / 3, "notes is null, expected not there"),
    ],
)
def test_states(is_there: Any, score: float, changes: float, explanation: str) -> None:
    """The score is 0 or 1, and each difference is named by its place. The share of right changes is only a part."""
    given = state_equals(scenario(), rollout(is_there))

    assert (score, explanation) == (float(given), given.explanation)
    assert pytest.approx(changes) == given.parts["changes"]


@pytest.mark.parametrize(
    ("expected", "is_there"),
    [
        ({"files": {"a": {"txt": 1}}}, {"files": {"a.txt": 1}}),
        ({"files": {"a.txt": 1, "a": {"txt": 2}}}, {"files": {"a.txt": 3, "a": {"txt": 2}}}),
        ({"cards[0]": 1}, {"cards": [1]}),
        ({"": 0}, {}),
    ],
)
def test_names_with_signs_in_them(expected: Any, is_there: Any) -> None:
    """Names may contain any character. For example, a file `a.txt` is not a field `txt` of `a`."""
    assert 0 == float(state_equals(scenario(expected), rollout(is_there)))
    assert 1 == float(state_equals(scenario(expected), rollout(expected)))


def test_nothing_is_to_change() -> None:
    """If nothing should change and nothing did, the score is 1. An empty state is a state."""
    assert 1 == state_equals(scenario(BEFORE), rollout(BEFORE)).parts["changes"]
    assert 1 == float(state_equals(Scenario("s-0", (), final_state={}), rollout({})))


def test_many_differences() -> None:
    """The explanation has the first dozen differences and the number of the others."""
    given = state_equals(Scenario("s-0", (), final_state={str(each): each for each in range(20)}), rollout({}))

    assert given.explanation.endswith("11 is not there, expected 11; and 8 more")
    assert 20 == given.parts["differences"]


@pytest.mark.parametrize(
    ("one", "other", "sentence"),
    [
        (scenario(None), rollout({}), "scenario 's-0' has no `final_state`; add it to the data set"),
        (scenario(), rollout(None), "the tools have no state; set `tools` in suite.yaml to tools that have one"),
    ],
)
def test_a_missing_state(one: Scenario, other: Rollout, sentence: str) -> None:
    """Without an expected state or a final state there is no score."""
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        state_equals(one, other)
