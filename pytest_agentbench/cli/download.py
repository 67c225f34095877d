"""`agentbench download ...`: downloads public data sets at a pinned revision."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_agentbench.cli.backend import run_check
from pytest_agentbench.cli.init import write_suite
from pytest_agentbench.cli.sessions import run_session
from pytest_agentbench.errors import ConfigError

SUITE = "openthoughts"


def add(commands: Any) -> None:
    """Adds the parser of this command, with one command for each data set."""
    download = commands.add_parser(
        "download",
        help="Download a public data set at a pinned revision",
        example="agentbench download agent-leaderboard --domains banking",
    )
    sets = download.commands("data sets")
    leaderboard = sets.add_parser(
        "agent-leaderboard", help="Galileo's Agent Leaderboard v2: customers of banks, insurers and others, converted to suites"
    )
    leaderboard.add_argument(
        "--domains",
        nargs="+",
        default=["banking"],
        metavar="DOMAIN",
        help="one or more of: banking healthcare insurance investment telecom (default: banking)",
    )
    leaderboard.add_argument("--revision", help="commit, tag or branch; `main` is the newest (default: a pinned commit)")
    leaderboard.add_argument("--output", type=Path, default=Path("data"), metavar="DIR", help="where to write (default: data)")
    leaderboard.set_defaults(run=run_leaderboard)
    exam = sets.add_parser("hle", help="Humanity's Last Exam (gated: accept its terms on the hub first)")
    exam.add_argument("--revision", required=True, help="commit, tag or branch of the data set's repository; its commit is printed")
    exam.add_argument("--output", type=Path, default=Path("data"), metavar="DIR", help="where to write (default: data)")
    exam.set_defaults(run=run_hle)
    tasks = sets.add_parser(
        "openthoughts",
        help="OpenThoughts' terminal tasks, in Harbor's format",
        description="Arguments after `--` go to pytest.",
        example="agentbench download openthoughts --run -- -n 8 --agentbench-backend=nemotron",
    )
    tasks.add_argument(
        "--dataset",
        default="tb-dev",
        metavar="NAME",
        help="data set: tb-dev, tblite, or owner/name of another repository of the hub (default: tb-dev)",
    )
    tasks.add_argument("--revision", default="main", help="commit, tag or branch (default: main); its commit is recorded")
    tasks.add_argument("--output", type=Path, metavar="DIR", help="where to write (default: scenarios/openthoughts/NAME)")
    tasks.add_argument("--skip-download", action="store_true", help="use the files that are already in the output folder")
    tasks.add_argument(
        "--run", dest="runs", action="store_true", help="then run the suite openthoughts on the tasks, and print the results"
    )
    tasks.add_argument(
        "--agent",
        type=Path,
        metavar="FILE",
        help="with --run: settings of the agent, an agent_config.json or config.yaml; checked before the download",
    )
    tasks.takes_rest()
    tasks.takes_reports()
    tasks.set_defaults(run=run_openthoughts)


def run_leaderboard(options: argparse.Namespace) -> None:
    """Downloads Agent Leaderboard and prints the written files."""
    from pytest_agentbench.suites.datasets.agent_leaderboard_hub import REVISION, download

    download(options.domains, options.revision or REVISION, options.output)


def run_hle(options: argparse.Namespace) -> None:
    """Downloads Humanity's Last Exam and prints the written file."""
    from pytest_agentbench.suites.datasets.hle import download

    download(options.revision, options.output)


def run_openthoughts(options: argparse.Namespace) -> int:
    """Downloads the tasks of OpenThoughts. Prints how to run them, or runs them with --run. Returns the exit status."""
    from pytest_agentbench.suites.datasets.openthoughts import download, local_tasks

    if (options.agent or options.rest) and not options.runs:
        raise ConfigError("--agent and pytest options apply only to a run; add --run")
    agent = agent_words(options)
    tasks = (
        local_tasks(options.dataset, options.output)
        if options.skip_download
        else download(options.dataset, options.revision, options.output)
    )
    chosen = [f"dataset.file={tasks.place.absolute()}", f"dataset.name={tasks.dataset}"]
    words = [word for change in chosen for word in ("--agentbench-set", change)]
    if not options.runs:
        print(f"now run: pytest -m {SUITE} {' '.join(words)}")
        return 0
    if not (folder := Path("scenarios", SUITE)).joinpath("suite.yaml").exists():
        write_suite(SUITE)
    return run_session([str(folder), "-v", *words, *agent, *options.rest], options.reports).status


def agent_words(options: argparse.Namespace) -> list[str]:
    """Returns pytest options for the settings file of --agent: the agent uses the file, and the server that it names is the backend.

    The list is empty without --agent, and has no backend if the file names no server. The server is checked first. If the arguments
    for pytest choose another backend, the server of the file is neither checked nor used.
    """
    from pytest_agentbench.suites.folder import read_agent_config

    if options.agent is None:
        return []
    config = read_agent_config(options.agent)
    words = ["--agentbench-set", f"agent.config={options.agent.absolute()}"]
    if not config.api_base or _choose_server(options.rest):
        return words  # the session that starts a backend checks it
    run_check(argparse.Namespace(name=None, agent=options.agent))
    return [*words, f"--agentbench-backend={config.api_base}"]


def _choose_server(rest: Sequence[str]) -> bool:
    """Returns whether arguments for pytest choose the measured server: a backend, or arms that are backends.

    The answer is also True for arguments that pytest will refuse.
    """
    from pytest_agentbench.suites.arms import BACKEND, parse_arms

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--agentbench-backend")
    parser.add_argument("--agentbench-ab", default="")
    try:
        chosen, _ = parser.parse_known_args(rest)
        arms = parse_arms(chosen.agentbench_ab)
    except (argparse.ArgumentError, ValueError):
        return True
    return chosen.agentbench_backend is not None or any(arm.kind == BACKEND for arm in arms)
