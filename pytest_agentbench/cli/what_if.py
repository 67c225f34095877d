"""`agentbench what-if`: simulates a run's calls with other settings of its serving stack."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pytest_agentbench.cli.output import print_document, print_markdown
from pytest_agentbench.cli.parser import option
from pytest_agentbench.cli.sessions import tidy_termination
from pytest_agentbench.runs.option import names, number, objective, positive_time
from pytest_agentbench.simulation.replay import MEASURED, MOCKER, ROUTERS, Question

FORMATS = ("text", "markdown", "json")

_count = number(1)


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    command = commands.add_parser(
        "what-if",
        help="Simulate a run with other stack settings: workers, KV blocks, router",
        example="agentbench what-if latest --workers 1,2,4 --router kv,round_robin",
    )
    command.takes_run()
    command.add_argument("--workers", type=option(counts), default=(), metavar="N,N", help="numbers of workers (default: as in the run)")
    command.add_argument(
        "--kv-blocks", type=option(counts), default=(), metavar="N,N", help="KV blocks of each worker (default: as in the run)"
    )
    command.add_argument(
        "--router", type=option(routers), default=(), metavar="R,R", help=f"one or more of: {', '.join(ROUTERS)} (default: as in the run)"
    )
    command.add_argument(
        "--original",
        type=option(facts),
        default={},
        metavar="NAME=VALUE,...",
        help="the settings that the run had, if its backend does not report them, such as workers=2,kv-blocks=1200,block-size=16,router=kv",
    )
    command.add_argument(
        "--timing",
        default=MEASURED,
        metavar="WHOSE",
        help=f"speed of a simulated worker: {MEASURED} (in the run), {MOCKER} (of Dynamo's mock engine), "
        f"or a .npz file of Dynamo's profiler (default: {MEASURED})",
    )
    command.add_argument(
        "--slo",
        type=option(objective, whole=True),
        action="append",
        metavar="NAME=TIME",
        help="a latency objective for goodput, as for --agentbench-slo (default: the objectives of the run)",
    )
    command.add_argument(
        "--limit",
        type=option(positive_time),
        default=300.0,
        metavar="TIME",
        help="time limit of the simulation of one setting (default: 5m)",
    )
    command.add_argument("--format", choices=FORMATS, default="text", help="output format (default: text)")
    command.takes_reports()
    command.set_defaults(run=run_what_if)


def counts(text: str) -> tuple[int, ...]:
    """Reads positive whole numbers, such as `1,2,4`. Raises ValueError for other texts."""
    try:
        return tuple(map(_count, names(text))) or (_count(text),)
    except ValueError as error:
        raise ValueError("whole numbers from 1 up, separated by commas") from error


def routers(text: str) -> tuple[str, ...]:
    """Reads names of routers, such as `kv,round_robin`. Raises ValueError for other texts."""
    if not names(text) or any(name not in ROUTERS for name in names(text)):
        raise ValueError(f"one or more of {', '.join(ROUTERS)}, separated by commas")
    return names(text)


def facts(text: str) -> Mapping[str, int | str]:
    """Reads settings of a stack, such as `workers=2,kv-blocks=1200,router=kv`. Raises ValueError for other texts."""
    known: Mapping[str, Callable[[str], int | str]] = {
        "workers": _count,
        "kv-blocks": _count,
        "block-size": _count,
        "router": lambda name: routers(name)[0],
    }
    pairs = dict(part.split("=", 1) for part in names(text) if "=" in part)
    try:
        if len(pairs) < len(names(text)) or not pairs:
            raise ValueError
        return {name: known[name](value) for name, value in pairs.items()}
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"NAME=VALUE pairs, separated by commas, with names of {', '.join(known)}, such as workers=2,kv-blocks=1200,router=kv"
        ) from error


def run_what_if(options: argparse.Namespace) -> None:
    """Simulates a run with each combination of settings. Prints the error of the simulation and a row for each combination."""
    from pytest_agentbench.reports.sections.what_if import document
    from pytest_agentbench.runs.run_file import find_run, read_run
    from pytest_agentbench.simulation.what_if import ask

    directory = find_run(options.name, options.reports)
    question = Question(
        workers=options.workers,
        kv_blocks=options.kv_blocks,
        routers=options.router,
        original=options.original,
        timing=options.timing,
        objectives=None if options.slo is None else dict(options.slo),
        limit_s=options.limit,
    )
    with tidy_termination():
        answer = ask(directory, read_run(directory), question, on_setting=lambda setting: print(f"simulating {setting}", file=sys.stderr))
    if options.format == "json":
        print(json.dumps(answer.as_json(), indent=2, ensure_ascii=False))
    elif options.format == "markdown":
        print_markdown(document(answer))
    else:
        print_document(document(answer))
