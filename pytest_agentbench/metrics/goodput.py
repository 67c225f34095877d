"""Service level objectives: what a good call is, in latencies, and how many calls were good."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pytest_agentbench.errors import unknown_name
from pytest_agentbench.metrics import timings
from pytest_agentbench.records import Json, LLMCall


def longest_gap_ns(call: LLMCall) -> int | None:
    """What the objective `itl` is about."""
    return max(timings.itl_ns(call), default=None)


#: What an objective may be about, in nanoseconds of one call. `itl` is the call's longest gap: a stall breaks the promise.
OBJECTIVES: Mapping[str, Callable[[LLMCall], float | None]] = {
    "ttft": timings.ttft_ns,
    "itl": longest_gap_ns,
    "tpot": timings.tpot_ns,
    "e2e": timings.e2e_ns,
}

#: A call of one event has no gap and of one token no TPOT, and breaks no promise about them. Without a TTFT it cannot be judged.
EXPECTED = ("ttft", "e2e")


def parse(text: str) -> tuple[str, float]:
    """(objective, milliseconds) of `ttft=500ms` or `e2e=30s`; raises ValueError that says what would work."""
    name, _, value = (part.strip() for part in text.partition("="))
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s)", value)
    if name and name not in OBJECTIVES:
        raise ValueError(unknown_name("objective", name, OBJECTIVES))
    if not name or not found or not float(found[1]):
        raise ValueError("should be NAME=TIME, for example ttft=500ms or e2e=30s")
    return name, float(found[1]) * {"ms": 1, "s": 1000}[found[2]]


def values_of(call: LLMCall, names: Iterable[str]) -> dict[str, float | None]:
    """Objective -> nanoseconds of a call; None where it has no such value."""
    return {name: OBJECTIVES[name](call) for name in names}


def broken(values: Mapping[str, float | None], objectives: Mapping[str, float]) -> list[str]:
    """The objectives (milliseconds) that values in nanoseconds exceed; what is not there breaks none."""
    return [name for name, value in values.items() if value is not None and value / 1e6 > objectives[name]]


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
        elif any(values[name] is None for name in EXPECTED if name in values):
            self.unknown += 1
        else:
            self.good += 1

    def summary(self, span_s: float) -> Json | None:
        """None where no objective was asked for."""
        if not self.objectives:
            return None
        judged = self.good + self.bad
        return {
            "slo_ms": dict(self.objectives),
            "good_calls": self.good,
            "bad_calls": self.bad,
            "unknown_calls": self.unknown,
            "missed": {name: self.missed.get(name, 0) for name in self.objectives},
            "attainment": self.good / judged if judged else None,
            "goodput_per_s": self.good / span_s if span_s else None,
        }
