"""`agentbench env ...`: creates and lists the virtual environments of serving engines."""

from __future__ import annotations

import argparse
from typing import Any

from pytest_agentbench.errors import ConfigError, unknown_name


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    env = commands.add_parser(
        "env", help="Create and list the virtual environments of serving engines", example="agentbench env create vllm"
    )
    verbs = env.commands()
    create = verbs.add_parser("create", help="Create environments with pinned versions; an existing one is left as it is")
    create.add_argument("names", nargs="+", metavar="NAME", help="a name from `agentbench env list`")
    create.set_defaults(run=run_create)
    verbs.add_parser("list", help="List the environments, what each is for, and which ones exist on this machine").set_defaults(
        run=run_list
    )


def run_create(options: argparse.Namespace) -> None:
    from pytest_agentbench.backends.machine.virtual_environments import create, environments

    for name in options.names:
        if name not in environments():  # all names are checked before the first environment takes minutes
            raise ConfigError(unknown_name("environment", name, environments()))
    for name in options.names:
        create(name, lambda line: print(line, flush=True))


def run_list(options: argparse.Namespace) -> None:
    from pytest_agentbench.backends.machine.virtual_environments import environments, home_of, is_whole

    for name, spec in environments().items():
        print(f"{name:14} {spec.about} ({', '.join(spec.pins)})")
        print(f"{'':14} {home_of(name) if is_whole(home_of(name)) else f'not here: agentbench env create {name}'}")
