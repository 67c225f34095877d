"""`agentbench reproduce`: reproduces a published experiment, in which several methods run at several concurrencies.

A cell is one method at one concurrency. Each call of the command measures the cells that are not measured yet.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.cli.export import written
from pytest_agentbench.cli.parser import option
from pytest_agentbench.cli.sessions import QUIET, run_session
from pytest_agentbench.cli.what_if import counts
from pytest_agentbench.errors import AgentbenchError, ConfigError, MissingError
from pytest_agentbench.gate.exit_status import CANNOT_MEASURE, CANNOT_TELL, FAILED, OK
from pytest_agentbench.runs.option import interval, positive_time, window

if TYPE_CHECKING:
    from pytest_agentbench.cli.requirements import Requirements
    from pytest_agentbench.reproduction.experiment import Cell, ReproductionPlan

EXPERIMENT = "hle-throughput"
SUITE, VARIANT = "scenarios/hle", "orchestrator"
METHODS = "baseline=vllm-default-router,continuum=vllm-continuum,thunderagent"
PICTURE = "throughput.png"


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    command = commands.add_parser(
        "reproduce",
        help="Reproduce a published experiment",
        description="Arguments after `--` go to pytest.",
        example=f"agentbench reproduce {EXPERIMENT} --dry-run",
    )
    command.add_argument(
        "experiment",
        choices=[EXPERIMENT],
        help=f"{EXPERIMENT}: steps per minute of ThunderAgent's paper on Humanity's Last Exam, for several methods and concurrencies",
    )
    _add_what(command)
    _add_when(command)
    command.add_argument("--dry-run", action="store_true", help="show what would be measured, how long it takes and what is missing")
    command.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help=f"directory of the measurements; an existing one is completed (default: reports/{EXPERIMENT})",
    )
    command.takes_rest()
    command.takes_reports()
    command.set_defaults(run=run_reproduce)


def _add_what(command: Any) -> None:
    command.add_argument("--suite", default=SUITE, metavar="SUITE", help=f"the suite's folder (default: {SUITE})")
    command.add_argument(
        "--variant", metavar="NAME", help=f"variant of the suite (default: {VARIANT} for {SUITE}, the suite's own agent for others)"
    )
    command.add_argument(
        "--methods",
        type=option(_methods),
        default=_methods(METHODS),
        metavar="NAME=BACKEND",
        help=f"methods to compare and their backends, separated by commas; the first is the baseline (default: {METHODS})",
    )
    command.add_argument(
        "--concurrency", type=option(counts), default=(24, 32, 40, 48), metavar="N,N", help="rollouts in flight (default: 24,32,40,48)"
    )


def _add_when(command: Any) -> None:
    command.add_argument(
        "--duration",
        type=option(positive_time),
        default=9000.0,
        metavar="TIME",
        help="no rollout starts after this time (default: 150m)",
    )
    command.add_argument(
        "--window",
        type=option(window),
        default=(600.0, 7800.0),
        metavar="START:END",
        help="the part of each session that is measured, in times after the first call (default: 10m:130m)",
    )
    command.add_argument(
        "--sample-interval",
        type=option(interval),
        default=2.0,
        metavar="TIME",
        help="time between two samples of the metrics (default: 2s)",
    )


def _methods(text: str) -> dict[str, str]:
    from pytest_agentbench.reproduction.experiment import methods

    return methods(text)


def run_reproduce(options: argparse.Namespace) -> None:
    """Measures the cells (method and concurrency) that are not measured yet. Prints the table of all cells after each one."""
    from pytest_agentbench.reproduction.experiment import ReproductionPlan, duration, is_measured, record_plan

    if options.window[0] >= options.duration:
        raise ConfigError(f"--window begins after {options.window[0]:g} s, but no rollout starts that late; give a longer --duration")
    output: Path = options.output or options.reports / EXPERIMENT
    variant = options.variant or (VARIANT if Path(options.suite) == Path(SUITE) else "")
    plan = ReproductionPlan(
        options.suite, variant, options.duration, options.window, options.sample_interval, tuple(options.rest), options.methods
    )
    cells = plan.cells(options.concurrency)
    left = [cell for cell in cells if not is_measured(cell, output)]
    print(
        f"{len(cells)} cells, {len(cells) - len(left)} of them measured; {duration(left, plan)} to go, "
        "plus the time in which each backend boots and finishes its last rollouts"
    )
    needs = _needs(plan, left)
    if options.dry_run:
        for cell in left:
            print(f"  {cell.name}: pytest {' '.join(plan.pytest_arguments(cell))}")
    print(*needs.lines, sep="\n", end="\n" if needs.lines else "")
    if options.dry_run:
        print(*(["missing:", *(f"  {each}" for each in needs.missing)] if needs.missing else ["nothing is missing"]), sep="\n")
        return
    if needs.missing:
        raise MissingError("; ".join(needs.missing))
    whole = record_plan(plan, output)
    failed = [cell.name for cell in left if not _measure(cell, whole, options.reports, output)]
    _sum_up(whole, output)
    if failed:
        raise CellsFailed(failed)


class CellsFailed(AgentbenchError):
    """The sessions of some cells (method and concurrency) did not finish. They have printed the reason."""

    exit_status = FAILED

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"not measured: {', '.join(names)}; run the same command again to measure them")


def _needs(plan: ReproductionPlan, cells: Sequence[Cell]) -> Requirements:
    """Returns what the sessions of the cells (method and concurrency) need, and which needs are not met. Starts nothing."""
    from pytest_agentbench.backends.doctor import checks
    from pytest_agentbench.backends.spec import load_backend
    from pytest_agentbench.cli.requirements import PlannedSessions, Requirements

    if not cells:
        return Requirements()
    backends = {cell.method: load_backend(cell.backend, Path.cwd()) for cell in cells}
    most = max(cell.concurrency for cell in cells)
    needs = PlannedSessions(plan.suite, plan.variant, plan.options, backends, most).requirements()
    needs.missing += [
        f"{method} ({plan.backends[method]}): {check.name}: {check.detail}{f'; {check.fix}' if check.fix else ''}"
        for method, spec in backends.items()
        for check in checks(spec)
        if check.state == "missing"
    ]
    return needs


def _measure(cell: Cell, plan: ReproductionPlan, reports: Path, output: Path) -> bool:
    """Runs the session of a cell and writes its measurements to the output directory. Returns whether it was measured.

    Rollouts that did not run because of the time limit do not invalidate the measurements.
    """
    from pytest_agentbench.exports.files import ChosenRuns
    from pytest_agentbench.reproduction.experiment import write_cell

    print(f"{cell.name}: {plan.duration_s / 60:g} min")
    ended = run_session([*plan.pytest_arguments(cell), *QUIET, f"--agentbench-name={EXPERIMENT}-{cell.name}"], reports)
    if ended.status not in (OK, FAILED, CANNOT_MEASURE, CANNOT_TELL) or ended.directory is None:
        print(f"{cell.name}: the session ended with status {ended.status}, see above")
        return False
    try:
        written(partial(write_cell, cell), ChosenRuns([ended.directory]), output / cell.folder(ended.directory.name))
    except ConfigError as error:
        print(f"{cell.name}: {error}")
        return False
    _sum_up(plan, output)
    return True


def _sum_up(plan: ReproductionPlan, output: Path) -> None:
    from pytest_agentbench.reproduction.experiment import lines, measured, write_table

    cells = measured(output)
    files = [write_table(cells, plan.baseline, output)]
    if find_spec("matplotlib") and any(cell.steps_per_min is not None for cell in cells):
        from pytest_agentbench.plots.comparisons import draw_experiment

        draw_experiment(cells, plan.baseline, output / PICTURE)
        files.append(output / PICTURE)
    for line in lines(cells, plan.baseline):
        print(line)
    print(f"wrote {', '.join(map(str, files))}")
