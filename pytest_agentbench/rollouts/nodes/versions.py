"""The versions of code and Python that a session and its node workers have to share."""

from __future__ import annotations

import platform

from pytest_agentbench.rollouts.nodes.suite_files import package_hash


def versions() -> tuple[str, str]:
    """Returns the hash of this package's code, and the version of Python without the patch number."""
    return package_hash(), ".".join(platform.python_version_tuple()[:2])
