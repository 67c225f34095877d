"""`agentbench import`: converts the results of another tool to a run, or the configuration of a tool to a suite."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.cli.nat_config import NAT_CONFIG, OPTIONS, add_options, run_nat_config
from pytest_agentbench.exports import TOOLS
from pytest_agentbench.reports import phrases, suite_phrases

if TYPE_CHECKING:
    from pytest_agentbench.runs.run_file import Run


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    imports = commands.add_parser(
        "import",
        help="Convert the results of another tool to a run",
        description=f"{NAT_CONFIG} converts a configuration of the NeMo Agent Toolkit to a suite and a backend",
        example="agentbench import nat results/ --suite scenarios/banking",
    )
    imports.add_argument("tool", metavar="TOOL", help=f"one of: {' '.join(TOOLS)} {NAT_CONFIG}; or the import path of a reader")
    imports.add_argument("path", type=Path, metavar="PATH", help=f"the result directory of the tool; for {NAT_CONFIG} the YAML file")
    imports.add_argument(
        "--suite",
        type=Path,
        metavar="DIR",
        help="folder of the suite that the tool ran: adds its labels, and lets `agentbench rescore` score the results again",
    )
    imports.takes_reports()
    add_options(imports)
    imports.set_defaults(run=run_import)


def run_import(options: argparse.Namespace) -> None:
    """Converts each result in a directory to a run. Prints its scores, notes on missing data, and the directory of the run."""
    from pytest_agentbench.cli.imported import write
    from pytest_agentbench.errors import ConfigError
    from pytest_agentbench.exports import load_reader, results_in
    from pytest_agentbench.suites.folder import load_suite, suite_file

    if options.tool == NAT_CONFIG:
        run_nat_config(options)
        return
    if misplaced := [name for name in OPTIONS if getattr(options, name)]:
        raise ConfigError(f"--{misplaced[0]} is an option of `agentbench import {NAT_CONFIG}`; remove it")
    reader = load_reader(options.tool)
    if not options.path.is_dir():
        raise ConfigError(f"{options.path} is not a directory; pass the directory that {options.tool} wrote")
    suite = load_suite(suite_file(options.suite)) if options.suite else None
    for path in results_in(options.tool, options.path):
        target, run = write(options.tool, reader(path), path, suite, options.reports)
        _say(run)
        print(f"wrote {target}")


def _say(run: Run) -> None:
    """Prints the scores of an imported run, the means that the tool reported, and notes on missing data."""
    from pytest_agentbench.lib.foreign import one_line

    assert run.imported is not None
    for name, result in run.suites.items():
        print(f"{name}: {suite_phrases.statuses(result.rollouts)}")
        for score, means in result.scores.items():
            print(f"{name} {score}: {suite_phrases.score(means.mean)}")
    for mean in run.imported.means:
        print(phrases.own_mean(mean))
    for note in run.imported.notes:
        print(f"note: {one_line(note)}")
