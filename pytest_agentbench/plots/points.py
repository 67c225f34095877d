"""The data behind scatter plots and histograms: a score and six measures of each rollout, its colour, and CSV files of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.exports.csv_files import write_rows
from pytest_agentbench.metrics.columns import FrameTable
from pytest_agentbench.records import Json, RolloutKey, arm_of
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.suites.arms import CONCURRENCY, OF_AGENT, OF_BACKEND
from pytest_agentbench.tables import Tables

RunSuite = tuple[str, str]  # (run, suite under one variant)


def settings_of(runs: Mapping[str, Run]) -> dict[RunSuite, Json]:
    """Returns (run, suite) -> its settings, by the paths that --agentbench-set takes, such as `agent.temperature` and `concurrency`."""
    return {(name, group): dict(_settings(run, group)) for name, run in runs.items() for group in run.suites}


def _settings(run: Run, group: str) -> Iterator[tuple[str, Any]]:
    suite, arm = run.suites[group], run.arm_of(group)
    yield CONCURRENCY, run.concurrency_of(group)
    for path, value in _flat(run.backend.described(suite.variant)):
        yield f"{OF_BACKEND}{path}", value
    for path, value in _flat(suite.agent):
        yield f"{OF_AGENT}{path}", value
    for path, value in arm.backend_changes if arm else ():
        yield f"{OF_BACKEND}{path}", value


def _flat(settings: Json, above: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yields (dotted path, value) of each value in nested settings that is not a mapping."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, (*above, str(name)))
        else:
            yield ".".join((*above, str(name))), value


def chosen_setting(settings: Mapping[RunSuite, Json], name: str) -> dict[RunSuite, Any] | None:
    """Returns (run, suite) -> value of one setting, or None if no run has that setting. `agent.` may be left out of its path."""
    values = {key: of_suite.get(name, of_suite.get(f"{OF_AGENT}{name}")) for key, of_suite in settings.items()}
    return None if all(value is None for value in values.values()) else values


MOST_COLOURS = 8  # number of colours that all readers can distinguish

#: Measure of a rollout -> column of the table `calls`. The measure is the median over the successful calls of the rollout.
OF_CALLS: Mapping[str, str] = {"ttft": "ttft_ms", "itl": "itl_median_ms", "tps": "call_output_tokens_per_s"}

PointKey = tuple[str, str, str, str, int]  # run, suite, scenario, variant, trial


@dataclass(frozen=True)
class Points:
    """The points of scatter plots, as columns: one row for each rollout that has the score. Unknown measures are NaN."""

    score: str  # name of the score
    values: NDArray[np.float64]  # the score
    measures: Mapping[str, NDArray[np.float64]]  # ttft and itl in ms, tps in 1/s, total_tokens, llm_calls, total_duration in s
    color_by: str  # name of the column or setting that colours stand for
    colours: NDArray[Any]  # its values: numbers or names
    calls: Mapping[str, NDArray[np.float64]]  # ttft, itl and tps of the successful calls of these rollouts
    keys: Sequence[PointKey]  # the rollout of each row
    calls_of: Sequence[int]  # index of the rollout's row, for each call

    @property
    def kinds(self) -> list[str] | None:
        """The sorted names that have a colour each, or None if colours stand for numbers (a colour scale)."""
        return None if self.colours.dtype.kind == "f" else sorted({*self.colours})


def points_of(tables: Tables, score: str, color_by: str = "run", settings: Mapping[RunSuite, Json] = MappingProxyType({})) -> Points:
    """Returns the points of some runs. Raises ConfigError for an unknown score, or if `color_by` is neither a column nor a setting."""
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
    """Returns the median TTFT of each arm of a run, in milliseconds. Arms without successful calls are left out."""
    calls = tables.calls.where(_good(tables.calls) & (tables.calls["run"] == run))
    arms = np.array([arm_of(variant) for variant in calls["variant"]], dtype=object)
    medians = {arm: _median(calls["ttft_ms"], [*np.flatnonzero(arms == arm)]) for arm in sorted({*arms})}
    return {arm: median for arm, median in medians.items() if not np.isnan(median)}


def unscored(tables: Tables, score: str) -> list[str]:
    """Names the suites (`RUN SUITE`, with the variant) without a rollout that has the score."""
    has_it = {key[:2] + key[3:4] for key in _scores(tables.scores, score)}
    all_of_them = dict.fromkeys((key[0], key[1], key[3]) for key in _keys(tables.rollouts.where(tables.rollouts["kind"] == "scenario")))
    return [f"{run} {RolloutKey(suite, '', variant).group}" for run, suite, variant in all_of_them if (run, suite, variant) not in has_it]


def _keys(table: FrameTable) -> list[PointKey]:
    return [*zip(*(table[name].tolist() for name in ("run", "suite", "scenario", "variant", "trial")), strict=True)]


def _scores(scores: FrameTable, name: str) -> dict[PointKey, float]:
    """Returns rollout -> value of one score. Raises ConfigError if no rollout has that score."""
    whole = np.array([part is None for part in scores["part"]], dtype=bool) & ~np.isnan(scores["value"])
    named = scores.where(whole & (scores["score"] == name))
    if not len(named):
        known = sorted({*scores.where(whole)["score"]})
        raise ConfigError(
            unknown_name("score", name, known)
            if known
            else "no rollout of these runs has a score, so there is nothing to draw; choose a run with scores"
        )
    return dict(zip(_keys(named), named["value"].tolist(), strict=True))


def _good(calls: FrameTable) -> NDArray[np.bool_]:
    """Returns a mask of the calls that are successful and count in the serving metrics."""
    good: NDArray[np.bool_] = calls["is_successful"] & calls["measured"]
    return good


def _median(values: NDArray[np.float64], rows: list[int]) -> float:
    chosen = values[rows]
    known = chosen[~np.isnan(chosen)]
    return float(np.median(known)) if len(known) else float("nan")


def _colours(rollouts: FrameTable, column: str, settings: Mapping[RunSuite, Json]) -> NDArray[Any]:
    """Returns what the colour of each rollout stands for. Raises ConfigError if `column` is unknown, or has more names than colours."""
    values = rollouts[column] if column in rollouts.columns else _of_setting(rollouts, column, settings)
    if values.dtype.kind in "fi":
        return values.astype(float)
    names = np.array([str(value) for value in values], dtype=object)
    if len(kinds := {*names}) > MOST_COLOURS:
        raise ConfigError(f"{column} has {len(kinds)} values, but there are {MOST_COLOURS} colours; choose another column with --color-by")
    return names


def _of_setting(rollouts: FrameTable, name: str, settings: Mapping[RunSuite, Json]) -> NDArray[Any]:
    """Returns the value of a setting for each rollout, as numbers if all values are numbers, otherwise as names."""
    chosen = chosen_setting(settings, name)
    if chosen is None:
        known = [*rollouts.columns, *sorted({path for of_suite in settings.values() for path in of_suite})]
        raise ConfigError(unknown_name("column of rollouts or setting", name, known))
    values = [chosen.get((key[0], RolloutKey(*key[1:]).group)) for key in _keys(rollouts)]
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return np.array(values, dtype=float)
    return np.array(["none" if value is None else str(value) for value in values], dtype=object)


#: Columns that identify a row. Their names are those in the scripts of the NeMo Agent Toolkit's example.
PLACE = ("job_name", "experiment", "sample_id", "trial")
ROLLOUT_COLUMNS = {
    "median_ttft_ms": "ttft",
    "median_itl_ms": "itl",
    "median_tps": "tps",
    "total_tokens": "total_tokens",
    "num_llm_calls": "llm_calls",
    "total_duration_sec": "total_duration",
}
CALL_COLUMNS = {"ttft_ms": "ttft", "itl_ms": "itl", "tps": "tps"}


def write_data(points: Points, directory: Path) -> None:
    """Writes CSV files: the data of the scatter plots, with the score, and the data of the histograms, without it."""
    for name, score in ((f"throughput_vs_{points.score}_per_request", points.score), ("throughput_histogram", "")):
        of_score = [f"{score}_score"] if score else []
        colour = [points.color_by] if score else []
        write_rows(directory / f"{name}_data.csv", [*PLACE, *of_score, *ROLLOUT_COLUMNS, *colour], _rollouts(points, bool(score)))
        calls = name.replace("_per_request", "") + "_per_llm_call_data.csv"
        write_rows(directory / calls, [*PLACE, *of_score, "llm_call_idx", *CALL_COLUMNS], _calls(points, bool(score)))


def _rollouts(points: Points, scored: bool) -> Iterator[list[Any]]:
    for row in range(len(points.keys)):
        measures = [_cell(points.measures[measure][row]) for measure in ROLLOUT_COLUMNS.values()]
        yield [*_place(points, row, scored), *measures, *([_cell(points.colours[row])] if scored else [])]


def _calls(points: Points, scored: bool) -> Iterator[list[Any]]:
    number, last = 0, -1
    for place, row in enumerate(points.calls_of):
        number, last = (number + 1 if row == last else 1), row
        yield [*_place(points, row, scored), number, *(_cell(points.calls[measure][place]) for measure in CALL_COLUMNS.values())]


def _place(points: Points, row: int, scored: bool) -> list[Any]:
    run, suite, scenario, variant, trial = points.keys[row]
    return [run, RolloutKey(suite, scenario, variant).group, scenario, trial, *([_cell(points.values[row])] if scored else [])]


def _cell(value: Any) -> Any:
    """Returns the value of a CSV cell, or None for NaN."""
    if isinstance(value, str):
        return value
    return None if np.isnan(value) else int(value) if float(value).is_integer() else float(value)
