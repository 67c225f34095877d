"""Compares the latencies of a run with a baseline or a limit, and those of two arms that alternated in one session.

The intervals of runs come from moving blocks of rollouts in time order. The interval of two arms is Student's t of one log ratio for
each pair of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple

from pytest_agentbench.stats.decisions import INCONCLUSIVE, Decision, MissingScenarios, check_margin, judge
from pytest_agentbench.stats.power import reach
from pytest_agentbench.stats.quantiles import percentile, student_t_quantile
from pytest_agentbench.stats.series import FEWEST_BLOCKS, CorrelatedPairs, autocorrelation, block_length, effective_count

if TYPE_CHECKING:
    from pytest_agentbench.stats.series import Floats, Integers


#: Independent rollouts that are expected beyond a percentile: a median needs 20 rollouts, p90 100, p99 1000.
_BEYOND = 10

_MORE = "run more trials (--agentbench-trials)"  # advice if there are too few rollouts

_FREEDOM = 1.5  # degrees of freedom per block, because blocks overlap (Welch, Schmeiser 1995)
_INSIDE = 0.9  # share of the way from a percentile to the end of the data that is used to estimate its slope
_LIMIT = 2.0  # standard errors from a percentile at which its slope is measured, about those of a 95 % interval


class RolloutLatencies(NamedTuple):
    """The latencies of one rollout in one metric, in any unit: its own duration, or those of its calls."""

    scenario: str
    trial: int
    began: float  # start of the rollout, by any clock that does not jump during the run
    values: tuple[float, ...]


@dataclass(frozen=True)
class _Measured:
    """The latencies of a run, divided into units (rollouts, or groups of them) in time order."""

    values: Floats
    unit: Integers  # number of the unit that each value is from, counted from 0
    ranks: Integers  # rank of each unit in time order

    @classmethod
    def of(cls, units: Sequence[Sequence[RolloutLatencies]]) -> _Measured:
        import numpy as np

        values = [[value for timing in unit for value in timing.values] for unit in units]
        began = np.array([min(timing.began for timing in unit) for unit in units])
        ranks = np.empty(len(units), dtype=np.int64)
        ranks[np.argsort(began, kind="stable")] = np.arange(len(units))
        return cls(np.concatenate(values), np.repeat(np.arange(len(units)), [len(each) for each in values]), ranks)

    @property
    def means(self) -> Floats:
        """The mean logarithm of each unit's values."""
        import numpy as np

        return np.asarray(np.bincount(self.unit, np.log(self.values)) / np.bincount(self.unit))

    def percentile(self, share: float) -> float:
        """Returns the logarithm of a percentile of all values. `share` is 0.99 for p99."""
        import numpy as np

        return math.log(float(np.quantile(self.values, share)))  # Interpolates in the same way as reports

    def shares(self, share: float) -> Floats:
        """Returns how much each unit raises or lowers the share of values below the percentile. These contributions add up to 0."""
        import numpy as np

        below = (self.values <= np.quantile(self.values, share)).astype(np.float64)
        return np.asarray(np.bincount(self.unit, below - below.mean()) / len(below))

    def slope(self, share: float, side: int, error: float) -> float:
        """Returns how steeply the logarithm of a percentile rises with `share` (0.99 for p99), on one side of it (Woodruff 1952).

        `side` is -1 for below the percentile and 1 for above it. `error` is the standard error of the share, which determines how far
        from the percentile the slope is measured.
        """
        step = min(max(_LIMIT * error, 1 / len(self.values)), _INSIDE * min(share, 1 - share))
        return abs(self.percentile(share + side * step) - self.percentile(share)) / step


def compare_latency(
    new: Iterable[RolloutLatencies], base: Iterable[RolloutLatencies], q: int, margin: float, *, confidence: float = 0.95
) -> Decision:
    """Decides whether the q-th percentile (0 to 100) is at most `margin` (0.1 is 10 %) slower than the baseline's.

    The estimate is the ratio new / base. Rollouts of the same scenario are paired, so differences between scenarios do not widen the
    interval. Load that changes during a run does, because it makes consecutive rollouts similar: the interval is computed from moving
    blocks of consecutive rollouts. A difference in load between the two whole runs is not part of it. Interleaved arms
    (`compare_interleaved`) are needed to separate such a difference from an effect of the code.

    Only scenarios with values in both runs count; the others are in `missing`. The decision is INCONCLUSIVE with too few blocks, or with
    fewer independent rollouts than `fewest_values`. Raises ValueError for a latency that is not finite or not above 0, a q outside
    (0, 100), or a margin below 0.
    """
    check_margin(margin, confidence)
    ours, theirs = by_scenario(new), by_scenario(base)
    check_latencies(q, ours, theirs)
    shared = [scenario for scenario in ours if scenario in theirs]
    known = [scenario for scenario in shared if ours[scenario] and theirs[scenario]]
    missing = MissingScenarios(len(ours) - len(shared), len(theirs) - len(shared), 0, len(shared) - len(known))
    pairs = [(scenario, pair) for scenario in known for pair in _pairs(ours[scenario], theirs[scenario])]
    blank = _blank(1 + margin, confidence, known, ours, theirs, missing)
    if not pairs:
        return replace(blank, reason=_too_few(q, 0))
    one, other = (_Measured.of([pair[side] for _, pair in pairs]) for side in (0, 1))
    return _decided(blank, (one, other), [scenario for scenario, _ in pairs], q)


