"""Types that a data format may return instead of scenarios: Selection, if it left out entries, and PackagedData, if it read a package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_agentbench.suites.suite import Scenario


@dataclass(frozen=True)
class Selection:
    """The scenarios of a data file, and the numbers of entries that the format left out on purpose."""

    scenarios: tuple[Scenario, ...]
    left_out: Mapping[str, int]  # kind of entries, a plural noun -> number


@dataclass(frozen=True)
class PackagedData:
    """The scenarios of an installed package. Its format has compared the files with a known hash, so the scenarios
    need no further checks.
    """

    package: str
    version: str
    sha256: str  # hash of all files that were read, in their order
    scenarios: tuple[Scenario, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)  # kind of entries, a plural noun -> number
