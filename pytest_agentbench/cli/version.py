"""`agentbench version`: the installed package and what it runs on, for a report of a bug."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packaging.requirements import Requirement

NAME = "pytest-agentbench"


def add(commands: Any) -> None:
    """Adds the parser of this command."""
    version = commands.add_parser(
        "version",
        help="Print the versions of this package, of Python, of the platform and of the dependencies",
        example="agentbench version --json",
    )
    version.add_argument("--json", action="store_true", help="print JSON")
    version.set_defaults(run=run_version)


def run_version(options: argparse.Namespace) -> None:
    facts = installation()
    if options.json:
        print(json.dumps(facts, indent=2))
        return
    at, dependencies = facts["platform"], facts["dependencies"]
    print(f"{NAME} {facts['version']} (hash of its code: {facts['code']})")
    print(f"Python        {facts['python']}")
    print(f"platform      {at['system']} {at['machine']}, {at['libc'] or 'unknown C library'}")
    print(f"extras        {', '.join(facts['extras']) or 'none'}")
    print("dependencies  " + "\n              ".join(f"{name} {version or 'is missing'}" for name, version in dependencies.items()))


def installation() -> dict[str, Any]:
    """Returns the facts about this installation. Values are None if they are unknown or missing.

    `code` is the hash of the Python files of the package that node workers compare with that of their session. `extras` are the extras
    whose own requirements are all installed.
    """
    from packaging.requirements import Requirement  # pytest requires this package

    from pytest_agentbench.rollouts.nodes.suite_files import package_hash
    from pytest_agentbench.runs.identity import installed_version

    package = metadata.metadata(NAME)
    required = [Requirement(line) for line in metadata.requires(NAME) or ()]
    hard = [each for each in required if _applies(each)]
    extras = {
        name: [each for each in required if each not in hard and _applies(each, name)] for name in package.get_all("Provides-Extra", [])
    }
    return {
        "version": package["Version"],
        "code": package_hash(),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": {"system": platform.system(), "machine": platform.machine(), "libc": " ".join(platform.libc_ver()).strip() or None},
        "extras": [name for name, needs in extras.items() if _are_installed(needs)],
        "dependencies": {each.name: installed_version(each.name) for each in hard},
    }


def _applies(requirement: Requirement, extra: str = "") -> bool:
    """Returns whether a requirement applies to this Python and this platform, if an extra is installed."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _are_installed(requirements: Sequence[Requirement]) -> bool:
    """Returns whether there are requirements, and a fitting version of each is installed."""
    from pytest_agentbench.runs.identity import installed_version

    versions = [(each, installed_version(each.name)) for each in requirements]
    return bool(versions) and all(version and each.specifier.contains(version, prereleases=True) for each, version in versions)
