"""Tool selection quality: whether the expected tools were called, and no others.

Variants also check arguments, order or repeats, or check only one of the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.arguments import fits
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.matching import (
    ActualCall,
    CallKey,
    ExpectedCall,
    expected_and_actual,
    f1,
    most_pairs,
    names_text,
    share_of_calls,
    unmatched,
)

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@scorer(range=(0, 1))
def tsq(scenario: Scenario, rollout: Rollout) -> Score:
    """Returns the F1 score of the set of called tools. Order, repeats and arguments do not count.

    If no tool is expected, a rollout without tool calls gets 1.0 and any other 0.0.
    """
    expected_calls, made = expected_and_actual(scenario, rollout)
    expected, actual = _distinct(expected_calls), _distinct(made)
    missing = [name for key, name in expected.items() if key not in actual]
    unexpected = [name for key, name in actual.items() if key not in expected]
    matched = len(expected.keys() & actual.keys())
    return f1(len(expected), len(actual), matched, f"missing: {names_text(missing)}", f"unexpected: {names_text(unexpected)}")


def _distinct(calls: Iterable[ExpectedCall | ActualCall]) -> dict[CallKey, str]:
    """Returns each tool once in order of appearance, with the spelling of its first call."""
    distinct: dict[CallKey, str] = {}
    for call in calls:
        distinct.setdefault(call.key, call.name)
    return distinct


@scorer(range=(0, 1))
def tsq_arguments(scenario: Scenario, rollout: Rollout) -> Score:
    """Returns the F1 score of the calls, matched by tool and arguments, with as many matches as possible. Order does not count."""
    expected, made = expected_and_actual(scenario, rollout)
    faults = [[fits(call.call, each.label, each.tool) if call.key == each.key else "" for call in made] for each in expected]
    pairs = most_pairs([[j for j, fault in enumerate(row) if fault is None] for row in faults])
    left = {j: call for j, call in enumerate(made) if j not in pairs.values()}
    missing, wrong = [], []
    for i, each in enumerate(expected):
        if i not in pairs:
            nearest = next((j for j, call in left.items() if call.key == each.key), None)
            if nearest is None:
                missing.append(each.name)
            else:
                del left[nearest]
                wrong.append(f"{each.name}: {faults[i][nearest]}")
    unexpected = names_text(call.name for call in left.values())
    remarks = (f"missing: {names_text(missing)}", f"unexpected: {unexpected}", f"wrong arguments: {' | '.join(wrong) or 'none'}")
    return f1(len(expected), len(made), len(pairs), *remarks)


@scorer(range=(0, 1))
def tsq_multiset(scenario: Scenario, rollout: Rollout) -> Score:
    """Returns the F1 score of the calls, matched by tool. Order and arguments do not count. Unexpected repeats count."""
    expected_calls, made = expected_and_actual(scenario, rollout)
    expected, actual = Counter(call.key for call in expected_calls), Counter(call.key for call in made)
    missing, unexpected = names_text(unmatched(expected_calls, actual.elements())), names_text(unmatched(made, expected.elements()))
    return f1(len(expected_calls), len(made), (expected & actual).total(), f"missing: {missing}", f"unexpected: {unexpected}")


@scorer(range=(0, 1))
def tsq_ordered(scenario: Scenario, rollout: Rollout) -> Score:
    """Returns the F1 score of the calls in the expected order: the longest common subsequence of tool names. Others may be in between."""
    expected, made = expected_and_actual(scenario, rollout)
    places = common([call.key for call in expected], [call.key for call in made])
    unmatched_calls = [call for i, call in enumerate(expected) if i not in places]
    used = {*places.values()}
    extra = [call for j, call in enumerate(made) if j not in used]
    extra_keys = {call.key for call in extra}
    return f1(
        len(expected),
        len(made),
        len(places),
        f"missing: {names_text(unmatched(unmatched_calls, (call.key for call in extra)))}",
        f"unexpected: {names_text(unmatched(extra, (call.key for call in unmatched_calls)))}",
        f"out of order: {names_text(dict.fromkeys(call.name for call in unmatched_calls if call.key in extra_keys))}",
    )


def common(one: Sequence[CallKey], other: Sequence[CallKey]) -> dict[int, int]:
    """Returns a longest common subsequence as position in `one` -> position in `other`. Takes time and space O(len(one) * len(other))."""
    longest = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]  # [i][j] is the length for the rests that begin at i and j.
    for i in reversed(range(len(one))):
        for j in reversed(range(len(other))):
            longest[i][j] = 1 + longest[i + 1][j + 1] if one[i] == other[j] else max(longest[i + 1][j], longest[i][j + 1])
    places: dict[int, int] = {}
    i = j = 0
    while i < len(one) and j < len(other):
        if one[i] == other[j]:
            places[i] = j
            i, j = i + 1, j + 1
        elif longest[i + 1][j] >= longest[i][j + 1]:
            i += 1
        else:
            j += 1
    return places


@scorer(range=(0, 1))
def tsq_subset(scenario: Scenario, rollout: Rollout) -> Score:
    """Returns the share of the actual calls that are expected, matched by tool, or 1.0 if none was made.

    Order, arguments and missing calls do not count. Unexpected repeats count.
    """
    expected_calls, made = expected_and_actual(scenario, rollout)
    expected, actual = Counter(call.key for call in expected_calls), Counter(call.key for call in made)
    unexpected = names_text(unmatched(made, expected.elements()))
    return share_of_calls(len(expected_calls), len(made), (expected & actual).total(), len(made), f"unexpected: {unexpected}")


@scorer(range=(0, 1))
def tsq_superset(scenario: Scenario, rollout: Rollout) -> Score:
    """Returns the share of the expected calls that were made, matched by tool, or 1.0 if none is expected.

    Order, arguments and unexpected calls do not count.
    """
    expected_calls, made = expected_and_actual(scenario, rollout)
    expected, actual = Counter(call.key for call in expected_calls), Counter(call.key for call in made)
    missing = names_text(unmatched(expected_calls, actual.elements()))
    return share_of_calls(len(expected_calls), len(made), (expected & actual).total(), len(expected_calls), f"missing: {missing}")
