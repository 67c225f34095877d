"""The results of cells: files in the original's format, a table, and ratios to the baseline."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path

import pytest

from pytest_agentbench.cli.export import written
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.plots.comparisons import draw_experiment
from pytest_agentbench.records import Rollout
from pytest_agentbench.reproduction.experiment import Cell, MeasuredCell, is_measured, lines, measured, ratio, write_cell, write_table
from pytest_agentbench.runs.options import RunOptions
from tests.made_runs import run_directory
from tests.tables.shop import ALL, LOST

SIX = {
    *("window_summary.json", "steps_summary.json", "combined_summary.json"),
    *("orchestrator_usage.jsonl", "prefix_cache_timeseries.csv", "gpu_sm_util_timeseries.csv"),
}


def kept(folder: Path, cell: Cell, *rollouts: Rollout, window: tuple[float, float | None] = (0, None)) -> Path:
    """Returns the directory of a reproduction with this cell, measured by a run of these rollouts."""
    directory = run_directory(folder / "reports" / cell.name, *rollouts, settings=RunOptions(backend="b", concurrency=24, window=window))
    written(partial(write_cell, cell), ChosenRuns([directory]), folder / "out" / cell.folder(directory.name))
    return folder / "out"


def cell(method: str, concurrency: int, rate: float | None) -> MeasuredCell:
    return MeasuredCell(method, concurrency, "run", 9, 60.0, rate, 1.0, 0.5)


def test_a_cell(tmp_path: Path) -> None:
    """A cell has the six files of the original's run, and its own steps per minute."""
    one, two = Cell("baseline", "vllm-default-router", 24), Cell("thunderagent", "thunderagent", 24)
    output = kept(tmp_path, one, *ALL)
    [found] = measured(output)

    assert SIX <= {file.name for file in (output / f"hle_paper_baseline_c24_rep1_{found.run}").iterdir()}
    assert (True, False) == (is_measured(one, output), is_measured(two, output))
    assert ("baseline", 24) == (found.method, found.concurrency)
    assert found.steps_per_min == pytest.approx(found.steps * 60 / found.measured_s)


def test_a_run_without_a_call(tmp_path: Path) -> None:
    """A run without an answered call has no window, so the cell is not measured and leaves no files."""
    one = Cell("baseline", "b", 24)

    with pytest.raises(ConfigError, match="no agent call was answered, so no time window was measured"):
        kept(tmp_path, one, LOST)
    assert not is_measured(one, tmp_path / "out")
    assert [] == [*(tmp_path / "out").glob("*")]


def test_a_window_after_the_end(tmp_path: Path) -> None:
    """A run that ended before its window has no rate, instead of a rate of 0."""
    [found] = measured(kept(tmp_path, Cell("baseline", "b", 24), *ALL, window=(600, 7800)))

    assert (0, 0.0, None) == (found.steps, found.measured_s, found.steps_per_min)
    assert "-" in lines([found], "baseline")[1]


def test_ratios() -> None:
    """Ratios are to the baseline at the same concurrency. Without it, or if it is 0, there is none."""
    cells = [cell("b", 24, 2.0), cell("t", 24, 3.0), cell("t", 32, 3.0), cell("b", 40, 0.0), cell("t", 40, 3.0), cell("u", 24, None)]

    assert [1.0, 1.5, None, None, None, None] == [ratio(each, cells, "b") for each in cells]


def test_the_table_and_the_picture(tmp_path: Path) -> None:
    """The first columns are the original's. A cell without a rate has an empty one, and is not drawn."""
    cells = [cell("b", 24, 2.0), cell("t", 24, 3.0), cell("t", 32, None)]
    rows = [*csv.reader(write_table(cells, "b", tmp_path).read_text(encoding="utf-8").splitlines())]
    draw_experiment(cells, "b", tmp_path / "throughput.svg")
    picture = (tmp_path / "throughput.svg").read_text(encoding="utf-8")

    assert ["method", "concurrency", "steps_per_min", "ratio_to_baseline"] == rows[0][:4]
    assert [["b", "24", "2.0", "1.0"], ["t", "24", "3.0", "1.5"], ["t", "32", "", ""]] == [row[:4] for row in rows[1:]]
    assert "1.50x" in picture
    assert "throughput (steps/min)" in picture
