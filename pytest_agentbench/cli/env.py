"""`agentbench env ...`: creates and lists the virtual environments of serving engines."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    env = commands.add_parser(
        "env", help="Create and list the virtual environments of serving engines", example="agentbench env create vllm"
    )
    verbs = env.commands()
    create = verbs.add_parser("create", help="Create environments with pinned versions; an existing one is left as it is")
    create.add_argument(
        "names", nargs="+", metavar="NAME", help="a name from `agentbench env list`, or a file that describes an environment"
    )
    create.set_defaults(run=run_create)
    verbs.add_parser("list", help="List the environments, what each is for, and which ones exist on this machine").set_defaults(
        run=run_list
    )


def run_create(options: argparse.Namespace) -> None:
    from pytest_agentbench.backends.machine.virtual_environments import create, find_environment

    for name in options.names:
        find_environment(name)  # all names are checked before the first environment takes minutes
    for name in options.names:
        create(name, lambda line: print(line, flush=True))


def run_list(options: argparse.Namespace) -> None:
    from pytest_agentbench.backends.machine.virtual_environments import environments, is_whole

    known = environments()
    width = max(map(len, known))
    for name, spec in known.items():
        print(f"{name:{width}} {spec.summary}")
        print(f"{'':{width}} {spec.home if is_whole(spec.home) else f'not here: agentbench env create {name}'}")
