"""The scale of a score: its ends, its text, and comparisons with other scales."""

from __future__ import annotations

from pytest_agentbench.records import UNDECLARED, Scale

SHARES = Scale(least=0.0, greatest=1.0, declared=True)
MISTAKES = Scale("lower", 0.0, None, "mistakes", declared=True)
POINTS = Scale("lower", -2.0, 6.0, declared=True)


def test_the_ends() -> None:
    """The worst value is the least one if higher is better, and the greatest one if lower is better. Unbounded ranges have none."""
    assert (0.0, 1.0, (0.0, 1.0), 1.0) == (SHARES.worst, SHARES.best, SHARES.limits, SHARES.width)
    assert (None, 0.0, None, None) == (MISTAKES.worst, MISTAKES.best, MISTAKES.limits, MISTAKES.width)
    assert (6.0, -2.0, (-2.0, 6.0), 8.0) == (POINTS.worst, POINTS.best, POINTS.limits, POINTS.width)
    assert (None, None, None, None) == (UNDECLARED.worst, UNDECLARED.best, UNDECLARED.limits, UNDECLARED.width)


def test_values() -> None:
    """A scale contains only values in its range, and a worse value has a greater loss."""
    assert [False, True, True, False] == [SHARES.contains(value) for value in (-0.1, 0.0, 1.0, 1.1)]
    assert [False, True] == [MISTAKES.contains(value) for value in (-1, 1e9)]
    assert UNDECLARED.contains(-1e9)
    assert SHARES.loss(0.2) > SHARES.loss(0.8)
    assert MISTAKES.loss(3) > MISTAKES.loss(1)
    assert (">=", "<=") == (SHARES.sign, MISTAKES.sign)


def test_words() -> None:
    """The text of a scale has direction, range and unit, or says that nothing is declared."""
    assert SHARES.text == "higher is better, between 0 and 1"
    assert MISTAKES.text == "lower is better, 0 or more, mistakes"
    assert Scale(greatest=5.0).range_text == "5 or less"
    assert UNDECLARED.text.startswith("higher is taken as better, because the scorer does not declare it")


def test_comparable_scales() -> None:
    """Scales can be compared if direction and range are equal, even if unit and threshold differ."""
    assert SHARES.is_comparable(Scale(least=0.0, greatest=1.0, unit="share", threshold=0.5))
    assert not SHARES.is_comparable(UNDECLARED)
    assert not MISTAKES.is_comparable(Scale("higher", 0.0, None))
