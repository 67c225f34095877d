"""`agentbench env ...`: the environments that engines run in."""

from __future__ import annotations

import argparse
from typing import Any

from pytest_agentbench.errors import ConfigError, unknown_name


def add(commands: Any) -> None:
    """The parsers of these commands."""
    env = commands.add_parser("env", help="make and list the environments that engines run in, each with an interpreter of its own")
    verbs = env.commands()
    create = verbs.add_parser("create", help="make environments with pinned versions; one that is there is left alone")
    create.add_argument("names", nargs="+", metavar="NAME", help="as `agentbench env list` has them")
    create.set_defaults(run=run_create)
    verbs.add_parser("list", help="which environments there are, for what, and which of them are here").set_defaults(run=run_list)


def run_create(options: argparse.Namespace) -> None:
    from pytest_agentbench.backends.machine.environments import create, environments

    for name in options.names:
        if name not in environments():  # before the first one takes minutes
            raise ConfigError(unknown_name("environment", name, environments()))
    for name in options.names:
        create(name, lambda line: print(line, flush=True))


def run_list(options: argparse.Namespace) -> None:
    from pytest_agentbench.backends.machine.environments import environments, home_of, is_whole

    for name, spec in environments().items():
        print(f"{name:14} {spec.about} ({', '.join(spec.pins)})")
        print(f"{'':14} {home_of(name) if is_whole(home_of(name)) else f'not here: agentbench env create {name}'}")
