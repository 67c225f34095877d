"""A data set that an installed package brings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_agentbench.suites.suite import Scenario


@dataclass(frozen=True)
class PackagedData:
    """What was read, and of what: the bytes are known, so that nobody has to check them again."""

    package: str
    version: str
    sha256: str  # of all files that were read, one after the other
    scenarios: tuple[Scenario, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)  # as in a Selection
