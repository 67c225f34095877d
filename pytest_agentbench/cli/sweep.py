"""`agentbench sweep`: runs a suite at several concurrency levels, and finds the greatest one that meets the objectives."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_agentbench.cli.output import print_document
from pytest_agentbench.cli.parser import option
from pytest_agentbench.cli.sessions import QUIET, run_session
from pytest_agentbench.cli.what_if import counts
from pytest_agentbench.errors import AgentbenchError, ConfigError
from pytest_agentbench.gate.exit_status import CANNOT_MEASURE, CANNOT_TELL, FAILED, OK
from pytest_agentbench.runs.option import objective
from pytest_agentbench.sweep.levels import Criteria

FOLDER = "sweep"  # name of the folder in the run directory

#: Exit statuses of sessions that came to their end. A backend that fails at the greatest level is an answer, not a mistake.
ENDED = (OK, FAILED, CANNOT_MEASURE, CANNOT_TELL)


class SessionFailed(AgentbenchError):
    """The pytest session of a sweep did not measure anything. It has printed the reason."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the session ended with status {status}, see above; nothing was measured")
        self.exit_status = status


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    command = commands.add_parser(
        "sweep",
        help="Run a suite at several concurrency levels",
        description="Arguments after `--` go to pytest.",
        example="agentbench sweep scenarios/banking --concurrency 2,4 -- --agentbench-limit 20",
    )
    command.add_argument("suite", metavar="SUITE", help="the suite's folder, or a part of the suite as a pytest argument")
    command.add_argument(
        "--concurrency", type=option(levels), default=(8, 16, 32), metavar="N,N", help="numbers of rollouts in flight (default: 8,16,32)"
    )
    command.add_argument(
        "--find",
        action="store_true",
        help="find the highest level that meets the objectives, between the lowest and the highest --concurrency; runs several sessions",
    )
    command.add_argument("--backend", metavar="NAME", help="the backend under test, as for --agentbench-backend")
    command.add_argument("--trials", type=int, metavar="N", help="trials per scenario, as for --agentbench-trials")
    command.add_argument(
        "--slo",
        type=option(objective, whole=True),
        action="append",
        default=[],
        metavar="NAME=TIME",
        help="a latency objective of goodput, for example ttft=500ms",
    )
    command.add_argument(
        "--target",
        type=_share,
        default=Criteria.target,
        metavar="SHARE",
        help="share of calls that must meet the objectives (default: 0.9)",
    )
    command.add_argument(
        "--margin",
        type=_share,
        default=Criteria.margin,
        metavar="M",
        help="accepted drop of the main score, compared with the lowest level (default: 0.05)",
    )
    command.add_argument("--output", type=Path, metavar="DIR", help=f"a new directory for the files (default: RUN/{FOLDER})")
    command.takes_rest()
    command.takes_reports()
    command.set_defaults(run=run_sweep)


def levels(text: str) -> tuple[int, ...]:
    """Reads two or more concurrency levels, such as `8,16,32`. Returns them sorted."""
    every = tuple(sorted({*counts(text)}))
    if len(every) < 2:
        raise ValueError("at least two different numbers, separated by commas, such as 8,16,32")
    return every


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 0 and less than 1")
    return value


def run_sweep(options: argparse.Namespace) -> None:
    """Runs the sessions. Prints the measurements of each concurrency level, the conclusions, and with --find the level that was found."""
    if options.output and options.output.exists():
        raise ConfigError(f"{options.output} exists already; remove it, or name another directory with --output DIR")
    if options.find and options.output:
        raise ConfigError("--find runs several sessions, and each writes its files to its own run directory; leave out --output")
    terms = Criteria(dict(options.slo), options.target, options.margin)
    if options.find:
        _find(options, terms)
    else:
        _measure(options, options.concurrency, terms)


def _find(options: argparse.Namespace, terms: Criteria) -> None:
    from pytest_agentbench.reports.capacity_phrases import search_result
    from pytest_agentbench.sweep.levels import search

    low, high = options.concurrency[0], options.concurrency[-1]
    best = search(lambda level: _measure(options, (low, level), terms), low, high)
    print(search_result(low, high, best, terms))


def _measure(options: argparse.Namespace, concurrencies: Sequence[int], terms: Criteria) -> Mapping[int, str]:
    """Runs one session, prints its measurements and writes them to files. Returns concurrency -> verdict (PASS, FAIL or INCONCLUSIVE)."""
    from pytest_agentbench.reports.sweep import document, write
    from pytest_agentbench.sweep.levels import judgements, read_sweep, verdicts

    directory, status = _session(options, concurrencies)
    sweep = read_sweep(directory)
    if not sweep.is_measured:
        raise SessionFailed(status)
    judged = judgements(sweep, terms)
    print_document(document(sweep, judged, terms))
    output = options.output or directory / FOLDER
    print(f"wrote {', '.join(file.name for file in write(sweep, terms, output))} to {output}")
    return verdicts(judged)


def _session(options: argparse.Namespace, concurrencies: Sequence[int]) -> tuple[Path, int]:
    """Runs one session that compares these concurrency levels as arms. Returns its run directory and its exit status.

    Raises SessionFailed if the session did not finish. Failed tests do not matter.
    """
    words = [options.suite, f"--agentbench-ab=set:concurrency={'|'.join(map(str, concurrencies))}", *QUIET]
    words += [f"--agentbench-slo={name}={value:g}ms" for name, value in options.slo]
    words += [f"--agentbench-backend={options.backend}"] if options.backend else []
    words += [f"--agentbench-trials={options.trials}"] if options.trials else []
    ended = run_session([*words, *options.rest], options.reports)
    if ended.status not in ENDED or ended.directory is None:
        raise SessionFailed(ended.status or FAILED)
    return ended.directory, ended.status
