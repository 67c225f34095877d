"""What a data format returns if it does more than list scenarios: it left entries out on purpose, or read an installed package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_agentbench.suites.suite import Scenario


@dataclass(frozen=True)
class Selection:
    """The scenarios of a file, and what of it is none."""

    scenarios: tuple[Scenario, ...]
    left_out: Mapping[str, int]  # what they are, in the plural, -> how many


@dataclass(frozen=True)
class PackagedData:
    """What was read, and of what: the bytes are known, so that nobody has to check them again."""

    package: str
    version: str
    sha256: str  # of all files that were read, one after the other
    scenarios: tuple[Scenario, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)  # as in a Selection
