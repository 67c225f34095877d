"""RMS calibration error with its interval: are answers with a stated confidence of 80 % right in 80 % of cases?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_agentbench.stats.means import mean_interval

if TYPE_CHECKING:
    from pytest_agentbench.stats.series import Floats

BIN = 100  # number of answers in a bin
RESAMPLES = 999


@dataclass(frozen=True)
class Calibration:
    """An RMS calibration error with its interval, both from 0 to 1."""

    error: float
    low: float | None  # lower end of the interval; None for answers to a single question
    high: float | None  # upper end of the interval
    bins: int  # number of bins


def rms_error(confidences: Floats, correct: Floats, size: int = BIN) -> float:
    """Returns the root mean square, over answers, of the difference between a bin's mean confidence and its share of right answers.

    Answers are ordered by confidence and divided into bins of `size`; the last bin takes the rest (Hendrycks et al. 2019, arXiv
    1812.04606, tools `calib_err`, which Humanity's Last Exam uses with 100). Their code leaves the last bin out of the sum, and
    returns no value for fewer than `size` answers. Here every answer counts, and fewer answers form one bin.
    """
    import numpy as np

    order = np.argsort(confidences, kind="stable")
    starts = [number * size for number in range(bins(len(order), size))]
    gaps = np.add.reduceat((confidences - correct)[order], starts)
    sizes = np.diff([*starts, len(order)])
    return math.sqrt(float((gaps**2 / sizes).sum()) / len(order))


def bins(answers: int, size: int = BIN) -> int:
    """Returns into how many bins the calibration error divides this many answers, at least one."""
    return max(1, answers // size)


def calibration(questions: Sequence[Sequence[tuple[float, bool]]], width: float = 0.95, seed: int = 0) -> Calibration:
    """Returns the calibration error of the answers to each question, given as (confidence from 0 to 1, whether it is right).

    With one bin the error is the distance between two means, and its interval follows from that of their difference
    (`means.mean_interval`). With several bins the interval is a bootstrap of whole questions. Raises ValueError without answers.
    """
    import numpy as np

    samples = [np.array(each, dtype=np.float64) for each in questions if each]
    if not samples:
        raise ValueError("the calibration error needs at least one answer with a confidence")
    everything = np.concatenate(samples)
    error, count = rms_error(everything[:, 0], everything[:, 1]), bins(len(everything))
    if len(samples) < 2:
        return Calibration(error, None, None, count)
    low, high = _of_one_bin(questions, width) if count == 1 else _reflected(samples, error, width, seed)
    return Calibration(error, min(low, error), max(high, error), count)


def _of_one_bin(questions: Sequence[Sequence[tuple[float, bool]]], width: float) -> tuple[float, float]:
    """Returns the interval of the error if all answers are in one bin: the absolute difference of confidence and accuracy."""
    gaps = [(number, sure - right) for number, answers in enumerate(questions) for sure, right in answers]
    signed = mean_interval([gap for _, gap in gaps], [number for number, _ in gaps], width, (-1.0, 1.0))
    assert signed.low is not None and signed.high is not None  # Two questions have an interval
    ends = sorted((abs(signed.low), abs(signed.high)))
    return (0.0 if signed.low <= 0 <= signed.high else ends[0]), ends[1]


def _reflected(samples: Sequence[Floats], error: float, width: float, seed: int) -> tuple[float, float]:
    """Returns the basic bootstrap interval of the error, computed from squared errors (Davison and Hinkley 1997, 5.2.1).

    Its ends are square roots of 2 e^2 less a quantile of the resamples' squared errors, where e is the measured error, or 0 if that is
    negative. Resampling makes squared errors larger, by about as much as sampling has already done, and the reflection corrects both.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    squares = []
    for _ in range(RESAMPLES):
        drawn = np.concatenate([samples[index] for index in generator.integers(0, len(samples), len(samples))])
        squares.append(rms_error(drawn[:, 0], drawn[:, 1]) ** 2)
    most, least = np.quantile(squares, [(1 + width) / 2, (1 - width) / 2])
    return math.sqrt(max(0.0, 2 * error**2 - float(most))), math.sqrt(max(0.0, 2 * error**2 - float(least)))
