"""What events read late do to the timings of a run: each percentile as measured, beside the same if they were spread evenly."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_agentbench.metrics import stamps, timings
from pytest_agentbench.metrics.goodput import broken, values_of
from pytest_agentbench.records import LLMCall
from pytest_agentbench.stats.percentiles import HIGH, Distribution, percentile, series

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
    itl: Distribution = field(default_factory=Distribution)

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
        evened = stamps.evened(call, late)
        self.itl.add(timings.itl_ns(evened))
        for name, value in values_of(evened, ("ttft", "tpot")).items():
            if value is not None:
                self.latencies[name].append(value / 1e6)
        if late:
            measured, spread = (set(broken(values_of(each, self._names), self.objectives)) for each in (call, evened))
            self.flips.update(measured ^ spread)

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
        return {name: self.flips[name] / self.streams if self.streams else 0.0 for name in self._names}

    @property
    def _names(self) -> list[str]:
        """The objectives that look at stamps of events."""
        return sorted(self.objectives.keys() & set(OF_EVENTS))


def _difference(measured: float | None, evened: float | None) -> float:
    if not measured or not evened:
        return 0.0 if measured == evened else 1.0
    return abs(measured - evened) / evened
