"""TSQ that counts calls only in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_agentbench.records import Rollout, Score
from pytest_agentbench.scorers.declaration import scorer
from pytest_agentbench.scorers.matches import CallKey, beyond, both_sides, f1, listed

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@scorer(range=(0, 1))
def tsq_ordered(scenario: Scenario, rollout: Rollout) -> Score:
    """F1 over the longest common subsequence of tool names: calls that are in the expected order, others between them or not."""
    expected, made = both_sides(scenario, rollout)
    places = common([call.key for call in expected], [call.key for call in made])
    late = [call for i, call in enumerate(expected) if i not in places]
    used = {*places.values()}
    extra = [call for j, call in enumerate(made) if j not in used]
    elsewhere = {call.key for call in extra}
    return f1(
        len(expected),
        len(made),
        len(places),
        f"missing: {listed(beyond(late, (call.key for call in extra)))}",
        f"unexpected: {listed(beyond(extra, (call.key for call in late)))}",
        f"out of order: {listed(dict.fromkeys(call.name for call in late if call.key in elsewhere))}",
    )


def common(one: Sequence[CallKey], other: Sequence[CallKey]) -> dict[int, int]:
    """A longest common subsequence: position in the one -> position in the other. Time and space are the product of their lengths."""
    longest = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]  # [i][j]: of what begins at i and j
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
