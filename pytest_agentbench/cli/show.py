"""`agentbench show`: prints a run, one of its rollouts, those that failed, its profile, or the table of another tool."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.cli.output import PlainOutput, print_document
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.metrics.other_tools import PEERS

if TYPE_CHECKING:
    from pytest_agentbench.metrics.timeline import Calendar
    from pytest_agentbench.records import LLMCall
    from pytest_agentbench.runs.run_file import Run


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    show = commands.add_parser(
        "show",
        help="Print the results of a run, one of its rollouts, or another tool's table",
        example="agentbench show latest banking-001",
    )
    show.takes_run()
    show.add_argument(
        "rollout", nargs="?", metavar="ID", help="the id of a test, such as banking-001: print this rollout; SUITE/ID if two suites have it"
    )
    other = show.add_mutually_exclusive_group()
    other.add_argument("--failed", action="store_true", help="list the failed rollouts, each with the command that prints it")
    other.add_argument(
        "--json",
        action="store_true",
        help="with an ID: print a JSON object for each call (attempt, role, request, reply; exact: the same bytes)",
    )
    other.add_argument(
        "--as",
        dest="tool",
        metavar="TOOL",
        help=f"print the table of another tool, with its definitions of metrics; one of: {' '.join(PEERS)}",
    )
    other.add_argument(
        "--profile", action="store_true", help="show where the time went: slowest calls, call tree, concurrency, common prompts"
    )
    show.takes_reports()
    show.set_defaults(run=run_show)


def run_show(options: argparse.Namespace) -> None:
    """Prints a run like a session with -v, or what the options choose: one rollout, the failed ones, a profile, another table."""
    from pytest_agentbench.cli.one_rollout import show_failed, show_rollout
    from pytest_agentbench.reports.sections import document
    from pytest_agentbench.reports.terminal import write_run
    from pytest_agentbench.reports.view import RunView
    from pytest_agentbench.runs.run_file import find_run, read_run

    if options.json and not options.rollout:
        raise ConfigError("--json prints one rollout; name it after the run, for example `agentbench show latest banking-001 --json`")
    if options.rollout and (options.tool or options.profile or options.failed):
        raise ConfigError(f"{options.rollout} is one rollout, but --as, --profile and --failed are about the whole run; leave one out")
    directory = find_run(options.name, options.reports)
    if options.rollout:
        show_rollout(directory, str(directory), options.rollout, as_json=options.json)
        return
    run = read_run(directory)
    if options.failed:
        show_failed(directory, run, options.name)
        return
    if options.profile:
        _show_profile(directory)
        return
    if options.tool is None:
        write_run(PlainOutput(), document(RunView(run, directory)), verbosity=1)
        return
    _show_as(options.tool, directory, run)


def _show_as(tool: str, directory: Path, run: Run) -> None:
    """Prints the table that another tool would print for a run, or for each arm of a run with arms (settings under comparison)."""
    from pytest_agentbench.metrics.other_tools import load_peer
    from pytest_agentbench.reports.comparison_phrases import OF_RUN, of_arm
    from pytest_agentbench.reports.sections.peers import document
    from pytest_agentbench.runs.journal import check_journal, read_index, read_journal

    check_journal(directory)
    peer = load_peer(tool)
    if run.imported and run.stopwatch.verdict is None:
        raise ConfigError(f"{directory} was imported from {run.imported.tool}, which recorded no times of calls; leave out --as {tool}")
    if (count := len({entry.session for entry in read_index(directory).entries.values()})) > 1:
        raise ConfigError(
            f"{directory} has {count} sessions with pauses between them, so rates of {tool} would be wrong; "
            "leave out --as, or choose another run"
        )
    if run.ab:
        print_document(document(tool, ((of_arm(arm), peer(calls)) for arm, calls in _calls_of_arms(directory, run))))
        return
    rollouts = (rollout for rollout in read_journal(directory) if rollout.kind == "scenario")
    print_document(document(tool, [(OF_RUN, peer(call for rollout in rollouts for call in rollout.all_calls))]))


def _calls_of_arms(directory: Path, run: Run) -> Iterator[tuple[str, Iterator[LLMCall]]]:
    """Yields the name of each arm of a run and the calls of its rollouts.

    Times are moved, as if the blocks of rollouts of an arm had followed each other without pauses.
    """
    from pytest_agentbench.exports.files import ChosenRuns
    from pytest_agentbench.records import arm_of
    from pytest_agentbench.tables import places

    [origin] = ChosenRuns([directory]).origins
    for arm, (own, _) in ChosenRuns.split_by_arm(origin, run, "arm").items():
        attempts = (each for place in places(own) if arm_of(place.rollout.variant) == arm for each in place.rollout.attempts)
        yield arm, (_moved(call, own.calendar, each.session, each.started_ns) for each in attempts for call in each.calls)


def _moved(call: LLMCall, calendar: Calendar, session: int, started_ns: int) -> LLMCall:
    """Returns a call with all its times moved by the same duration, so that the pauses of its arm (a setting under comparison) disappear.

    `started_ns` is the start of the call's attempt in session number `session`. `calendar` gives the time to which it is moved.
    """
    at_ns = calendar.epoch_ns(session, started_ns)
    later_ns = 0 if at_ns is None else at_ns - started_ns
    times = {name: at + later_ns for name in ("called_ns", "received_ns", "sent_ns", "ended_ns") if (at := getattr(call, name)) is not None}
    return replace(call, **times, chunks=tuple(chunk._replace(at_ns=chunk.at_ns + later_ns) for chunk in call.chunks))


def _show_profile(directory: Path) -> None:
    from pytest_agentbench.profile import read_profile
    from pytest_agentbench.reports.sections.profile import WIDTH, document

    print_document(document(read_profile(directory)), WIDTH)
