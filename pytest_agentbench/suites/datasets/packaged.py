"""A data set that an installed package brings."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_agentbench.suites.suite import Scenario


@dataclass(frozen=True)
class Packaged:
    """What was read, and of what: the bytes are known, so that nobody has to check them again."""

    package: str
    version: str
    sha256: str  # of all files that were read, one after the other
    scenarios: tuple[Scenario, ...]
