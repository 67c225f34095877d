"""`agentbench show`: a run again, or as another tool would have printed it."""

from __future__ import annotations

import argparse
from typing import Any

from pytest_agentbench.cli.plain import Plain
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.metrics.other_tools import PEERS


def add(commands: Any) -> None:
    """The parser of this command."""
    show = commands.add_parser("show", help="print a run again, or as another tool would have printed it")
    show.takes_run()
    show.add_argument("--as", dest="tool", metavar="TOOL", help=f"the tool's table by its definitions: {' '.join(PEERS)}")
    show.takes_reports()
    show.set_defaults(run=run_show)


def run_show(options: argparse.Namespace) -> None:
    """All that a session prints with -v but for single rollouts, or another tool's table."""
    from pytest_agentbench.metrics.other_tools import load_peer
    from pytest_agentbench.reports.peers import lines
    from pytest_agentbench.reports.terminal import write_whole
    from pytest_agentbench.runs.journal import read_index, read_journal
    from pytest_agentbench.runs.tally import find_run, read_run

    directory = find_run(options.name, options.reports)
    run = read_run(directory)
    if options.tool is None:
        write_whole(Plain(), run, str(directory))
        return
    peer = load_peer(options.tool)
    if run.imported and run.stopwatch.verdict is None:
        raise ConfigError(f"{directory} is by {run.imported.tool}, which took no times of calls; {options.tool} would print nothing true")
    if (count := len({entry.session for entry in read_index(directory).entries.values()})) > 1:
        raise ConfigError(f"{directory} is of {count} sessions with pauses between them, which {options.tool} could not have measured")
    rollouts = (rollout for rollout in read_journal(directory) if rollout.kind == "scenario")
    for line in lines(peer(call for rollout in rollouts for call in rollout.all_calls)):
        print(line)
