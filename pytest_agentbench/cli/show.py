"""`agentbench show`: a run again, where its time went, or what another tool would have printed of it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pytest_agentbench.cli.plain import PlainOutput
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.metrics.other_tools import PEERS


def add(commands: Any) -> None:
    """The parser of this command."""
    show = commands.add_parser("show", help="print a run again, or as another tool would have printed it")
    show.takes_run()
    other = show.add_mutually_exclusive_group()
    other.add_argument("--as", dest="tool", metavar="TOOL", help=f"the tool's table by its definitions: {' '.join(PEERS)}")
    other.add_argument("--profile", action="store_true", help="where time went: slowest calls, call tree, concurrency, common prompts")
    show.takes_reports()
    show.set_defaults(run=run_show)


def run_show(options: argparse.Namespace) -> None:
    """All that a session prints with -v but for single rollouts, or a profile, or another tool's table."""
    from pytest_agentbench.metrics.other_tools import load_peer
    from pytest_agentbench.reports.peers import lines
    from pytest_agentbench.reports.terminal import write_whole
    from pytest_agentbench.runs.journal import check_journal, read_index, read_journal
    from pytest_agentbench.runs.run_file import find_run, read_run

    directory = find_run(options.name, options.reports)
    run = read_run(directory)
    if options.profile:
        _show_profile(directory)
        return
    if options.tool is None:
        write_whole(PlainOutput(), run, str(directory))
        return
    check_journal(directory)
    peer = load_peer(options.tool)
    if run.imported and run.stopwatch.verdict is None:
        raise ConfigError(f"{directory} is by {run.imported.tool}, which took no times of calls; {options.tool} would print nothing true")
    if (count := len({entry.session for entry in read_index(directory).entries.values()})) > 1:
        raise ConfigError(f"{directory} is of {count} sessions with pauses between them, which {options.tool} could not have measured")
    rollouts = (rollout for rollout in read_journal(directory) if rollout.kind == "scenario")
    for line in lines(peer(call for rollout in rollouts for call in rollout.all_calls)):
        print(line)


def _show_profile(directory: Path) -> None:
    from pytest_agentbench.profile import read_profile
    from pytest_agentbench.reports.profile import write_profile

    write_profile(PlainOutput(), read_profile(directory))
