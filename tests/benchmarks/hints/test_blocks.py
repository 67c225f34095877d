"""Calculating the table of benchmarks/hints-results.md: blocks, their means, and their ratios."""

from __future__ import annotations

import pytest

from benchmarks.hints.blocks import FIGURES, Block, Step, block_of, ratio_of
from benchmarks.hints.page import Measured, page, table
from benchmarks.measurement import BenchmarkError


def test_a_block() -> None:
    """A session lasts from its first call to the end of its last. The figures are a median of sessions, and mean and p95 of calls."""
    first = [Step("a", 100.0, 101.0, 10.0), Step("a", 103.0, 104.0, 20.0)]
    others = [Step("b", 100.0, 108.0, 30.0), Step("c", 101.0, 102.0, 40.0)]

    assert Block(session=4.0, ttft=25.0, ttft_p95=40.0) == block_of([others[0], *first[::-1], others[1]])


def test_a_ratio() -> None:
    """Ratios are those of pairs of blocks, so that drift does not affect them."""
    base = [Block(rate, 1.0, 1.0) for rate in (10.0, 20.0, 40.0)]
    half = [Block(rate, 1.0, 1.0) for rate in (5.1, 10.0, 19.8)]
    ratio = ratio_of(half, base, FIGURES[0])

    assert 0.47 < ratio.low < ratio.mean < ratio.high < 0.53


def test_no_ratio() -> None:
    """A single pair of blocks has no interval, which is an error and not a ratio."""
    with pytest.raises(BenchmarkError):
        ratio_of([Block(1.0, 1.0, 1.0)], [Block(2.0, 1.0, 1.0)], FIGURES[0])


def test_the_table() -> None:
    """The table has a row for each arm at each router, with its ratios to static hints. The page has how right the hints were."""
    blocks = [Block(10.0, 100.0, 300.0), Block(11.0, 110.0, 320.0)]
    slower = [Block(20.0, 210.0, 603.0), Block(22.4, 220.0, 640.0)]
    measured = Measured("thompson", {"static": blocks, "learnt": slower, "none": slower}, {"learnt": "agent: 5 calls"}, "ok", "quiet")
    head, _, first, second, third = table([measured]).splitlines()

    assert head.startswith("| router | hints | session p50, s | x `static` |")
    assert first.startswith("| thompson | `static` | 10.50 (4.15 to 16.85) |  | 105 (")
    assert second.startswith("| thompson | `learnt` | 21.20 (5.95 to 36.45) | 2.02 (")
    assert third.startswith("| thompson | `none` |")
    assert "- `thompson`, `learnt`: agent: 5 calls" in page([measured], "Made so.")
