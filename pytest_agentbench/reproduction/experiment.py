"""The plan of a reproduced experiment, and the results of its cells. A cell is one method at one concurrency."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.csv_files import write_rows
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.exports.toolorchestra_run import write_run
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.json_text import json_object, read_json_file
from pytest_agentbench.metrics.performance import Offsets
from pytest_agentbench.records import Json

PLAN_FILE, SCHEMA = "plan.json", "agentbench-reproduction/1"


@dataclass(frozen=True)
class Cell:
    """One cell of the experiment: a method at one concurrency."""

    method: str
    backend: str  # name or YAML file, as in --agentbench-backend
    concurrency: int  # rollouts in flight

    @property
    def name(self) -> str:
        """The name of the cell on the terminal and of its run."""
        return f"{self.method}-c{self.concurrency}"

    def folder(self, run: str) -> str:
        """Returns the name of the folder with the cell's files. The published plot script reads method and concurrency from the name."""
        return f"hle_paper_{self.method}_c{self.concurrency}_rep1_{run}"


@dataclass(frozen=True)
class ReproductionPlan:
    """The settings that all cells (method and concurrency) in one output directory share."""

    suite: str  # folder of the suite
    variant: str  # variant of the suite; empty: the suite's own agent
    duration_s: float  # seconds after which no rollout begins; running ones finish
    window: Offsets  # start and end, seconds after the first call
    sample_s: float  # seconds between two samples of metrics
    options: tuple[str, ...]  # further options of pytest
    backends: Mapping[str, str]  # method -> backend; the first is the baseline

    @property
    def baseline(self) -> str:
        return next(iter(self.backends))

    def cells(self, concurrencies: Iterable[int]) -> list[Cell]:
        """Returns all cells: all methods at one concurrency before the next one, so that drift affects all methods alike."""
        return [Cell(method, backend, concurrency) for concurrency in concurrencies for method, backend in self.backends.items()]

    def pytest_arguments(self, cell: Cell) -> list[str]:
        """Returns the arguments of pytest for a cell."""
        start, end = self.window
        return [
            self.suite,
            *([f"--agentbench-variants={self.variant}"] if self.variant else []),
            f"--agentbench-backend={cell.backend}",
            f"--agentbench-concurrency={cell.concurrency}",
            f"--agentbench-sandboxes={cell.concurrency}",  # With fewer, some rollouts in flight would wait
            f"--agentbench-time-limit={self.duration_s:g}s",
            f"--agentbench-window={start:g}s:{'' if end is None else f'{end:g}s'}",
            f"--agentbench-sample-interval={self.sample_s:g}s",
            *self.options,
        ]


def record_plan(plan: ReproductionPlan, output: Path) -> ReproductionPlan:
    """Writes the plan of a directory, including the methods that it had before, and returns it.

    Raises ConfigError if the directory already has a plan with other settings.
    """
    file = output / PLAN_FILE
    if not file.exists():
        if output.exists() and any(output.iterdir()):
            raise ConfigError(f"{output} has files but no {PLAN_FILE}; name a new directory with --output DIR")
        output.mkdir(parents=True, exist_ok=True)
        earlier: Json = {}
    else:
        earlier = json_object(file.read_bytes()) or {}
        if earlier.get("schema") != SCHEMA:
            raise ConfigError(f"{file} does not have schema {SCHEMA}; name a new directory with --output DIR")
    own = codec.plain(plan)
    if changed := [name for name in own if name in earlier and name != "backends" and own[name] != earlier[name]]:
        name = changed[0]
        raise ConfigError(
            f"{file}: `{name}` was {json.dumps(earlier[name])} and is now {json.dumps(own[name])}, so their cells cannot be compared; "
            "name another directory with --output DIR"
        )
    known: dict[str, str] = {**earlier.get("backends", {})}
    for method, backend in plan.backends.items():
        if known.setdefault(method, backend) != backend:
            raise ConfigError(f"{file}: the method {method!r} was {known[method]} and is now {backend}; give one of them another name")
    whole = replace(plan, backends=known)
    file.write_text(json.dumps({"schema": SCHEMA, **codec.plain(whole)}, indent=2) + "\n", encoding="utf-8")
    return whole


def methods(text: str) -> dict[str, str]:
    """Parses `NAME=BACKEND,BACKEND` to method -> backend. Without a name, the method is called like the file. The first is the baseline."""
    methods: dict[str, str] = {}
    for word in filter(None, map(str.strip, text.split(","))):
        name, equals, backend = word.partition("=")
        name = name if equals else Path(word).stem
        if not name or (equals and not backend) or name in methods or not name.replace("-", "").replace("_", "").isalnum():
            raise ValueError("NAME=BACKEND or a backend, separated by commas, each name once: baseline=vllm-default-router,thunderagent")
        methods[name] = backend if equals else word
    if not methods:
        raise ValueError("name at least one method, such as thunderagent")
    return methods


