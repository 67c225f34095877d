"""What events read late do to the timings of a run: each percentile as measured, beside the same if they were spread evenly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_agentbench.metrics.stamps import OF_STAMPS
from pytest_agentbench.metrics.terms import Objective, misses
from pytest_agentbench.stats.percentiles import HIGH, percentile

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Rows, Slice
    from pytest_agentbench.stats.arrays import Floats


def effects(part: Slice) -> dict[str, float]:
    """Returns `itl.p99` -> how far the percentile is from that of events spread evenly, as a share of the latter.

    Every share is 0 if no event was late.
    """
    if not part.successful_calls["late_events"].any():
        return {f"{name}.p{q}": 0.0 for name in OF_STAMPS for q in HIGH}
    return {
        f"{name}.p{q}": _difference(percentile(measured, q), percentile(evened, q))
        for name, (measured, evened) in _timings(part).items()
        for q in HIGH
    }


def _timings(part: Slice) -> dict[str, tuple[Floats, Floats]]:
    """Returns metric -> milliseconds of calls or of their events, as measured and spread evenly."""
    import numpy as np

    from pytest_agentbench.metrics.frame import milliseconds

    calls = part.successful_calls
    on_time = calls.mask & (part.frame.calls["late_events"] == 0)
    gaps = part.frame.events("itl")
    evened = np.concatenate([gaps.of(on_time), part.frame.evened.of(calls.mask & ~on_time)])
    of_events = milliseconds(gaps.of(calls.mask)), milliseconds(evened)
    return {name: (calls[f"{name}_ms"], _evened(calls, name, f"{name}_ms")) for name in ("ttft", "tpot")} | {"itl": of_events}


def _evened(calls: Rows, name: str, column: str) -> Floats:
    """Returns a column of calls as it would be if late events were spread evenly."""
    values = calls[column].copy()
    is_late = calls["late_events"] > 0
    values[is_late] = calls[f"evened_{name}_ms"][is_late]
    return values


def flipped(part: Slice) -> dict[str, float]:
    """Returns objective -> share of the calls with output that late events may have put on the wrong side of it."""
    calls = part.successful_calls
    timed = int((calls["timed_events"] > 0).sum())
    found = sorted((each for each in part.terms.objectives if each.name in OF_STAMPS), key=lambda each: each.name)
    return {each.name: _flips(calls, each) / timed if timed else 0.0 for each in found}


def _flips(calls: Rows, objective: Objective) -> int:
    measured = misses(calls.__getitem__, objective)
    evened = misses(lambda column: _evened(calls, objective.name, column), objective)
    return int((measured != evened).sum())


def _difference(measured: float | None, evened: float | None) -> float:
    if not measured or not evened:
        return 0.0 if measured == evened else 1.0
    return abs(measured - evened) / evened
