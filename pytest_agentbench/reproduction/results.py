"""What the cells of a directory measured: steps per minute of each method at each concurrency, and the ratio to the baseline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.csv_files import write_rows
from pytest_agentbench.exports.exported_runs import ChosenRuns
from pytest_agentbench.exports.toolorchestra_run import write_run
from pytest_agentbench.lib.json_file import read_json_file
from pytest_agentbench.records import Json
from pytest_agentbench.reproduction.plan import Cell

FILE, TABLE = "cell.json", "throughput.csv"

COLUMNS = (
    *("method", "concurrency", "steps_per_min", "ratio_to_baseline"),  # the first three are the original's
    *("steps", "measured_s", "trials_per_min", "hit_ratio", "run"),
)


@dataclass(frozen=True)
class MeasuredCell:
    """A cell's window."""

    method: str
    concurrency: int
    run: str  # name of its run directory
    steps: int  # steps that ended in the window
    measured_s: float  # of the window; less than its length where the run ended before it
    steps_per_min: float | None  # None where nothing of the window was measured
    trials_per_min: float | None
    hit_ratio: float | None  # of the engine's prefix cache


def keep(cell: Cell, chosen: ChosenRuns, draft: Path) -> None:
    """Writes a cell's files, those of the original for its run; raises ConfigError for a run without a call."""
    [origin] = chosen.origins
    write_run(draft, origin, chosen.run_of(origin), exact=chosen.exact)
    if not _read(draft / "steps_summary.json")["ok"]:
        raise ConfigError(f"{origin.directory}: no call of an agent was answered, so there is no window")
    (draft / FILE).write_text(json.dumps({**vars(cell), "run": origin.run}, indent=2) + "\n", encoding="utf-8")


def is_measured(cell: Cell, output: Path) -> bool:
    """Whether its session came to its end: a window is one stretch of time, so a cell is measured as a whole or not at all."""
    return any(output.glob(f"{cell.folder('*')}/{FILE}"))


def measured(output: Path) -> list[MeasuredCell]:
    """Of all cells of a directory, by concurrency and then by method."""
    cells = [_measured(file) for file in sorted(output.glob(f"*/{FILE}"))]
    return sorted(cells, key=lambda each: (each.concurrency, each.method))


def _measured(file: Path) -> MeasuredCell:
    cell = _read(file)
    steps = _read(file.parent / "steps_summary.json")["steps"]
    window = next(iter(_read(file.parent / "window_summary.json")["windows"].values()))
    is_known = steps["measured_duration_sec"] > 0  # else the original's files have rates of 0
    return MeasuredCell(
        method=cell["method"],
        concurrency=cell["concurrency"],
        run=cell["run"],
        steps=steps["step_complete_in_window"],
        measured_s=steps["measured_duration_sec"],
        steps_per_min=steps["steps_per_sec"] * 60 if is_known else None,
        trials_per_min=window["trials"]["trials_per_sec"] * 60 if is_known else None,
        hit_ratio=window["metrics"].get("hit_ratio"),
    )


def ratio(cell: MeasuredCell, cells: Sequence[MeasuredCell], baseline: str) -> float | None:
    """Of its steps per minute to those of the baseline at its concurrency; None where either was not measured."""
    base = next((each.steps_per_min for each in cells if (each.method, each.concurrency) == (baseline, cell.concurrency)), None)
    return cell.steps_per_min / base if base and cell.steps_per_min is not None else None


def write_table(cells: Sequence[MeasuredCell], baseline: str, output: Path) -> Path:
    """throughput.csv, anew."""
    rows = [{**vars(cell), "ratio_to_baseline": ratio(cell, cells, baseline)} for cell in cells]
    write_rows(output / TABLE, COLUMNS, ([row[name] for name in COLUMNS] for row in rows))
    return output / TABLE


def lines(cells: Sequence[MeasuredCell], baseline: str) -> list[str]:
    """A line for each cell, for people."""
    head = f"{'method':<24}{'in flight':>10}{'steps/min':>11}{'ratio':>8}{'hit ratio':>11}{'measured':>12}"
    return [head, *(_line(cell, ratio(cell, cells, baseline)) for cell in cells)]


def _line(cell: MeasuredCell, to_baseline: float | None) -> str:
    numbers = ((cell.steps_per_min, 2), (to_baseline, 2), (cell.hit_ratio, 3))
    rate, share, hits = ("-" if value is None else f"{value:.{digits}f}" for value, digits in numbers)
    return f"{cell.method:<24}{cell.concurrency:>10}{rate:>11}{share:>8}{hits:>11}{cell.measured_s:>10.0f} s"


def _read(file: Path) -> Json:
    data: Json = read_json_file(file)
    return data
