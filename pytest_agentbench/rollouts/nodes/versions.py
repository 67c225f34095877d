"""The versions of code and Python that a session and its node workers have to share."""

from __future__ import annotations

import platform

from pytest_agentbench.rollouts.nodes.protocol import Join
from pytest_agentbench.rollouts.nodes.suite_files import package_hash


def versions() -> tuple[str, str]:
    """Returns the hash of this package's code, and the version of Python without the patch number."""
    return package_hash(), ".".join(platform.python_version_tuple()[:2])


def join_problem(join: Join) -> str:
    """Returns why a node worker cannot take part in a session of this process, or an empty text."""
    if join.slots < 1:
        return f"it has {join.slots} slots"
    own = versions()
    if (join.package, join.python) == own:
        return ""
    return (
        f"it has package {join.package} on Python {join.python}, and the session has package {own[0]} on Python {own[1]}; "
        "install the same version of pytest-agentbench on both"
    )
