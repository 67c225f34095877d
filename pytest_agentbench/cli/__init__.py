"""`agentbench ...`: sets up a project, fetches data and shows runs. Benchmarks themselves are run with pytest."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import metadata
from pathlib import Path
from typing import TextIO, cast

from pytest_agentbench.cli.output import OutputClosed, Pipe, abandon
from pytest_agentbench.cli.parser import Parser
from pytest_agentbench.errors import AgentbenchError
from pytest_agentbench.lib.file_system import shipped
from pytest_agentbench.lib.foreign import ForeignOutput
from pytest_agentbench.lib.user_code import load_object

#: Group in the help -> command -> function that adds its parser, which names the function that runs it. A new command is a file here and a
#: line.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "first run": {
        "init": "pytest_agentbench.cli.init:add",
        "doctor": "pytest_agentbench.cli.doctor:add",
        "download": "pytest_agentbench.cli.download:add",
        "subset": "pytest_agentbench.cli.subset:add",
    },
    "look": {
        "show": "pytest_agentbench.cli.show:add",
        "report": "pytest_agentbench.cli.report:add",
        "watch": "pytest_agentbench.cli.watch:add",
        "plot": "pytest_agentbench.cli.plot:add",
        "trend": "pytest_agentbench.cli.trend:add",
    },
    "compare": {
        "compare": "pytest_agentbench.cli.compare:add",
        "sweep": "pytest_agentbench.cli.sweep:add",
        "optimize": "pytest_agentbench.cli.optimize:add",
        "what-if": "pytest_agentbench.cli.what_if:add",
        "reproduce": "pytest_agentbench.cli.reproduce:add",
    },
    "gate": {
        "gate": "pytest_agentbench.cli.gate:add",
        "baseline": "pytest_agentbench.cli.baseline:add",
        "calibrate": "pytest_agentbench.cli.calibrate:add",
        "power": "pytest_agentbench.cli.power:add",
        "rescore": "pytest_agentbench.cli.rescore:add",
    },
    "backends": {
        "backend": "pytest_agentbench.cli.backend:add",
        "cleanup": "pytest_agentbench.cli.backend:add_cleanup",
        "env": "pytest_agentbench.cli.env:add",
        "weights": "pytest_agentbench.cli.weights:add",
        "cassette": "pytest_agentbench.cli.cassette:add",
        "hints": "pytest_agentbench.cli.hints:add",
        "retriever": "pytest_agentbench.cli.retriever:add",
        "worker": "pytest_agentbench.cli.worker:add",
        "dry-run": "pytest_agentbench.cli.dry_run:add",
    },
    "tools": {
        "import": "pytest_agentbench.cli.imports:add",
        "export": "pytest_agentbench.cli.export:add",
        "share": "pytest_agentbench.cli.share:add",
        "schema": "pytest_agentbench.cli.schema:add",
        "scrub": "pytest_agentbench.cli.scrub:add",
        "version": "pytest_agentbench.cli.version:add",
    },
}
COMMANDS: Mapping[str, str] = {name: path for group in GROUPS.values() for name, path in group.items()}

INTERRUPTED, UNREAD = 128 + 2, 128 + 13  # exit statuses that a shell gives to programs ended by SIGINT and SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status. An AgentbenchError is printed on stderr, and its `exit_status` is returned."""
    streams = sys.stdout, sys.stderr
    out, errors = (ForeignOutput(cast("TextIO", Pipe(stream))) for stream in streams)  # texts of models and servers are escaped
    try:
        with redirect_stdout(cast("TextIO", out)), redirect_stderr(cast("TextIO", errors)):
            try:
                return _run(arguments)
            finally:
                out.flush()
                errors.flush()
    except OutputClosed:
        abandon(*streams)
        return UNREAD


def _run(arguments: Sequence[str] | None) -> int:
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    # Modules of other commands take half a second of CPU to import, and a session starts node workers with this command.
    options = parser(words[:1] if words and words[0] in COMMANDS else COMMANDS).parse_args(words)
    try:
        status: int | None = options.run(options)
    except AgentbenchError as error:
        print(f"agentbench: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("agentbench: interrupted", file=sys.stderr)
        return INTERRUPTED
    return status or 0


def parser(names: Collection[str] = tuple(COMMANDS)) -> Parser:
    """Returns the parser of the command line with these commands. If it has all commands, its help lists them in groups."""
    about = f"Agent benchmarks as pytest suites. To run one: pytest scenarios/banking\nDocumentation (docs/): {shipped('docs')}"
    top = Parser(prog="agentbench", description=about)
    top.add_argument("--version", action="version", version=f"agentbench {metadata.version('pytest-agentbench')}")
    commands = top.commands(groups=GROUPS)
    for name in names:
        load_object("command", name, COMMANDS, Path())(commands)
    return top
