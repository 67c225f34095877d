"""`agentbench hints learn`: learns from the recorded calls of a run what routers should be told about later calls."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    hints = commands.add_parser(
        "hints",
        help="Learn from a run what routers should be told about calls",
        example="agentbench hints learn latest -o hints.json",
    )
    actions = hints.commands("actions")
    learn = actions.add_parser("learn", help="Write what to expect of each call, by its role and its number in the session")
    learn.takes_run()
    learn.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the file; it is replaced if it exists")
    learn.add_argument("--suite", help="learn only from rollouts of this suite, or `suite-variant` (default: all)")
    learn.takes_reports()
    learn.set_defaults(run=run_learn)


def run_learn(options: argparse.Namespace) -> None:
    """Writes the file. Prints what was learnt, and how to use it."""
    from pytest_agentbench.errors import ConfigError
    from pytest_agentbench.metrics.call_hints import HintLearner
    from pytest_agentbench.runs.journal import read_journal
    from pytest_agentbench.runs.run_file import find_run
    from pytest_agentbench.tap.hint_table import write_table

    directory = find_run(options.name, options.reports).resolve()
    learner, groups = HintLearner(), set()
    for rollout in read_journal(directory):
        groups |= {rollout.suite, rollout.key.group}
        if options.suite in (None, rollout.suite, rollout.key.group):
            learner.add(rollout)
    rows = learner.rows()
    if not rows:
        of = f" of the suite {options.suite!r}; its suites: {', '.join(sorted(groups))}" if options.suite else ""
        raise ConfigError(f"{directory}: no complete rollout with an answered call whose tokens were counted{of}")
    write_table(options.output, directory.name, rows)
    for role in dict.fromkeys(row.role for row in rows):
        own = [row for row in rows if row.role == role]
        calls = sum(row.calls for row in own)
        print(f"{role or 'agent'}: {calls:,} calls, {len(own)} turns, {own[0].remaining + 1:.1f} calls per session")
    print(f"wrote {options.output}: learnt from {learner.sessions:,} sessions of {directory.name}")
    print(f"to use it: labels: {{kind: dynamo, table: {options.output}}} in the YAML of a backend")
