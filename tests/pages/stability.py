"""The table of docs/reference/stability.md: what is public, with the numbers and words of the code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest_agentbench
from pytest_agentbench.cli import COMMANDS
from pytest_agentbench.gate import baselines
from pytest_agentbench.gate.exit_status import EXITS, VERDICTS
from pytest_agentbench.lib.options import READ
from pytest_agentbench.runs import run_file
from pytest_agentbench.session import hookspecs
from pytest_agentbench.session.settings import OPTIONS
from tests.pages.markdown import table_row

HOOKS = [name for name in vars(hookspecs) if name.startswith("pytest_agentbench_")]

#: What is public, where it is described, and what the code has today.
ROWS = [
    ("names that `from pytest_agentbench import ...` finds", "[Python interface](api.md)", f"{len(pytest_agentbench.__all__)} names"),
    ("options of a session and their ini keys", "[Options](options.md)", f"{len(OPTIONS)} options"),
    ("commands of `agentbench`, their options and exit statuses", "[Commands](cli.md)", f"{len(COMMANDS)} commands"),
    ("environment variables that you set", "[Variables](environment.md)", ", ".join(f"`{name}`" for name in sorted(READ))),
    ("keys of YAML files", "[suite.yaml](suite-yaml.md), [backends](backend-yaml.md)", "`agentbench schema`"),
    ("hooks, and groups of entry points", "[Hooks](hooks.md)", f"{len(HOOKS)} hooks"),
    ("keys of run.json", "[run.json](run-json.md)", f"`{run_file.SCHEMA}`"),
    ("keys of baseline files", "[Baselines](baselines.md)", f"`{baselines.SCHEMA}`"),
    ("names of the files in a run directory", "[Files of a run](running.md#files-of-a-run)", ""),
    ("exit statuses of a session", "[Exit statuses](exit-statuses.md)", f"{min(EXITS)} to {max(EXITS)}"),
    ("words of verdicts", "the same page", ", ".join(f"`{word}`" for word in dict.fromkeys(VERDICTS))),
]


def public_table() -> Iterator[str]:
    """Yields the table of everything that is public."""
    yield from ("| what | where | today |", "|---|---|---|", *(table_row(*row) for row in ROWS))
