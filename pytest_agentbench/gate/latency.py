"""Latencies of a run against those of its baseline, or against a limit: medians and p90, by a bootstrap that keeps rollouts whole."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_agentbench.gate.bootstrap import Resampled, block_percentile, log_ratio
from pytest_agentbench.gate.decisions import INCONCLUSIVE, Decision, Missing, check_margin, judge
from pytest_agentbench.gate.power import reach

#: Values beyond a percentile that there should be scenarios for: 20 for a median, 100 for p90, 1000 for p99.
_BEYOND = 10

Calls = Mapping[str, Sequence[float]]  # scenario -> its calls' latencies, of all rollouts of it, any unit


def compare_latency(new: Calls, base: Calls, q: int, margin: float, *, confidence: float = 0.95, seed: int = 0) -> Decision:
    """Is the q-th percentile (0 to 100) at most `margin` (0.1 is 10 %) slower than the baseline's? A ratio, new / base.

    Calls of one rollout follow each other, and rollouts of one scenario have the same prompts, so scenarios are drawn as whole blocks,
    in both runs together (Davison and Hinkley 1997, 3.8). ln(new / base) is bootstrapped, because ratios are symmetric there. What slows
    all calls of a run down together (another tenant, a cold cache) is in no bootstrap: interleave the runs.

    Only scenarios with calls in both runs count; the others are in `missing`. Fewer scenarios than 10 / P(beyond) decide nothing.
    Raises ValueError for a latency that is not finite or not above 0, a q outside (0, 100), a margin below 0.
    """
    check_margin(margin, confidence)
    _check(q, new, base)
    shared = [scenario for scenario in new if scenario in base]
    blocks = [scenario for scenario in shared if new[scenario] and base[scenario]]
    missing = Missing(len(new) - len(shared), len(base) - len(shared), 0, len(shared) - len(blocks))
    blank = _blank(1 + margin, confidence, q, blocks, new, base, missing)
    if blank.reason:
        return blank
    found = log_ratio([list(new[each]) for each in blocks], [list(base[each]) for each in blocks], q, confidence, seed)
    ratio = Resampled(math.exp(found.estimate), math.exp(found.low), math.exp(found.high), found.error)
    return _decided(blank, ratio, relative=True)


def latency_limit(run: Calls, q: int, limit: float, *, confidence: float = 0.95, seed: int = 0) -> Decision:
    """Is the q-th percentile at most `limit`, in the calls' unit? As above, without a baseline."""
    check_margin(0, confidence)
    _check(q, run)
    blocks = [scenario for scenario in run if run[scenario]]
    blank = _blank(limit, confidence, q, blocks, run, {}, Missing(unmeasured=len(run) - len(blocks)))
    if blank.reason:
        return blank
    return _decided(blank, block_percentile([list(run[each]) for each in blocks], q, confidence, seed), relative=False)


def fewest_scenarios(q: int) -> int:
    """How many scenarios the q-th percentile needs: ten of them are expected beyond it."""
    return math.ceil(100 * _BEYOND / min(q, 100 - q))


def _blank(threshold: float, confidence: float, q: int, blocks: Sequence[str], new: Calls, base: Calls, missing: Missing) -> Decision:
    needed = fewest_scenarios(q)
    return Decision(
        verdict=INCONCLUSIVE,
        threshold=threshold,
        confidence=confidence,
        n=len(blocks),
        trials=(sum(len(new[each]) for each in blocks), sum(len(base.get(each, ())) for each in blocks)),
        reason="" if len(blocks) >= needed else f"p{q} needs {needed} scenarios with calls, and there are {len(blocks)}",
        missing=missing,
    )


def _decided(blank: Decision, found: Resampled, *, relative: bool) -> Decision:
    distance = math.log(found.high / found.estimate) if relative else found.high - found.estimate
    detectable = reach(distance, found.error)
    return replace(
        blank,
        verdict=judge(found.low, found.high, blank.threshold, higher_is_better=False),
        estimate=found.estimate,
        low=found.low,
        high=found.high,
        method="block bootstrap",
        detectable=math.exp(detectable) if relative else detectable,
    )


def _check(q: int, *runs: Calls) -> None:
    if not 0 < q < 100:
        raise ValueError(f"a percentile is between 0 and 100, not {q}")
    for call in (call for run in runs for calls in run.values() for call in calls):
        if not 0 < call < math.inf:
            raise ValueError(f"{call} is not a latency")
