"""`agentbench doctor`: checks that this machine has what the backends need."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_agentbench.errors import ConfigError, MissingError
from pytest_agentbench.lib.options import LoginUrl

if TYPE_CHECKING:
    from pytest_agentbench.backends.doctor.check import Check

MARKS = {"ok": "✓", "missing": "✗", "unknown": "?", "absent": "-"}


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    doctor = commands.add_parser(
        "doctor",
        help="Check that this machine has what the backends need, and show how to install what is missing",
        example="agentbench doctor vllm",
    )
    doctor.add_argument(
        "backends",
        nargs="*",
        metavar="BACKEND",
        help="name, YAML file or URL of a backend; SETTINGS.yaml of a retriever; or the folder of a suite with a retriever "
        "(default: this machine and all backends in backends/)",
    )
    doctor.add_argument(
        "--probe",
        action="store_true",
        help="make the smallest CUDA call in the environment or container of each service with GPUs of the backends (it leases one GPU)",
    )
    doctor.set_defaults(run=run_doctor)


def run_doctor(options: argparse.Namespace) -> None:
    """Prints a line for each check. Raises MissingError if a named backend, retriever or suite lacks something."""
    if not options.backends:
        if options.probe:
            raise ConfigError("--probe needs the name or the YAML file of a backend, for example: agentbench doctor --probe vllm")
        examine_project()
        return
    named = [(name, *_named(name, probe=options.probe)) for name in map(LoginUrl, options.backends)]
    if lacking := [name for name, title, checks in named if _examine(title, checks)]:
        raise MissingError(
            f"this machine lacks something that {', '.join(lacking)} need{'s' * (len(lacking) == 1)}; see the lines with ✗ above"
        )
    print(f"nothing is missing for: {', '.join(name for name, _, _ in named)}")


def _named(name: str, *, probe: bool) -> tuple[str, Iterable[Check]]:
    """Returns the title and the checks of a backend, a retriever or a suite. Raises ConfigError if the name is unknown.

    With `probe`, CUDA is probed after the other checks of a backend. Retrievers and suites are not probed.
    """
    from pytest_agentbench.backends.doctor import checks
    from pytest_agentbench.backends.doctor.cuda_probe import probe_checks
    from pytest_agentbench.backends.doctor.data_files import file_checks, suite_checks
    from pytest_agentbench.backends.spec import load_backend
    from pytest_agentbench.retriever.config import is_retriever
    from pytest_agentbench.suites.folder import load_suite, suite_file

    if Path(name).is_dir():
        suite = load_suite(suite_file(Path(name)))
        return f"{name} (suite)", suite_checks({variant: suite.agent_of(variant) for variant in ("default", *suite.variants)})
    if is_retriever(Path(name)):
        return f"{name} (retriever)", file_checks(Path(name))
    spec = load_backend(name, Path.cwd())
    return f"{name} ({spec.kind})", chain(checks(spec), probe_checks(spec) if probe else ())


def examine_project() -> None:
    """Prints the checks of this machine and of the backends of this project, and the names of the included backends."""
    from pytest_agentbench.backends.doctor.host import host_checks
    from pytest_agentbench.backends.spec import known_backends, own_backends

    print("this machine")
    _print(host_checks())
    names = own_backends(Path.cwd())
    ready = [name for name in names if not _is_incomplete(name)]
    print(f"nothing is missing for: {', '.join(ready) or 'none'}" if names else "this project has no backends/")
    if others := [name for name in known_backends(Path.cwd()) if name not in names]:
        print(f"not checked, because they are included in agentbench and not in backends/: {', '.join(others)}")
        print(f"to check one of them: agentbench doctor {others[0]}")


def _is_incomplete(name: str) -> bool:
    """Checks a backend of the project without calling other machines, and prints the results. Returns whether something is missing.

    If its YAML file is invalid, the error is printed instead of raised, so that the other backends are still checked.
    """
    from pytest_agentbench.backends.doctor import checks
    from pytest_agentbench.backends.spec import load_backend

    try:
        spec = load_backend(name, Path.cwd())
        return _examine(f"{name} ({spec.kind})", checks(spec, reach=False))
    except ConfigError as error:
        print(f"{name}\n  ✗ {error}")
        return True


def _examine(title: str, checks: Iterable[Check]) -> bool:
    """Prints the checks under a title. Returns whether something is missing."""
    print(title)
    return _print(checks)


def _print(checks: Iterable[Check]) -> bool:
    """Prints a line for each check, and how to fix it if it fails. Returns whether something is missing."""
    missing = False
    for check in checks:
        print(f"  {MARKS[check.state]} {check.name:<17} {check.detail}")
        if check.fix:
            print(f"    {'':<17} -> {check.fix}")
        missing |= check.state == "missing"
    return missing