def latency_limit(run: Iterable[RolloutLatencies], q: int, limit: float, *, confidence: float = 0.95) -> Decision:
    """Decides whether the q-th percentile (0 to 100) is at most `limit`, in the unit of the latencies.

    The interval comes from moving blocks of consecutive rollouts, because changing load makes these similar. Unlike in a comparison with
    a baseline (`compare_latency`), differences between scenarios widen it.
    """
    check_margin(0, confidence)
    ours = by_scenario(run)
    check_latencies(q, ours)
    known = [scenario for scenario in ours if ours[scenario]]
    rollouts = [(scenario, [timing]) for scenario in known for timing in ours[scenario]]
    blank = _blank(limit, confidence, known, ours, {}, MissingScenarios(unmeasured=len(ours) - len(known)))
    if not rollouts:
        return replace(blank, reason=_too_few(q, 0))
    return _decided(blank, (_Measured.of([timings for _, timings in rollouts]),), [scenario for scenario, _ in rollouts], q)


def fewest_values(q: int) -> int:
    """Returns the number of independent values that the q-th percentile needs, so that ten are expected beyond it."""
    return math.ceil(100 * _BEYOND / min(q, 100 - q))


def by_scenario(timings: Iterable[RolloutLatencies]) -> dict[str, list[RolloutLatencies]]:
    """Returns scenario -> its rollouts with values, in time order."""
    known: dict[str, list[RolloutLatencies]] = {}
    for timing in sorted(timings, key=lambda each: each.began):
        known.setdefault(timing.scenario, []).extend((timing,) if timing.values else ())
    return known


def check_latencies(q: int, *runs: Mapping[str, Sequence[RolloutLatencies]]) -> None:
    """Raises ValueError for a latency that is not finite or not above 0, or a percentile outside (0, 100)."""
    if not 0 < q < 100:
        raise ValueError(f"percentile {q} must be greater than 0 and less than 100")
    for value in (value for run in runs for timings in run.values() for timing in timings for value in timing.values):
        if not 0 < value < math.inf:
            raise ValueError(f"latency {value} must be finite and greater than 0")


