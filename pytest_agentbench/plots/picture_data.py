"""The data of pictures as CSV, so that somebody can draw them again: a row for each rollout, and one for each LLM call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pytest_agentbench.exports.csv_files import write_rows
from pytest_agentbench.plots.points import Points
from pytest_agentbench.records import RolloutKey

#: Columns that say of what a row is, by the names that the scripts of the NeMo Agent Toolkit's example give them.
PLACE = ("job_name", "experiment", "sample_id", "trial")
OF_ROLLOUTS = {
    "median_ttft_ms": "ttft",
    "median_itl_ms": "itl",
    "median_tps": "tps",
    "total_tokens": "total_tokens",
    "num_llm_calls": "llm_calls",
    "total_duration_sec": "total_duration",
}
OF_CALLS = {"ttft_ms": "ttft", "itl_ms": "itl", "tps": "tps"}


def write_data(points: Points, directory: Path) -> None:
    """Writes what is in the scatters, with the score, and what is in the histograms, without it."""
    for name, score in ((f"throughput_vs_{points.score}_per_request", points.score), ("throughput_histogram", "")):
        of_score = [f"{score}_score"] if score else []
        colour = [points.color_by] if score else []
        write_rows(directory / f"{name}_data.csv", [*PLACE, *of_score, *OF_ROLLOUTS, *colour], _rollouts(points, bool(score)))
        calls = name.replace("_per_request", "") + "_per_llm_call_data.csv"
        write_rows(directory / calls, [*PLACE, *of_score, "llm_call_idx", *OF_CALLS], _calls(points, bool(score)))


def _rollouts(points: Points, scored: bool) -> Iterator[list[Any]]:
    for row in range(len(points.keys)):
        measures = [_cell(points.measures[measure][row]) for measure in OF_ROLLOUTS.values()]
        yield [*_place(points, row, scored), *measures, *([_cell(points.colours[row])] if scored else [])]


def _calls(points: Points, scored: bool) -> Iterator[list[Any]]:
    number, last = 0, -1
    for place, row in enumerate(points.calls_of):
        number, last = (number + 1 if row == last else 1), row
        yield [*_place(points, row, scored), number, *(_cell(points.calls[measure][place]) for measure in OF_CALLS.values())]


def _place(points: Points, row: int, scored: bool) -> list[Any]:
    run, suite, scenario, variant, trial = points.keys[row]
    return [run, RolloutKey(suite, scenario, variant).group, scenario, trial, *([_cell(points.values[row])] if scored else [])]


def _cell(value: Any) -> Any:
    """A value as text of a table has it; nothing for one that is not known."""
    if isinstance(value, str):
        return value
    return None if np.isnan(value) else int(value) if float(value).is_integer() else float(value)
