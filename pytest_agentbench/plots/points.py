"""What pictures of rollouts show: for each rollout its score, and six measures of what it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.metrics.columns import FrameTable
from pytest_agentbench.plots.colour_settings import RunSuite, chosen_setting
from pytest_agentbench.records import Json, RolloutKey, arm_of
from pytest_agentbench.tables import Tables

MOST_COLOURS = 8  # kinds that colours tell apart, for everybody

#: Measures of a rollout's calls, each the median over its calls that went well: name -> column of the table `calls`.
OF_CALLS: Mapping[str, str] = {"ttft": "ttft_ms", "itl": "itl_median_ms", "tps": "call_output_tokens_per_s"}

PointKey = tuple[str, str, str, str, int]  # run, suite, scenario, variant, trial


@dataclass(frozen=True)
class Points:
    """Columns of one length, a row for each rollout that has the score. NaN where a measure is not known."""

    score: str  # name of the score
    values: NDArray[np.float64]  # the score
    measures: Mapping[str, NDArray[np.float64]]  # ttft and itl in ms, tps in 1/s, total_tokens, llm_calls, total_duration in s
    color_by: str  # name of the column that colours are of
    colours: NDArray[Any]  # its values: numbers, or names
    calls: Mapping[str, NDArray[np.float64]]  # ttft, itl and tps of single calls of these rollouts
    keys: Sequence[PointKey]  # what each row is of
    calls_of: Sequence[int]  # the row of the rollout of each single call

    @property
    def kinds(self) -> list[str] | None:
        """The names that colours tell apart, in their order; None of numbers."""
        return None if self.colours.dtype.kind == "f" else sorted({*self.colours})


def points_of(tables: Tables, score: str, color_by: str = "run", settings: Mapping[RunSuite, Json] = MappingProxyType({})) -> Points:
    """The points of some runs; raises ConfigError for a score that they do not have, and for what is no column and none of the settings."""
    scores = _scores(tables.scores, score)
    rollouts = tables.rollouts.where(np.array([key in scores for key in _keys(tables.rollouts)], dtype=bool))
    keys = _keys(rollouts)
    calls = tables.calls.where(_good(tables.calls))
    rows: dict[PointKey, list[int]] = {key: [] for key in keys}
    for row, key in enumerate(_keys(calls)):
        if key in rows:
            rows[key].append(row)
    measures = {name: np.array([_median(calls[column], rows[key]) for key in keys]) for name, column in OF_CALLS.items()}
    measures |= {
        "total_tokens": rollouts["output_tokens"],
        "llm_calls": rollouts["calls"].astype(float),
        "total_duration": rollouts["rollout_ms"] / 1e3,
    }
    chosen = [row for key in keys for row in rows[key]]
    calls_of = [place for place, key in enumerate(keys) for _ in rows[key]]
    colours = _colours(rollouts, color_by, settings)
    single = {name: calls[column][chosen] for name, column in OF_CALLS.items()}
    return Points(score, np.array([scores[key] for key in keys]), measures, color_by, colours, single, keys, calls_of)


def ttfts_of_arms(tables: Tables, run: str) -> dict[str, float]:
    """Arm of a run -> the median TTFT of its calls in ms; without those that have no such call."""
    calls = tables.calls.where(_good(tables.calls) & (tables.calls["run"] == run))
    arms = np.array([arm_of(variant) for variant in calls["variant"]], dtype=object)
    medians = {arm: _median(calls["ttft_ms"], [*np.flatnonzero(arms == arm)]) for arm in sorted({*arms})}
    return {arm: median for arm, median in medians.items() if not np.isnan(median)}


def unscored(tables: Tables, score: str) -> list[str]:
    """`RUN SUITE`, with the variant where there are several, of which no rollout has the score."""
    has_it = {key[:2] + key[3:4] for key in _scores(tables.scores, score)}
    all_of_them = dict.fromkeys((key[0], key[1], key[3]) for key in _keys(tables.rollouts.where(tables.rollouts["kind"] == "scenario")))
    return [f"{run} {RolloutKey(suite, '', variant).group}" for run, suite, variant in all_of_them if (run, suite, variant) not in has_it]


def _keys(table: FrameTable) -> list[PointKey]:
    return [*zip(*(table[name].tolist() for name in ("run", "suite", "scenario", "variant", "trial")), strict=True)]


def _scores(scores: FrameTable, name: str) -> dict[PointKey, float]:
    """Rollout -> its score."""
    whole = np.array([part is None for part in scores["part"]], dtype=bool) & ~np.isnan(scores["value"])
    named = scores.where(whole & (scores["score"] == name))
    if not len(named):
        known = sorted({*scores.where(whole)["score"]})
        raise ConfigError(
            unknown_name("score", name, known) if known else "no rollout of these runs has a score, so there is nothing to draw"
        )
    return dict(zip(_keys(named), named["value"].tolist(), strict=True))


def _good(calls: FrameTable) -> NDArray[np.bool_]:
    """Those of a run's timings that went well."""
    good: NDArray[np.bool_] = calls["is_successful"] & calls["measured"]
    return good


def _median(values: NDArray[np.float64], rows: list[int]) -> float:
    chosen = values[rows]
    known = chosen[~np.isnan(chosen)]
    return float(np.median(known)) if len(known) else float("nan")


def _colours(rollouts: FrameTable, column: str, settings: Mapping[RunSuite, Json]) -> NDArray[Any]:
    """The values of a column or a setting; raises ConfigError for one that is not there, or has more names than colours tell apart."""
    values = rollouts[column] if column in rollouts.columns else _of_setting(rollouts, column, settings)
    if values.dtype.kind in "fi":
        return values.astype(float)
    names = np.array([str(value) for value in values], dtype=object)
    if len(kinds := {*names}) > MOST_COLOURS:
        raise ConfigError(f"{column} has {len(kinds)} values, and colours tell {MOST_COLOURS} apart; choose another column with --color-by")
    return names


def _of_setting(rollouts: FrameTable, name: str, settings: Mapping[RunSuite, Json]) -> NDArray[Any]:
    """The value of a setting where each rollout ran: numbers where all are."""
    chosen = chosen_setting(settings, name)
    if chosen is None:
        known = [*rollouts.columns, *sorted({path for of_suite in settings.values() for path in of_suite})]
        raise ConfigError(unknown_name("column of rollouts or setting", name, known))
    values = [chosen.get((key[0], RolloutKey(*key[1:]).group)) for key in _keys(rollouts)]
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return np.array(values, dtype=float)
    return np.array(["none" if value is None else str(value) for value in values], dtype=object)
