"""`agentbench gate`: applies gate rules to a finished run, as its session did at its end."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.records import suite_of

if TYPE_CHECKING:
    from pytest_agentbench.gate.evidence import Evidence
    from pytest_agentbench.rollouts.compile import CompiledSuite
    from pytest_agentbench.runs.run_file import Run
    from pytest_agentbench.suites.arms import Arm


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    gate = commands.add_parser(
        "gate",
        help="Apply gate rules to a finished run (needs no backend)",
        example="agentbench gate latest --gate 'tsq.mean >= -0.05 vs baseline'",
    )
    gate.takes_run()
    gate.add_argument(
        "--baseline", metavar="RUN|FILE", help="the baseline of rules `vs baseline` (default: reports/baselines/<suite>.jsonl)"
    )
    gate.add_argument(
        "--gate",
        action="append",
        default=[],
        metavar="RULE",
        help="a rule in addition to those of the run's suite.yaml, such as 'tsq.mean >= -0.05 vs baseline'; can be repeated",
    )
    gate.add_argument(
        "--inconclusive",
        choices=["pass", "fail"],
        default="pass",
        help="`fail` makes the exit status 7 if the verdict is INCONCLUSIVE (default: pass)",
    )
    gate.takes_reports()
    gate.set_defaults(run=run_gate)


@dataclass(frozen=True)
class Options:
    """The options of a gate, for the commands that judge a finished run: `gate` and `rescore`."""

    gate: tuple[str, ...]
    baseline: str | None
    reports_directory: Path
    verdict: str = "gate"
    thresholds: Mapping[str, float] = field(default_factory=dict)  # thresholds from the command line of the session
    ab: tuple[Arm, ...] = ()


def run_gate(options: argparse.Namespace) -> int:
    """Applies the rules to a run and prints the results as a session does. Returns the exit status that the session would have had."""
    from dataclasses import replace

    from pytest_agentbench.cli.output import print_document
    from pytest_agentbench.errors import ConfigError
    from pytest_agentbench.reports.sections.gate import document_of
    from pytest_agentbench.runs.run_file import find_run, read_run
    from pytest_agentbench.session.gate import judge_again

    directory = find_run(options.name, options.reports)
    run = read_run(directory)
    asking = Options(tuple(options.gate), options.baseline, options.reports, thresholds=run.settings.thresholds, ab=run.settings.ab)
    result, evidence = judge_again(run, directory, [*suites_of(run)], asking)
    if result is None:
        raise ConfigError(f"{run.id} has no gate rules to apply; give some with --gate, or a baseline with --baseline")
    print_document(document_of(replace(run, gate=result)))
    return status_of(replace(run, gate=result), evidence, options.inconclusive)


def status_of(run: Run, evidence: Evidence, inconclusive: str, *, failed: bool = False) -> int:
    """Returns the exit status of a session with the gate result in `run`.

    Rollouts that could not be measured count as failed tests. `failed` is whether other tests failed, too.
    """
    from pytest_agentbench.gate.exit_status import SessionEnd, deciding, exit_status

    errors = any(trial.status in ("infra_error", "cancelled") for trials in evidence.groups.values() for trial in trials)
    failure = bool(run.backend.failure or run.unknown_suites)
    ending = SessionEnd(int(errors or failed), only_unmeasured=not failed, failure=failure, gate=deciding(run))
    return exit_status(ending, inconclusive)


def suites_of(run: Run) -> Iterator[CompiledSuite]:
    """Yields a CompiledSuite for each suite and variant of a run. Its rules and scores come from run.json; it has no scenarios."""
    from pytest_agentbench.gate.rules import parse_rule
    from pytest_agentbench.rollouts.compile import CompiledSuite
    from pytest_agentbench.runs.builder import pass_threshold_of
    from pytest_agentbench.suites.suite import Suite

    for group, part in run.suites.items():
        name = suite_of(group, part.variant)
        scorers, folder = {each.scorer: each.options for each in part.scored_by.values()}, Path(part.folder)
        suite = Suite(name, folder, (), dataset=part.dataset, scorers=scorers, scales=part.scales, deterministic=part.deterministic)
        passes = pass_threshold_of(suite.score_names, part.thresholds, part.scales) is not None
        rules = tuple(parse_rule(text, suite.score_names, part.scales, passes=passes) for text in part.gate)
        yield CompiledSuite(suite, (part.variant,), 1, part.thresholds, rules)
