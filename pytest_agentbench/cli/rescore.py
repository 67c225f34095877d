"""`agentbench rescore`: scores a stored run again, with no backend."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pytest_agentbench.records import Json


def add(commands: Any) -> None:
    """The parser of this command."""
    rescore = commands.add_parser("rescore", help="score the rollouts of a run again, with no backend")
    rescore.add_argument(
        "name", nargs="?", default="latest", metavar="RUN", help="a run directory, or its name in reports/ (default: latest)"
    )
    rescore.add_argument(
        "--scorer",
        action="append",
        default=[],
        metavar="NAME",
        help="only this scorer, one of the suite or any other, by name or import path; may be given several times",
    )
    rescore.add_argument(
        "--suite", action="append", default=[], type=Path, metavar="DIR", help="where a suite is, if not where it was in the run"
    )
    rescore.add_argument(
        "--baseline", metavar="RUN|FILE", help="what rules `vs baseline` compare with, if not what the session compared with"
    )
    rescore.add_argument("--reports", type=Path, default=Path("reports"), metavar="DIR", help="where runs are (default: reports)")
    rescore.set_defaults(run=run_rescore)


def run_rescore(options: argparse.Namespace) -> None:
    """One line for each score: its mean in the old run and in the new one, and how many rollouts have another value."""
    import asyncio

    from pytest_agentbench.cli.plain import Plain
    from pytest_agentbench.lib.foreign import one_line
    from pytest_agentbench.reports import write_reports
    from pytest_agentbench.reports.terminal import write_gate
    from pytest_agentbench.rollouts.rescore import floors, load_groups, refuse_empty, rescore
    from pytest_agentbench.runs.directory import discard
    from pytest_agentbench.runs.tally import find_run, read_run, write_run
    from pytest_agentbench.suites.suite import load_suite, suite_file

    source = find_run(options.name, options.reports)
    run = read_run(source)
    refuse_empty(run, source)
    folders = {load_suite(file).name: file.parent for file in map(suite_file, options.suite)}
    groups = load_groups(run, folders, options.scorer)
    target, new, changes = asyncio.run(rescore(run, source, groups))
    try:
        missed = [*floors(groups)]
        new = judged(new, target, options, failed=bool(missed))
        write_run(new, target)
        write_reports(new, target)
    except BaseException:
        discard(target)
        raise
    for change in changes:
        print(
            f"{change.group} {change.score}: mean {_mean(change.was)}, now {_mean(change.now)}; "
            f"{change.changed} of {change.rollouts} rollouts changed"
        )
        if change.failed:
            print(f"{change.group} {change.score}: the scorer failed on {change.failed} of them: {one_line(change.reason)}")
    for name, group in groups.items():
        for score in group.kept:
            print(f"{name} {score}: kept as it was, its scorer asks a judge")
    for floor in missed:
        print(f"{floor.group} {floor.score}: {floor.below} of {floor.rollouts} rollouts do not reach the floor of {floor.floor:g}")
    if new["gate"]:
        write_gate(Plain(), new["gate"], new.get("rounds"))
    print(f"wrote {target}")


def judged(run: Json, directory: Path, options: argparse.Namespace, *, failed: bool) -> Json:
    """The run with the verdict of its gate on its new scores, and the exit status that a session would have had for them.

    `failed`: some rollouts do not reach a floor, which fails a session unless its gate decides.
    Raises ConfigError where the baseline is not there that the run was compared with.
    """
    from pytest_agentbench.cli.gate import Options, status_of, suites_of
    from pytest_agentbench.gate.exit_status import IMPORTED, SKIPPED, deciding, verdict
    from pytest_agentbench.session.gate import judge_again
    from pytest_agentbench.suites.arms import Arm

    if run["verdict"] in (SKIPPED, IMPORTED):
        return run
    settings = run["settings"]
    rules, baseline = tuple(settings["gate"]), options.baseline or settings["baseline"]
    asking = Options(rules, baseline, options.reports, settings["verdict"], tuple(Arm(**arm) for arm in settings["ab"]))
    part, evidence = judge_again(run, directory, [*suites_of(run)], asking)
    new = {**run, "gate": part}
    status = status_of(new, evidence, settings["inconclusive"], failed=failed and not deciding(new))
    return {**new, "verdict": verdict(status, deciding(new), missing=False), "exit_status": status}


def _mean(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
