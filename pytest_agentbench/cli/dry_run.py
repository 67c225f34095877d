"""`agentbench dry-run`: prints the job scripts and manifests that a session would submit."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.cli.parser import option
from pytest_agentbench.runs.option import number

if TYPE_CHECKING:
    from pytest_agentbench.backends.spec import BackendSpec

CONCURRENCY = 8
PLACEHOLDER = "HOST:PORT"


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    dry_run = commands.add_parser(
        "dry-run",
        help="Print what a session would submit",
        description="These are the job scripts, manifests and commands that place the backend's services and node workers. Starts nothing",
        example="agentbench dry-run gpu-1 --nodes slurm",
    )
    dry_run.add_argument("backend", metavar="BACKEND", help="a name in backends/, or a YAML file, as for --agentbench-backend")
    dry_run.add_argument("--nodes", metavar="LAUNCHER", help="a launcher of node workers, as for --agentbench-nodes")
    dry_run.add_argument(
        "--join",
        default=PLACEHOLDER,
        metavar=PLACEHOLDER,
        help="where node workers reach the session (default: a placeholder)",
    )
    dry_run.add_argument(
        "--concurrency",
        type=option(number(1)),
        default=CONCURRENCY,
        metavar="N",
        help=f"rollouts in flight of the session (default: {CONCURRENCY})",
    )
    dry_run.set_defaults(run=run_dry_run)


def run_dry_run(options: argparse.Namespace) -> None:
    from pytest_agentbench.backends.spec import load_backend

    spec = load_backend(options.backend, Path.cwd())
    texts = dict(_texts(spec, options))
    if not texts:
        print(f"a session with the backend {spec.name!r} would submit nothing; --nodes names a launcher of node workers")
    for what, text in texts.items():
        print(f"# {what}\n{text.rstrip()}\n")


def _texts(spec: BackendSpec, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yields a title and the text of each thing that a session would submit."""
    for name, text in spec.submissions():
        yield f"service {name}", text
    if options.nodes is not None:
        from pytest_agentbench.errors import ConfigError
        from pytest_agentbench.launchers import checked_launcher, make_launcher
        from pytest_agentbench.launchers.launcher import WorkerTerms

        try:
            checked_launcher(options.nodes)
        except ValueError as error:
            raise ConfigError(f"--nodes {options.nodes}: must be {error}") from error
        logs = Path("reports", "RUN")
        terms = WorkerTerms("RUN", options.join, options.join, "", logs / "nodes.token", (), options.concurrency, logs / "nodes")
        launcher = make_launcher(options.nodes, spec.nodes, f"backend {spec.name!r}")
        yield f"node workers: {launcher.sentence(terms)}", launcher.text(terms)
