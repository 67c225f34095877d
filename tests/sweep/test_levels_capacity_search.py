"""The search for the capacity, the greatest level that is good enough."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.stats.decisions import FAIL, INCONCLUSIVE, PASS
from pytest_agentbench.sweep.levels import MOST, NEAR, SustainedRange, greatest, search


class Backend:
    """A backend whose levels pass up to `good`, are inconclusive for `unclear` levels above it, and fail above those."""

    def __init__(self, low: int, good: int, unclear: int = 0) -> None:
        self.low, self.good, self.unclear = low, good, unclear
        self.asked: list[int] = []

    def session(self, level: int) -> Mapping[int, str]:
        self.asked.append(level)
        return {each: self.verdict(each) for each in (self.low, level)}

    def verdict(self, level: int) -> str:
        return PASS if level <= self.good else INCONCLUSIVE if level <= self.good + self.unclear else FAIL


@given(st.integers(1, 20), st.integers(1, 500), st.integers(1, 500))
def test_the_true_level_lies_within(low: int, more: int, good: int) -> None:
    """`shown` passes, `refuted` fails, and at most a tenth, or one level, is between them. The search needs few sessions."""
    backend = Backend(low, good)
    high = low + more
    found = search(backend.session, low, high)
    assert MOST >= len(backend.asked)
    assert len(backend.asked) == len({*backend.asked})
    assert all(low < level <= high for level in backend.asked)
    if good < low:
        assert SustainedRange(None, low) == found
    elif good >= high:
        assert SustainedRange(high, None) == found
    else:
        assert found.shown is not None
        assert found.refuted is not None
        assert found.shown <= good < found.refuted
        assert max(1.0, found.shown * NEAR) >= found.refuted - found.shown


@given(st.integers(2, 200), st.integers(1, 50))
def test_inconclusive_levels(good: int, unclear: int) -> None:
    """An inconclusive level is neither `shown` nor `refuted`."""
    backend = Backend(1, good, unclear)
    found = search(backend.session, 1, 300)
    assert found.shown is not None
    assert found.shown <= good
    assert found.refuted is None or found.refuted > good + unclear
    assert all(good < level <= good + unclear for level in found.undecided)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ({1: PASS, 2: PASS, 4: FAIL}, SustainedRange(2, 4)),
        ({1: PASS, 2: PASS}, SustainedRange(2, None)),
        ({1: FAIL, 2: PASS}, SustainedRange(None, 1)),
        ({1: INCONCLUSIVE, 2: PASS, 4: FAIL}, SustainedRange(None, 4, (1, 2))),
        ({1: PASS, 2: INCONCLUSIVE, 4: PASS, 8: FAIL}, SustainedRange(1, 8, (2, 4))),
    ],
)
def test_greatest(verdicts: Mapping[int, str], expected: SustainedRange) -> None:
    """A level that passes above one that does not is ignored."""
    assert expected == greatest(verdicts)