def duration(cells: Sequence[Cell], plan: ReproductionPlan) -> str:
    """Returns the least time that cells take, such as `30 h 0 min`."""
    minutes = len(cells) * plan.duration_s / 60
    return f"{round(minutes) // 60} h {round(minutes) % 60} min" if minutes >= 60 else f"{minutes:.3g} min"


RESULTS_FILE, TABLE = "cell.json", "throughput.csv"

COLUMNS = (
    *("method", "concurrency", "steps_per_min", "ratio_to_baseline"),  # The original has the first three
    *("steps", "measured_s", "trials_per_min", "hit_ratio", "run"),
)


@dataclass(frozen=True)
class MeasuredCell:
    """The results of a cell in its time window."""

    method: str
    concurrency: int
    run: str  # name of its run directory
    steps: int  # number of steps that ended in the window
    measured_s: float  # measured seconds of the window; fewer than its length if the run ended earlier
    steps_per_min: float | None  # None if nothing of the window was measured
    trials_per_min: float | None
    hit_ratio: float | None  # hit ratio of the engine's prefix cache


def write_cell(cell: Cell, chosen: ChosenRuns, draft: Path) -> None:
    """Writes the files of a cell from its run to the folder `draft`, in the format of the published experiment.

    Raises ConfigError if no call of the run was answered.
    """
    [origin] = chosen.origins
    write_run(draft, origin, chosen.run_of(origin), exact=chosen.exact)
    if not _read(draft / "steps_summary.json")["ok"]:
        raise ConfigError(f"{origin.directory}: no agent call was answered, so no time window was measured; its report.md shows why")
    (draft / RESULTS_FILE).write_text(json.dumps({**vars(cell), "run": origin.run}, indent=2) + "\n", encoding="utf-8")


def is_measured(cell: Cell, output: Path) -> bool:
    """Returns whether a cell has results. Results are written after its session; an interrupted session has to be repeated completely."""
    return any(output.glob(f"{cell.folder('*')}/{RESULTS_FILE}"))


def measured(output: Path) -> list[MeasuredCell]:
    """Returns the results of all measured cells of a directory, sorted by concurrency and method."""
    cells = [_measured(file) for file in sorted(output.glob(f"*/{RESULTS_FILE}"))]
    return sorted(cells, key=lambda each: (each.concurrency, each.method))


def _measured(file: Path) -> MeasuredCell:
    cell = _read(file)
    steps = _read(file.parent / "steps_summary.json")["steps"]
    window = next(iter(_read(file.parent / "window_summary.json")["windows"].values()))
    is_known = steps["measured_duration_sec"] > 0  # Otherwise the original's files have rates of 0
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
    """Returns a cell's steps (model answers with tools) per minute / those of the baseline at its concurrency. None if one is unknown."""
    base = next((each.steps_per_min for each in cells if (each.method, each.concurrency) == (baseline, cell.concurrency)), None)
    return cell.steps_per_min / base if base and cell.steps_per_min is not None else None


def write_table(cells: Sequence[MeasuredCell], baseline: str, output: Path) -> Path:
    """Writes throughput.csv and returns its path."""
    rows = [{**vars(cell), "ratio_to_baseline": ratio(cell, cells, baseline)} for cell in cells]
    write_rows(output / TABLE, COLUMNS, ([row[name] for name in COLUMNS] for row in rows))
    return output / TABLE


def lines(cells: Sequence[MeasuredCell], baseline: str) -> list[str]:
    """Returns a table for the terminal, with a line for each cell."""
    head = f"{'method':<24}{'in flight':>10}{'steps/min':>11}{'ratio':>8}{'hit ratio':>11}{'measured':>12}"
    return [head, *(_line(cell, ratio(cell, cells, baseline)) for cell in cells)]


def _line(cell: MeasuredCell, to_baseline: float | None) -> str:
    numbers = ((cell.steps_per_min, 2), (to_baseline, 2), (cell.hit_ratio, 3))
    rate, share, hits = ("-" if value is None else f"{value:.{digits}f}" for value, digits in numbers)
    return f"{cell.method:<24}{cell.concurrency:>10}{rate:>11}{share:>8}{hits:>11}{cell.measured_s:>10.0f} s"


def _read(file: Path) -> Json:
    data: Json = read_json_file(file)
    return data