def _pairs(
    ours: Sequence[RolloutLatencies], theirs: Sequence[RolloutLatencies]
) -> list[tuple[Sequence[RolloutLatencies], Sequence[RolloutLatencies]]]:
    """Pairs the rollouts of one scenario in time order. If one run has more, several of its rollouts are paired with one of the other."""
    count = min(len(ours), len(theirs))
    parts = [[each[len(each) * at // count : len(each) * (at + 1) // count] for at in range(count)] for each in (ours, theirs)]
    return [*zip(*parts, strict=True)]


def _blank(
    threshold: float,
    confidence: float,
    known: Sequence[str],
    new: Mapping[str, Sequence[RolloutLatencies]],
    base: Mapping[str, Sequence[RolloutLatencies]],
    missing: MissingScenarios,
) -> Decision:
    calls = [sum(len(timing.values) for scenario in known for timing in run.get(scenario, ())) for run in (new, base)]
    return Decision(INCONCLUSIVE, threshold, confidence, len(known), (calls[0], calls[1]), missing)


def _decided(blank: Decision, runs: tuple[_Measured, ...], scenarios: Sequence[str], q: int) -> Decision:
    """Returns the decision `blank` with the interval and the verdict filled in, or with a reason if there are too few values.

    `runs` is one run, for a comparison with a limit, or a run and its baseline with paired units (rollouts or groups of them).
    """
    import numpy as np

    series, ranks = _series(runs), _orders(runs)
    ordered = [series[np.argsort(each)] for each in ranks]
    length = max(map(block_length, ordered))
    correlation = max(map(autocorrelation, ordered))
    if (
        reason := _too_few(q, len(series))
        or _too_few_blocks(len(series), length, correlation)
        or _too_few_independent(q, len(series), correlation)
    ):
        return replace(blank, reason=reason)
    low, estimate, high = _interval(runs, ranks, scenarios, length, q / 100, blank.confidence)
    relative = len(runs) == 2
    distance = high - estimate if relative else math.exp(high) - math.exp(estimate)
    detectable = reach(distance, distance / _quantile(len(series), length, scenarios, blank.confidence))
    return replace(
        blank,
        verdict=judge(math.exp(low), math.exp(high), blank.threshold, higher_is_better=False),
        estimate=math.exp(estimate),
        low=math.exp(low),
        high=math.exp(high),
        method=f"moving blocks of {length}",
        detectable=math.exp(detectable) if relative else detectable,
    )


def _series(runs: Sequence[_Measured]) -> Floats:
    """Returns the mean log latency of each unit, less that of its partner if there are two runs."""
    return runs[0].means if len(runs) == 1 else runs[0].means - runs[1].means


def _orders(runs: Sequence[_Measured]) -> list[Integers]:
    """Returns for each run the order of its values in time (their ranks). If two runs have the same order, returns it once."""
    if len(runs) == 2 and (runs[0].ranks == runs[1].ranks).all():
        return [runs[0].ranks]
    return [run.ranks for run in runs]


def _interval(
    runs: Sequence[_Measured], ranks: Sequence[Integers], scenarios: Sequence[str], length: int, share: float, confidence: float
) -> tuple[float, float, float]:
    """Returns (low, estimate, high) of the logarithm of a percentile, or of the ratio of two percentiles."""
    import numpy as np

    places: dict[str, list[int]] = {}
    for place, scenario in enumerate(scenarios):
        places.setdefault(scenario, []).append(place)
    groups = [*places.values()]
    count, quantile = len(scenarios), _quantile(len(scenarios), length, scenarios, confidence)
    shares = [run.shares(share) for run in runs]
    errors = [math.sqrt(CorrelatedPairs.of([run.ranks], length, groups).variance(each)) for run, each in zip(runs, shares, strict=True)]
    together = CorrelatedPairs.of(ranks, length, groups)
    signs = (1, -1)[: len(runs)]
    estimate = sum(sign * run.percentile(share) for sign, run in zip(signs, runs, strict=True))
    bounds = []
    for side in (-1, 1):
        parts = np.zeros(count)
        for sign, run, each, error in zip(signs, runs, shares, errors, strict=True):
            parts += sign * run.slope(share, side * sign, error) * each
        missed = count / (count - length)  # Corrects for the mean, which is estimated from the same values
        bounds.append(estimate + side * quantile * math.sqrt(together.variance(parts - parts.mean()) * missed))
    return bounds[0], estimate, bounds[1]


def _quantile(count: int, length: int, scenarios: Sequence[str], confidence: float) -> float:
    return student_t_quantile((1 + confidence) / 2, max(1.0, min(_FREEDOM * count / length - 1, len(set(scenarios)) - 1)))


def _too_few(q: int, count: int) -> str:
    needed = fewest_values(q)
    return "" if count >= needed else f"p{q} needs {needed} independent rollouts, but there are {count}; {_MORE}"


def _too_few_independent(q: int, count: int, correlation: float) -> str:
    needed, independent = fewest_values(q), effective_count(count, correlation)
    if independent >= needed:
        return ""
    return f"p{q} needs {needed} independent rollouts, but {_alike(correlation)}, so these {count} count as only {independent}; {_MORE}"


def _too_few_blocks(count: int, length: int, correlation: float) -> str:
    if count >= FEWEST_BLOCKS * length:
        return ""
    return (
        f"{_alike(correlation)}, so the {count} rollouts count as only {count // length} independent blocks of {length}, "
        f"but {FEWEST_BLOCKS} are needed; {_MORE}, or compare two interleaved arms (--agentbench-ab)"
    )


def _alike(correlation: float) -> str:
    return f"rollouts that ran at about the same time have similar latencies (autocorrelation {correlation:.2f})"


FEWEST_PAIRS = 4  # fewest pairs of blocks for a decision

LatencyPair = tuple[Sequence[RolloutLatencies], Sequence[RolloutLatencies]]  # rollouts of a pair of blocks: of the new arm, of the base arm


def compare_interleaved(
    new: Iterable[RolloutLatencies], base: Iterable[RolloutLatencies], q: int | None, *, confidence: float = 0.95
) -> Decision:
    """Decides whether the q-th percentile (0 to 100) is lower or higher than the base arm's, by the ratio new / base against 1.

    If q is None, it is the mean.

    The two blocks of a pair run the same rollouts, one arm right after the other. So changing load affects both and cancels out. Unlike a
    comparison of two runs, the decision is therefore about the arms themselves. Raises ValueError for a latency that is not finite or not
    above 0, and for a q outside (0, 100).
    """
    new, base = [*new], [*base]
    ours, theirs = by_scenario(new), by_scenario(base)
    check_latencies(50 if q is None else q, ours, theirs)
    shared = [scenario for scenario in ours if scenario in theirs]
    pairs = [pair for pair in block_pairs(new, base) if all(any(timing.values for timing in side) for side in pair)]
    known = {timing.scenario for pair in pairs for timing in pair[0]}
    missing = MissingScenarios(len(ours) - len(shared), len(theirs) - len(shared), 0, len(shared) - len(known))
    calls = [sum(len(timing.values) for pair in pairs for timing in pair[side]) for side in (0, 1)]
    blank = Decision(INCONCLUSIVE, 1.0, confidence, len(known), (calls[0], calls[1]), missing)
    if reason := _too_few_pairs(q, pairs):
        return replace(blank, reason=reason)
    return _decided_by_pairs(blank, [_log_ratio(pair, q) for pair in pairs])


def block_pairs(new: Iterable[RolloutLatencies], base: Iterable[RolloutLatencies]) -> list[LatencyPair]:
    """Returns the rollouts of each pair of blocks, as far as they ran in both arms.

    Arms alternate (ABBA BAAB), so in time order there are stretches of one arm with one or two blocks. Two rollouts of the same scenario
    and trial belong to the same pair of blocks if their stretches are adjacent.
    """
    arms = [{(each.scenario, each.trial): each for each in arm} for arm in (new, base)]
    stretches = [_stretches(arms, side) for side in (0, 1)]
    pairs: dict[tuple[int, int], tuple[list[RolloutLatencies], list[RolloutLatencies]]] = {}
    for key in (key for key in arms[0] if key in arms[1]):
        place = stretches[0][key], stretches[1][key]
        if abs(place[0] - place[1]) == 1:
            for side, timings in enumerate(pairs.setdefault(place, ([], []))):
                timings.append(arms[side][key])
    return [*pairs.values()]


def _stretches(arms: Sequence[Mapping[tuple[str, int], RolloutLatencies]], side: int) -> dict[tuple[str, int], int]:
    """Returns (scenario, trial) of each rollout of the arm `arms[side]` -> number of its stretch.

    A stretch is a sequence of rollouts of one arm. The stretches of both arms are numbered together, in time order.
    """
    ordered = sorted((timing.began, at, key) for at, arm in enumerate(arms) for key, timing in arm.items())
    runs = groupby(ordered, key=lambda each: each[1])
    return {key: number for number, (at, run) in enumerate(runs) if at == side for _, _, key in run}


def _log_ratio(pair: LatencyPair, q: int | None) -> float:
    sides = ([value for timing in side for value in timing.values] for side in pair)
    ours, theirs = (fmean(values) if q is None else percentile(values, q) for values in sides)
    assert ours is not None and theirs is not None
    return math.log(ours / theirs)


def _decided_by_pairs(blank: Decision, ratios: Sequence[float]) -> Decision:
    estimate, error = fmean(ratios), stdev(ratios) / math.sqrt(len(ratios))
    distance = student_t_quantile((1 + blank.confidence) / 2, len(ratios) - 1) * error
    low, high = math.exp(estimate - distance), math.exp(estimate + distance)
    return replace(
        blank,
        verdict=judge(low, high, blank.threshold, higher_is_better=False),
        estimate=math.exp(estimate),
        low=low,
        high=high,
        method=f"t of {len(ratios)} interleaved pairs",
        detectable=math.exp(reach(distance, error)),
    )


def _too_few_pairs(q: int | None, pairs: Sequence[LatencyPair]) -> str:
    rollouts = min((sum(bool(timing.values) for pair in pairs for timing in pair[side]) for side in (0, 1)), default=0)
    if rollouts < (needed := fewest_values(50 if q is None else q)):
        return f"{'a mean' if q is None else f'p{q}'} needs {needed} rollouts of each arm, but there are {rollouts}; {_MORE}"
    if len(pairs) < FEWEST_PAIRS:
        return (
            f"the arms alternated in {len(pairs)} pair{'s' * (len(pairs) != 1)} of blocks, but {FEWEST_PAIRS} are needed; "
            f"{_MORE}, or use a lower --agentbench-concurrency"
        )
    return ""
