"""Facts about a suite that tests may read, in a module of its own, so that test processes need not import suites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SuiteInfo:
    """What a test may know of its suite."""

    name: str
    description: str
    ids: tuple[str, ...]  # of all scenarios of the data set
    variants: tuple[str, ...]  # that run
    trials: int
    thresholds: Mapping[str, float]  # in force
    scorers: tuple[str, ...]  # names of scores, the first of which is the suite's main one
    label_source: str  # of its data: `hand`, `heuristic-v1`, ...
    quarantined: Mapping[str, str]  # scenario -> by whom, why and until when
