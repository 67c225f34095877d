"""Metrics of measured and simulated calls, and the ranking of stack settings by them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.metrics.columns import FrameTable
from pytest_agentbench.metrics.performance import objectives_of
from pytest_agentbench.metrics.slice_metrics import hit_ratio, ratio
from pytest_agentbench.metrics.terms import GOOD, verdicts_of
from pytest_agentbench.records import Json
from pytest_agentbench.stats.quantiles import LatencySpread, latency_spread, needed


@dataclass(frozen=True)
class SettingMetric:
    """The definition of a metric by which settings of a stack are compared."""

    name: str  # name of the field of Figures
    title: str
    unit: str  # unit; empty for a share
    digits: int  # decimal places
    rising: bool = False  # whether higher is better
    share: bool = False  # whether settings are compared by difference instead of ratio


#: The metrics in the order of the table.
MEASURES = (
    SettingMetric("goodput_per_s", "goodput", "calls/s", 2, rising=True),
    SettingMetric("ttft_p50_ms", "TTFT p50", "ms", 1),
    SettingMetric("ttft_p99_ms", "TTFT p99", "ms", 1),
    SettingMetric("tpot_p50_ms", "TPOT p50", "ms", 2),
    SettingMetric("e2e_p50_ms", "E2E p50", "ms", 1),
    SettingMetric("e2e_p99_ms", "E2E p99", "ms", 1),
    SettingMetric("hit_ratio", "hit ratio", "", 3, rising=True, share=True),
    SettingMetric("duration_s", "duration", "s", 1),
)

#: Objective -> option of the simulator. The simulator's `itl` is the mean of a call, which is called TPOT here.
OBJECTIVES: Mapping[str, str] = {"ttft": "--sla-ttft-ms", "tpot": "--sla-itl-ms", "e2e": "--sla-e2e-ms"}


@dataclass(frozen=True)
class Figures:
    """The metrics of a run's calls, measured in the run or simulated with one setting, as far as they are known."""

    goodput_per_s: float | None  # calls that meet the objectives, per second of `duration_s`; None without objectives
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None  # None for fewer than 100 calls
    tpot_p50_ms: float | None
    e2e_p50_ms: float | None
    e2e_p99_ms: float | None
    hit_ratio: float | None  # prompt tokens found in prefix caches / prompt tokens
    duration_s: float  # seconds from the first request to the last answer
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # metric -> 95 % interval, if it has one

    def value(self, measure: SettingMetric) -> float | None:
        """Returns the value of the metric that `measure` defines, or None if it is unknown."""
        value: float | None = getattr(self, measure.name)
        return value


def supported(objectives: Mapping[str, float]) -> Mapping[str, float]:
    """Returns the latency objectives unchanged. Raises ConfigError if the simulator does not support one, or the combination."""
    if unknown := [name for name in objectives if name not in OBJECTIVES]:
        raise ConfigError(f"the simulator does not support the objective {unknown[0]}; use --slo with {', '.join(OBJECTIVES)}")
    if "e2e" in objectives and len(objectives) > 1:
        raise ConfigError("the simulator supports either the objective e2e, or ttft and tpot; choose with --slo")
    return objectives


def replayable(calls: FrameTable) -> FrameTable:
    """Returns the calls that the trace of a run contains: successful agent calls with a known time."""
    good = np.array([kind is None for kind in calls["error_kind"]], bool)
    return calls.where(good & calls["measured"] & (calls["kind"] == "scenario") & ~np.isnan(calls["sent_s"]))


def measured(calls: FrameTable, objectives: Mapping[str, float], server_hits: float | None) -> Figures:
    """Returns the measured metrics of the replayed calls.

    `server_hits` is the server's own hit ratio, used if the usage of the calls does not report cached tokens.
    """
    spreads = {name: latency_spread(calls[f"{name}_ms"]) for name in ("ttft", "tpot", "e2e")}
    good = (
        verdicts_of(calls.__getitem__, np.zeros(len(calls), bool), objectives_of(objectives)) == GOOD
    )  # those that failed are not replayed
    duration_s = float(np.nanmax(calls["ended_s"]) - np.nanmin(calls["sent_s"]))
    hits = hit_ratio(calls.__getitem__)
    return Figures(
        goodput_per_s=ratio(int(good.sum()), duration_s) if objectives else None,
        **{f"{name}_p50_ms": spread.p50 if spread else None for name, spread in spreads.items()},
        **{f"{name}_p99_ms": spread.p99 if spread else None for name, spread in spreads.items() if name != "tpot"},
        hit_ratio=server_hits if hits is None else hits,
        duration_s=duration_s,
        intervals=dict(_intervals(spreads)),
    )


