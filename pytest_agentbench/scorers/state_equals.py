"""Compares the state of the tools after the agent's work with the scenario's `final_state`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario

MOST = 12  # differences that an explanation lists

Place = tuple[str | int, ...]  # names of fields and positions in lists, from the outermost on
Leaves = dict[Place, Any]


class _Missing:
    """Class of MISSING, which stands for a value that does not exist and differs from null."""


MISSING = _Missing()


@scorer(range=(0, 1))
def state_equals(scenario: Scenario, rollout: Rollout) -> Score:
    """Returns 1 if the final state of the tools equals the scenario's `final_state`, otherwise 0.

    The part `changes` is the share of right values among all values that should have changed or did change.
    """
    if scenario.final_state is None:
        raise ValueError(f"scenario {scenario.id!r} has no `final_state`; add it to the data set")
    if rollout.final_state is None:
        raise ValueError("the tools have no state; set `tools` in suite.yaml to tools that have one")
    expected, actual = dict(_leaves(scenario.final_state)), dict(_leaves(rollout.final_state))
    before = dict(_leaves(scenario.state))
    places = [place for place in dict.fromkeys([*expected, *actual]) if not _is_same(expected, actual, place)]
    changed = [
        place
        for place in dict.fromkeys([*before, *expected, *actual])
        if not (_is_same(before, expected, place) and _is_same(before, actual, place))
    ]
    share = 1 - len(places) / len(changed) if changed else float(not places)
    return Score(float(not places), {"changes": share, "differences": len(places)}, _differences(places, expected, actual))


def _leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yields (place, value) for each value in a nested value that contains no other values, and for empty lists and objects."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _leaves(each, (*place, name))
    elif isinstance(value, list) and value:
        for at, each in enumerate(value):
            yield from _leaves(each, (*place, at))
    elif place or value:
        yield place, value


def _is_same(one: Leaves, other: Leaves, place: Place) -> bool:
    """Returns whether both states have the same value at a place. JSON's true is not 1, but 5 is 5.0."""
    left, right = one.get(place, MISSING), other.get(place, MISSING)
    return (isinstance(left, bool) == isinstance(right, bool)) and left == right


def _differences(places: list[Place], expected: Leaves, actual: Leaves) -> str:
    if not places:
        return "the state is as it should be"
    lines = [f"{_path_text(place)} is {_value_text(actual, place)}, expected {_value_text(expected, place)}" for place in places[:MOST]]
    return "; ".join([*lines, *([f"and {len(places) - MOST} more"] if len(places) > MOST else [])])


def _path_text(place: Place) -> str:
    """Returns a place as a text, for example `accounts.checking` or `cards[0].blocked`."""
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in place).removeprefix(".")


def _value_text(leaves: Leaves, place: Place) -> str:
    value = leaves.get(place, MISSING)
    return "not there" if value is MISSING else json.dumps(value, ensure_ascii=False)
