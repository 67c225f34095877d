"""What events read late do to the timings of a run: each percentile as measured, beside the same if they were spread evenly."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pytest_agentbench import stamps
from pytest_agentbench.metrics import later_tokens
from pytest_agentbench.quantiles import HIGH, Pool, percentile, series
from pytest_agentbench.records import LLMCall

#: Objectives that look at stamps of events. E2E ends with a connection or the last event, and is late by the read lag at most.
OF_EVENTS = ("ttft", "itl", "tpot")


@dataclass
class Lateness:
    """Counts of events by their stamps, and two versions of what they give."""

    objectives: Mapping[str, float]  # of the SLO -> milliseconds
    events: int = 0  # output events of successful calls
    clean: int = 0  # those with a stamp of their own
    late: int = 0  # those with another one's stamp, because they were read late
    streams: int = 0  # successful calls with output events
    late_streams: int = 0  # of them, those with such an event
    late_firsts: int = 0  # of them, those whose first event is one
    flips: Counter[str] = field(default_factory=Counter)  # objective -> of them, those that would be judged differently
    latencies: defaultdict[str, array[float]] = field(default_factory=series)  # milliseconds, spread evenly
    itl: Pool = field(default_factory=Pool)

    def add(self, call: LLMCall) -> None:
        """Counts a successful call."""
        clean, events = stamps.clean_stamps(call)
        late = stamps.late_stamps(call)
        self.clean += clean
        self.events += events
        self.late += len(late)
        if events:
            self.streams += 1
            self.late_streams += bool(late)
            self.late_firsts += 0 in late
            self._add_timings(call, late)

    def _add_timings(self, call: LLMCall, late: Sequence[int]) -> None:
        evened = timings(call, stamps.evened(call, late))
        self.itl.add(map(round, evened["itl"]))
        for name in ("ttft", "tpot"):
            self.latencies[name].extend(value / 1e6 for value in evened[name])
        if late:
            measured = timings(call, [chunk.at_ns for chunk in call.output])
            for name in self.objectives.keys() & set(OF_EVENTS):
                limit = self.objectives[name] * 1e6
                self.flips[name] += (max(measured[name], default=0) > limit) != (max(evened[name], default=0) > limit)

    def effects(self, measured: Mapping[str, Iterable[float]]) -> dict[str, float]:
        """`itl.p99` -> how far the percentile as measured is from that of events spread evenly, as a share of the latter.

        `measured` has the milliseconds of ttft, tpot and itl. Where no event was late every share is 0.
        """
        evened = {**self.latencies, "itl": self.itl}
        return {
            f"{name}.p{q}": _difference(percentile(measured[name], q), percentile(evened.get(name, ()), q))
            for name in ("ttft", "tpot", "itl")
            for q in HIGH
        }

    def flipped(self) -> dict[str, float]:
        """Objective -> share of the calls with output that late events may have put on the wrong side of it."""
        names = self.objectives.keys() & set(OF_EVENTS)
        return {name: self.flips[name] / self.streams if self.streams else 0.0 for name in sorted(names)}


def timings(call: LLMCall, times_ns: Sequence[float]) -> dict[str, list[float]]:
    """TTFT, TPOT and gaps in nanoseconds of a call whose output came at these times; TPOT is empty where it has none."""
    tokens = later_tokens(call)
    return {
        "ttft": [times_ns[0] - (call.sent_ns or 0)],
        "tpot": [(times_ns[-1] - times_ns[0]) / tokens] if len(times_ns) > 1 and tokens > 0 else [],
        "itl": [later - earlier for earlier, later in pairwise(times_ns)],
    }


def _difference(measured: float | None, evened: float | None) -> float:
    if not measured or not evened:
        return 0.0 if measured == evened else 1.0
    return abs(measured - evened) / evened
