"""Facts about a suite for its tests. This is a separate module, so that test processes need not import all of `suites`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SuiteInfo:
    """Facts about a suite, which its tests get as the fixture `suite`."""

    name: str
    description: str
    ids: tuple[str, ...]  # ids of all scenarios of the data set
    variants: tuple[str, ...]  # names of the variants that run
    trials: int
    thresholds: Mapping[str, float]  # score -> threshold in force
    scorers: tuple[str, ...]  # names of the scores; the first one is the main score
    label_source: str  # source of the labels: `hand`, `heuristic-v1`, ...
    quarantined: Mapping[str, str]  # scenario -> sentence with owner, reason and last day
