"""`agentbench hints`: learns from the recorded calls of a run what routers should be told about later calls."""

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
    trie = actions.add_parser("trie", help="Write the same as a prediction trie of the NVIDIA NeMo Agent Toolkit, for its client")
    for action, run in ((learn, run_learn), (trie, run_trie)):
        action.takes_run()
        action.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the file; it is replaced if it exists")
        action.add_argument("--suite", help="learn only from rollouts of this suite, or `suite-variant` (default: all)")
        action.takes_reports()
        action.set_defaults(run=run)
    trie.add_argument("--workflow", default="", metavar="NAME", help="name of the workflow in the trie (default: the name of each suite)")


def run_learn(options: argparse.Namespace) -> None:
    """Writes the file. Prints what was learnt, and how to use it."""
    from pytest_agentbench.metrics.call_hints import HintLearner
    from pytest_agentbench.tap.hint_table import write_table

    learner = HintLearner()
    directory, found = _learn(options, learner)
    if not (rows := learner.rows()):
        _refuse(options, directory, found)
    write_table(options.output, directory.name, rows)
    for role in dict.fromkeys(row.role for row in rows):
        own = [row for row in rows if row.role == role]
        calls = sum(row.calls for row in own)
        print(f"{role or 'agent'}: {calls:,} calls, {len(own)} turns, {own[0].remaining + 1:.1f} calls per session")
    print(f"wrote {options.output}: learnt from {learner.sessions:,} sessions of {directory.name}")
    print(f"to use it: labels: {{kind: dynamo, table: {options.output}}} in the YAML of a backend")


def run_trie(options: argparse.Namespace) -> None:
    """Writes the file. Prints what is in it, and how the toolkit uses it."""
    from pytest_agentbench.exports.nat_trie import write_trie
    from pytest_agentbench.metrics.prediction_trie import TrieBuilder

    builder = TrieBuilder(options.workflow)
    directory, found = _learn(options, builder)
    root = builder.build()
    if root.predictions_any_index is None:
        _refuse(options, directory, found)
    write_trie(options.output, options.workflow or options.suite or directory.name, root)
    for workflow in root.children.values():
        for role in workflow.children.values():
            assert role.predictions_any_index is not None
            calls = role.predictions_any_index.output_tokens.sample_count
            print(f"{workflow.name}/{role.name}: {calls:,} calls, {len(role.predictions_by_call_index)} turns")
    print(f"wrote {options.output}: learnt from {builder.traces:,} rollouts of {directory.name}")
    print(f"to use it: nvext_prediction_trie_path: {options.output} in the toolkit's LLM of `_type: dynamo`")


def _learn(options: argparse.Namespace, learner: Any) -> tuple[Path, set[str]]:
    """Adds the rollouts of a run to a learner. Returns the directory of the run, and the names of its suites."""
    from pytest_agentbench.runs.journal import read_journal
    from pytest_agentbench.runs.run_file import find_run

    directory = find_run(options.name, options.reports).resolve()
    groups: set[str] = set()
    for rollout in read_journal(directory):
        groups |= {rollout.suite, rollout.key.group}
        if options.suite in (None, rollout.suite, rollout.key.group):
            learner.add(rollout)
    return directory, groups


def _refuse(options: argparse.Namespace, directory: Path, groups: set[str]) -> None:
    """Raises ConfigError, because nothing could be learnt from a run."""
    from pytest_agentbench.errors import ConfigError

    of = f" of the suite {options.suite!r}; its suites: {', '.join(sorted(groups))}" if options.suite else ""
    raise ConfigError(f"{directory}: no complete rollout with an answered call whose tokens were counted{of}")
