"""Service level objectives: what a good call is, in latencies, and how many calls were good."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pytest_agentbench.errors import unknown_name
from pytest_agentbench.metrics import registry
from pytest_agentbench.records import LLMCall


def parse(text: str) -> tuple[str, float]:
    """(objective, milliseconds) of `ttft=500ms` or `e2e=30s`; raises ValueError that says what would work."""
    name, _, value = (part.strip() for part in text.partition("="))
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s)", value)
    if name and name not in registry.objectives():
        raise ValueError(unknown_name("objective", name, registry.objectives()))
    if not name or not match or not float(match[1]):
        raise ValueError("should be NAME=TIME, for example ttft=500ms or e2e=30s")
    return name, float(match[1]) * {"ms": 1, "s": 1000}[match[2]]


def values_of(call: LLMCall, names: Iterable[str]) -> dict[str, float | None]:
    """Objective -> nanoseconds of a call; None where it has no such value."""
    known = registry.objectives()
    return {name: of_call(call) if (of_call := known[name].of_call) else None for name in names}


def is_unknown(values: Mapping[str, float | None]) -> bool:
    """Whether a call lacks what every call has that can be judged. One event has no gap and one token no TPOT: that breaks no promise."""
    lacking = [name for name, value in values.items() if value is None]
    if not lacking:  # as of nearly every call
        return False
    known = registry.objectives()
    return any(known[name].expected for name in lacking)


def broken(values: Mapping[str, float | None], objectives: Mapping[str, float]) -> list[str]:
    """The objectives (milliseconds) that values in nanoseconds exceed; what is not there breaks none."""
    return [name for name, value in values.items() if value is not None and value / 1e6 > objectives[name]]


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


@dataclass
class Goodput:
    """Calls by whether they met all objectives (milliseconds). A failed call never did."""

    objectives: Mapping[str, float]
    good: int = 0
    bad: int = 0
    unknown: int = 0
    missed: dict[str, int] = field(default_factory=dict)  # objective -> calls that missed it

    def add(self, call: LLMCall) -> None:
        if call.error_kind:
            self.bad += 1
            return
        values = values_of(call, self.objectives)
        missed = broken(values, self.objectives)
        for name in missed:
            self.missed[name] = self.missed.get(name, 0) + 1
        if missed:
            self.bad += 1
        elif is_unknown(values):
            self.unknown += 1
        else:
            self.good += 1

    def summary(self, span_s: float) -> GoodputSummary | None:
        """None where no objective was asked for."""
        if not self.objectives:
            return None
        judged = self.good + self.bad
        return GoodputSummary(
            slo_ms=dict(self.objectives),
            good_calls=self.good,
            bad_calls=self.bad,
            unknown_calls=self.unknown,
            missed={name: self.missed.get(name, 0) for name in self.objectives},
            attainment=self.good / judged if judged else None,
            goodput_per_s=self.good / span_s if span_s else None,
        )
