"""`agentbench rescore`: scores the rollouts of a finished run again, without a backend."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_agentbench.rollouts.rescore import RescoredSuite
    from pytest_agentbench.runs.run_file import Run


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    rescore = commands.add_parser(
        "rescore", help="Score the rollouts of a finished run again (needs no backend)", example="agentbench rescore latest --scorer tsq"
    )
    rescore.takes_run()
    rescore.add_argument(
        "--scorer",
        action="append",
        default=[],
        metavar="NAME",
        help="use only this scorer (a name or an import path), which need not belong to the suite; can be repeated",
    )
    rescore.add_argument(
        "--suite", action="append", default=[], type=Path, metavar="DIR", help="folder of a suite, if it has moved since the run"
    )
    rescore.add_argument(
        "--baseline", metavar="RUN|FILE", help="the baseline of rules `vs baseline` (default: the baseline of the session)"
    )
    rescore.takes_reports()
    rescore.set_defaults(run=run_rescore)


def run_rescore(options: argparse.Namespace) -> None:
    """Writes a new run with the new scores. Prints the old and new mean of each score, and how many rollouts changed."""
    from pytest_agentbench.cli.output import print_document
    from pytest_agentbench.lib.threads import run_apart
    from pytest_agentbench.reports import write_reports
    from pytest_agentbench.reports.sections.gate import document_of
    from pytest_agentbench.rollouts.rescore import load_groups, missed_thresholds, refuse_empty, rescore
    from pytest_agentbench.runs.directory import discard
    from pytest_agentbench.runs.run_file import find_run, read_run, write_run
    from pytest_agentbench.suites.folder import load_suite, suite_file

    source = find_run(options.name, options.reports)
    run = read_run(source)
    refuse_empty(run, source)
    folders = {load_suite(file).name: file.parent for file in map(suite_file, options.suite)}
    groups = load_groups(run, folders, options.scorer)
    target, new, read = run_apart(lambda: rescore(run, source, groups))
    try:
        missed = [*missed_thresholds(groups, read)]
        new = judged(new, target, options, [(each.group, each.score) for each in missed])
        write_run(new, target)
        write_reports(new, target)
    except BaseException:
        discard(target)
        raise
    _tell_changes(groups, new)
    for each in missed:
        print(f"{each.group} {each.score}: {each.below} of {each.rollouts} rollouts do not reach the threshold {each.threshold:g}")
    if new.gate:
        print_document(document_of(new))
    print(f"wrote {target}")


def _tell_changes(groups: Mapping[str, RescoredSuite], new: Run) -> None:
    from pytest_agentbench.cli.output import mean_text
    from pytest_agentbench.lib.foreign import one_line
    from pytest_agentbench.rollouts.rescore import changes

    for change in changes(groups, new):
        print(
            f"{change.group} {change.score}: mean {mean_text(change.was)}, now {mean_text(change.now)}; "
            f"{change.changed} of {change.rollouts} rollouts changed"
        )
        if change.failed:
            print(f"{change.group} {change.score}: the scorer failed on {change.failed} of them: {one_line(change.reason)}")
    for name, group in groups.items():
        for score in group.kept:
            print(f"{name} {score}: not scored again, because its scorer asks a judge")


def judged(run: Run, directory: Path, options: argparse.Namespace, missed: Collection[tuple[str, str]]) -> Run:
    """Returns the run with the gate's verdict on its new scores, and the exit status that a session would have had.

    `missed` has the suite and the score of each threshold that a rollout misses. They fail a session, unless the gate compares the score
    with a baseline.
    Raises ConfigError if the baseline of the session does not exist any more.
    """
    from dataclasses import replace

    from pytest_agentbench.cli.gate import Options, status_of, suites_of
    from pytest_agentbench.gate.exit_status import IMPORTED, SKIPPED, deciding, verdict
    from pytest_agentbench.records.rollout import scenario_thresholds
    from pytest_agentbench.session.gate import judge_again

    if run.verdict in (SKIPPED, IMPORTED):
        return run
    settings = run.settings
    baseline = options.baseline or settings.baseline
    asking = Options(settings.gate, baseline, options.reports, settings.verdict, settings.thresholds, settings.ab)
    gate, evidence = judge_again(run, directory, [*suites_of(run)], asking)
    new = replace(run, gate=gate)
    failed = not all(gate and gate.decides_about(*each) for each in missed)
    status = status_of(new, evidence, settings.inconclusive, failed=failed)
    thresholds = any(scenario_thresholds(suite.thresholds) for suite in run.suites.values())
    return replace(new, verdict=verdict(status, deciding(new), missing=False, thresholds=thresholds), exit_status=status)
