"""Service level objectives: what a good call is, in latencies, and how many calls were good."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_agentbench.errors import unknown_name
from pytest_agentbench.metrics import registry
from pytest_agentbench.metrics.slice_metrics import call_verdicts, goodput_per_s, ratio
from pytest_agentbench.metrics.terms import BAD, GOOD, UNKNOWN, Objective, misses

if TYPE_CHECKING:
    from pytest_agentbench.metrics.frame import Slice


def parse(text: str) -> tuple[str, float]:
    """(objective, milliseconds) of `ttft=500ms` or `e2e=30s`; raises ValueError that says what would work."""
    name, _, value = (part.strip() for part in text.partition("="))
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s)", value)
    if name and name not in registry.objectives():
        raise ValueError(unknown_name("objective", name, registry.objectives()))
    if not name or not match or not float(match[1]):
        raise ValueError("should be NAME=TIME, for example ttft=500ms or e2e=30s")
    return name, float(match[1]) * {"ms": 1, "s": 1000}[match[2]]


def objectives_of(slo: Mapping[str, float]) -> tuple[Objective, ...]:
    """Returns the objectives of `--agentbench-slo`: objective -> milliseconds."""
    known = registry.objectives()
    return tuple(Objective(name, limit, known[name].judged_key, known[name].expected) for name, limit in slo.items())


@dataclass(frozen=True)
class GoodputSummary:
    """How many calls were good."""

    slo_ms: Mapping[str, float]  # objective -> milliseconds
    good_calls: int  # that met all objectives
    bad_calls: int  # that missed one, or failed
    unknown_calls: int  # successful calls without the stamps to judge them by
    missed: Mapping[str, int]  # objective -> calls that missed it
    attainment: float | None  # good / (good + bad)
    goodput_per_s: float | None  # good calls per second of `span_s`


def goodput(part: Slice) -> GoodputSummary | None:
    """Returns how many calls of a slice were good. A failed call never was. None without objectives."""
    objectives = part.terms.objectives
    if not objectives:
        return None
    verdicts = call_verdicts(part)
    good, bad, unknown = (int((verdicts == each).sum()) for each in (GOOD, BAD, UNKNOWN))
    return GoodputSummary(
        slo_ms={each.name: each.limit_ms for each in objectives},
        good_calls=good,
        bad_calls=bad,
        unknown_calls=unknown,
        missed={each.name: int(misses(part.successful_calls.__getitem__, each).sum()) for each in objectives},
        attainment=ratio(good, good + bad),
        goodput_per_s=goodput_per_s(part),
    )
