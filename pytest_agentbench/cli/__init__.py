"""`agentbench ...`: sets up a project, fetches data and shows runs. Benchmarks themselves are run with pytest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import TextIO, cast

from pytest_agentbench.cli import (
    backend,
    baseline,
    calibrate,
    diff,
    doctor,
    env,
    gate,
    imports,
    init,
    power,
    rescore,
    schema,
    scrub,
    weights,
)
from pytest_agentbench.cli.parser import Parser
from pytest_agentbench.cli.pipes import Pipe, ReaderGone, abandon
from pytest_agentbench.cli.plain import Plain
from pytest_agentbench.errors import AgentbenchError, ConfigError
from pytest_agentbench.lib.foreign import Output

INTERRUPTED, UNREAD = 128 + 2, 128 + 13  # as a shell has it for programs that SIGINT and SIGPIPE end


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status. A fault is one sentence on stderr, and its class has the status."""
    streams = sys.stdout, sys.stderr
    out, errors = (Output(cast("TextIO", Pipe(stream))) for stream in streams)  # what is printed may be of a model or a server
    try:
        with redirect_stdout(cast("TextIO", out)), redirect_stderr(cast("TextIO", errors)):
            try:
                return _run(arguments)
            finally:
                out.flush()
                errors.flush()
    except ReaderGone:
        abandon(*streams)
        return UNREAD


def _run(arguments: Sequence[str] | None) -> int:
    options = parser().parse_args(arguments)
    try:
        status: int | None = options.run(options)
    except AgentbenchError as error:
        print(f"agentbench: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("agentbench: interrupted", file=sys.stderr)
        return INTERRUPTED
    return status or 0


def parser() -> Parser:
    top = Parser(prog="agentbench", description="Agent benchmarks as pytest suites. To run one: pytest scenarios/banking")
    top.add_argument("--version", action="version", version=f"agentbench {version('pytest-agentbench')}")
    commands = top.commands()
    init.add(commands)

    download = commands.add_parser("download", help="fetch a public data set at a pinned revision and convert it")
    download.add_argument("dataset", choices=["agent-leaderboard"])
    download.add_argument(
        "--domains", nargs="+", default=["banking"], metavar="DOMAIN", help="banking healthcare insurance investment telecom"
    )
    download.add_argument("--revision", required=True, help="commit of the data set's repository")
    download.add_argument("--output", type=Path, default=Path("data"), metavar="DIR", help="where to write (default: data)")
    download.set_defaults(run=run_download)

    subset = commands.add_parser("subset", help="take a few scenarios of a data file")
    subset.add_argument("input", type=Path)
    subset.add_argument("output", type=Path)
    subset.add_argument("--limit", type=int, default=3, metavar="N", help="how many (default: 3)")
    subset.add_argument("--seed", type=int, help="a random sample instead of the first ones")
    subset.set_defaults(run=run_subset)

    backend.add(commands)
    diff.add(commands)
    doctor.add(commands)

    show = commands.add_parser("show", help="print a run again, or as another tool would have printed it")
    show.takes_run()
    show.add_argument(
        "--as", dest="tool", metavar="TOOL", help="the tool's table by its definitions: aiperf guidellm mlperf nat vllm-bench"
    )
    show.takes_reports()
    show.set_defaults(run=run_show)

    gate.add(commands)
    baseline.add(commands)
    calibrate.add(commands)
    power.add(commands)
    rescore.add(commands)
    schema.add(commands)
    scrub.add(commands)
    imports.add(commands)
    env.add(commands)
    weights.add(commands)
    return top


def run_download(options: argparse.Namespace) -> None:
    from pytest_agentbench.suites.datasets.hub import download

    download(options.domains, options.revision, options.output)


def run_subset(options: argparse.Namespace) -> None:
    from pytest_agentbench.suites.datasets.subset import subset

    written = subset(options.input, options.output, options.limit, options.seed)
    print(f"wrote {written} scenarios to {options.output}")


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
