"""`agentbench doctor`: what backends need of this machine, and what of it is missing."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pytest_agentbench.errors import ConfigError, MissingError

MARKS = {"ok": "✓", "missing": "✗", "unknown": "?"}


def add(commands: Any) -> None:
    """The parser of this command."""
    doctor = commands.add_parser("doctor", help="what backends need of this machine, what is missing, and how to get it")
    doctor.add_argument("backends", nargs="*", metavar="BACKEND", help="a name, a YAML file or a URL (default: all in backends/)")
    doctor.set_defaults(run=run_doctor)


def run_doctor(options: argparse.Namespace) -> None:
    """One line for each check; a backend that was named and lacks something is an error."""
    from pytest_agentbench.serving.spec import known_backends

    names = options.backends or known_backends(Path.cwd())
    lacking = [name for name in names if _examine(name, reach=bool(options.backends))]
    if options.backends and lacking:
        raise MissingError(f"this machine lacks something that {', '.join(lacking)} need{'s' * (len(lacking) == 1)}")
    print(f"nothing is missing for: {', '.join(name for name in names if name not in lacking) or 'none'}")


def _examine(name: str, *, reach: bool) -> bool:
    """Prints what a backend needs; returns whether something is missing."""
    from pytest_agentbench.serving.doctor import checks
    from pytest_agentbench.serving.spec import load_backend

    try:
        spec = load_backend(name, Path.cwd())
    except ConfigError as error:
        print(f"{name}\n  ✗ {error}")
        return True
    print(f"{name} ({spec.kind})")
    found = checks(spec, reach=reach)
    for check in found:
        print(f"  {MARKS[check.state]} {check.name:<17} {check.detail}")
        if check.fix:
            print(f"    {'':<17} -> {check.fix}")
    return any(check.state == "missing" for check in found)