def _intervals(spreads: Mapping[str, LatencySpread | None]) -> list[tuple[str, tuple[float, float]]]:
    known = [(name, spread.intervals.get(q), q) for name, spread in spreads.items() if spread for q in ("p50", "p99")]
    return [(f"{name}_{q}_ms", interval) for name, interval, q in known if interval is not None]


def simulated(report: Json, calls: int, objectives: Mapping[str, float]) -> Figures:
    """Returns the metrics in a report of the simulator. Raises BackendError if one is missing, or if calls were not replayed."""
    try:
        if (done := report["completed_requests"]) != calls:
            raise BackendError(f"the simulator replayed only {done} of {calls} calls; try more --kv-blocks, in case a call does not fit")
        return Figures(
            goodput_per_s=float(report["goodput_request_throughput_rps"]) if objectives else None,
            ttft_p50_ms=float(report["median_ttft_ms"]),
            ttft_p99_ms=float(report["p99_ttft_ms"]) if calls >= needed(99) else None,
            tpot_p50_ms=float(report["median_tpot_ms"]),
            e2e_p50_ms=float(report["median_e2e_latency_ms"]),
            e2e_p99_ms=float(report["p99_e2e_latency_ms"]) if calls >= needed(99) else None,
            hit_ratio=float(report["prefix_cache_reused_ratio"]),
            duration_s=float(report["duration_ms"]) / 1e3,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BackendError(
            f"the simulator's report does not have the format of Dynamo 1.4.2: {error!r}; run `agentbench env create dynamo-simulator`"
        ) from error


LEAST = 0.05  # settings that differ by less are never ranked, because two replays of one setting differ by as much


def gap(one: float, other: float, *, share: bool) -> float:
    """Returns the distance of two values of a metric: of shares the difference, of others the logarithm of their ratio."""
    if one == other:
        return 0.0
    if share:
        return abs(one - other)
    return abs(math.log(one / other)) if min(one, other) > 0 else math.inf


def distance(simulated: float, measured: float, interval: tuple[float, float] | None = None, *, share: bool = False) -> float:
    """Returns the largest error of a simulated value: its distance from the farther end of the measured interval, at least LEAST."""
    return max(LEAST, *(gap(simulated, end, share=share) for end in (measured, *(interval or ()))))


def ranks(values: Sequence[float], tolerance: float, *, rising: bool = False, share: bool = False) -> list[int]:
    """Returns the rank of each value: 1 + the number of values that are better by more than the tolerance."""
    return [1 + sum(_beats(other, value, rising) and gap(other, value, share=share) > tolerance for other in values) for value in values]


def _beats(one: float, other: float, rising: bool) -> bool:
    return one > other if rising else one < other


def spread(values: Sequence[float], *, share: bool = False) -> float:
    """Returns the distance between the least and the greatest value of a metric: the difference of shares, else the log of their ratio."""
    return gap(min(values), max(values), share=share)


def percentage(size: float, *, share: bool) -> str:
    """Formats a distance as returned by `gap`: `12 %` for ratios, `0.031` for shares."""
    if math.isinf(size):
        return "beyond any ratio"
    return f"{size:.3f}" if share else f"{math.expm1(size):.0%}".replace("%", " %")


def change(simulated: float, measured: float, *, share: bool) -> str:
    """Formats the change from the measured to the simulated value: `+32 %`, or `-0.004` for shares."""
    if share:
        return f"{simulated - measured:+.3f}"
    return f"{simulated / measured - 1:+.0%}".replace("%", " %") if measured else "measured nothing"
