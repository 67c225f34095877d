"""`agentbench baseline promote`: makes a run the baseline that later runs are compared with."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    baseline = commands.add_parser("baseline", help="Make a run the baseline of its suites", example="agentbench baseline promote latest")
    actions = baseline.commands("actions")
    promote = actions.add_parser(
        "promote", help="Make a run the baseline: write its scores, timings and hashes (no texts) to reports/baselines/<suite>.jsonl"
    )
    promote.takes_run()
    promote.add_argument("--suite", metavar="NAME", help="only this suite of the run (default: all)")
    promote.add_argument("--to", type=Path, metavar="FILE", help="write to this file instead, for a single suite")
    promote.add_argument(
        "--reason", default="", metavar="TEXT", help="why a lower mean, or a run without passed tests, is right; kept in the file"
    )
    promote.takes_reports()
    promote.set_defaults(run=run_promote)


def run_promote(options: argparse.Namespace) -> None:
    """Writes the baseline file of each suite of a run, all or none. Prints the old and the new mean of each score, then the files."""
    from pytest_agentbench.cli.output import mean_text
    from pytest_agentbench.errors import ConfigError, unknown_name
    from pytest_agentbench.gate.baselines import (
        baseline_warnings,
        best_run_warnings,
        check_reason,
        default_baseline,
        plan_promotion,
        read_evidence,
    )
    from pytest_agentbench.gate.repeats import runs_of_same_setup
    from pytest_agentbench.runs.run_file import find_run, read_run

    directory = find_run(options.name, options.reports)
    run, evidence = read_run(directory), read_evidence(directory)
    suites = sorted({trial.suite for trials in evidence.groups.values() for trial in trials})
    if options.suite and options.suite not in suites:
        raise ConfigError(f"{directory}: {unknown_name('suite', options.suite, suites)}")
    chosen = [options.suite] if options.suite else suites
    if not chosen:
        raise ConfigError(f"{directory} has no rollouts; choose a run with results")
    if options.to and len(chosen) > 1:
        raise ConfigError(f"--to is for the baseline of one suite, but the run has {', '.join(chosen)}; choose one with --suite")
    if options.to and options.to.suffix != ".jsonl":
        raise ConfigError(f"--to {options.to}: must end in .jsonl, because --agentbench-baseline recognises baseline files by it")
    others = runs_of_same_setup(run, options.reports)
    plans = [plan_promotion(run, evidence, suite, options.to or default_baseline(suite, options.reports)) for suite in chosen]
    for plan in plans:
        for change in plan.changes:
            print(f"{change.group} {change.score}.mean: {mean_text(change.was)} -> {mean_text(change.now)} ({change.scenarios} scenarios)")
        for warning in (*baseline_warnings(run, evidence, plan.suite), *best_run_warnings(run, plan.suite, others)):
            print(f"{plan.suite}: {warning}")
    check_reason(plans, run, options.reason)
    for plan in plans:
        plan.write(options.reason)
        print(f"wrote {plan.path}" + (f", in place of {plan.old.facts.run}" if plan.old else ""))
