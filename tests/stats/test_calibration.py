"""The RMS calibration error, against the published code and known values, and its interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pytest_agentbench.stats.calibration import bins, calibration, rms_error

if TYPE_CHECKING:
    from pytest_agentbench.stats.series import Floats


def published(confidence: Floats, correct: Floats, beta: int = 100) -> float:
    """Returns the error as Humanity's Last Exam defines it, which leaves out the last bin."""
    order = np.argsort(confidence, kind="stable")
    count = len(order) // beta
    cuts = [order[number * beta : (number + 1) * beta] for number in range(count - 1)]
    return math.sqrt(sum(len(cut) / len(order) * (confidence[cut].mean() - correct[cut].mean()) ** 2 for cut in cuts))


def test_one_bin() -> None:
    """Below two hundred answers, the error is the distance between mean confidence and accuracy."""
    assert 0.75 - 8 / 12 == pytest.approx(rms_error(np.full(12, 0.75), np.array([1.0] * 8 + [0.0] * 4)))
    assert [1, 1, 1, 2, 25] == [bins(each) for each in (1, 100, 199, 200, 2500)]


def test_several_bins() -> None:
    """Each bin is weighted by its answers, and the last one takes the rest. Without it, the result is the published number."""
    confidence = np.concatenate([np.full(100, 0.2), np.full(100, 0.5), np.full(150, 0.9)])
    correct = np.concatenate([np.zeros(100), np.ones(100), np.zeros(150)])

    squares = (100 * 0.2**2, 100 * 0.5**2, 150 * 0.9**2)
    mixed = np.random.default_rng(0).permutation(350)
    assert math.sqrt(sum(squares) / 350) == pytest.approx(rms_error(confidence[mixed], correct[mixed]))
    assert math.sqrt(sum(squares[:2]) / 350) == pytest.approx(published(confidence, correct))


def test_perfect_calibration() -> None:
    """Perfect calibration has an error of 0 and an interval that begins at 0."""
    found = calibration([[(1.0, True)]] * 6 + [[(0.0, False)]] * 6)

    assert (0.0, 0.0, 1) == (found.error, found.low, found.bins)
    assert found.high is not None and 0 < found.high < 0.5


def test_a_single_question() -> None:
    """A single question has an error and no interval. No question is refused."""
    found = calibration([[(0.9, False), (0.7, True)], []])

    assert pytest.approx(0.3) == found.error
    assert (None, None) == (found.low, found.high)
    with pytest.raises(ValueError, match="at least one answer with a confidence"):
        calibration([[]])


@pytest.mark.parametrize(
    ("answers", "too_sure"),
    [(12, 0.0), (12, 0.1), (12, 0.4), *(pytest.param(400, each, marks=pytest.mark.slow) for each in (0.0, 0.1, 0.4))],
)
def test_the_interval_contains_the_true_error(answers: int, too_sure: float) -> None:
    """The interval contains the true error of overconfident answers. With several bins, it does so in more than five of six cases."""
    generator = np.random.default_rng(answers)
    holds = 0
    for seed in range(40):
        chances = generator.uniform(0.05, 0.55, answers)
        right = generator.random(answers) < chances
        found = calibration([[(chance + too_sure, bool(each))] for chance, each in zip(chances, right, strict=True)], seed=seed)
        assert found.low is not None and found.high is not None
        assert found.low <= found.error <= found.high
        holds += found.low <= too_sure <= found.high

    assert holds >= (38 if answers < 200 else 34)
