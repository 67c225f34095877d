"""What a data format has read where it leaves entries out on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_agentbench.suites.suite import Scenario


@dataclass(frozen=True)
class Selection:
    """The scenarios of a file, and what of it is none."""

    scenarios: tuple[Scenario, ...]
    left_out: Mapping[str, int]  # what they are, in the plural, -> how many
