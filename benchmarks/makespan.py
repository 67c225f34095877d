"""makespan: wall time with TTFT 200 ms, ITL 10 ms and 40 tokens per answer, against the longest-first schedule"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measurement import Cost, Figure, Options, Result, run_pytest, seconds
from benchmarks.one_process import IN_FLIGHT
from benchmarks.workers import LITERAL, WORKERS
from benchmarks.workplace import BARE, SUITE, Workplace, calls_of, hundred, workplace

PAIRS = 2
SLOTS = 48
TOKENS = 40
UNKNOWN, KNOWN = 1.25, 1.1  # of the longest-first schedule, plus one second
LATER = 1.5  # seconds after the later of bare -n 48 and the longest-first schedule


def measure(options: Options) -> Result:
    with workplace() as place:
        place.suite(hundred())
        place.backend(TOKENS, ttft_ms=200, itl_ms=10)
        place.bare(100)
        unknown, known = (Session.run(place, IN_FLIGHT) for _ in range(2))
        pairs = [(run_pytest(place.root, *WORKERS, *BARE), Session.run(place, *LITERAL)) for _ in range(options.repeat or PAIRS)]
    bares, ours = [bare.wall_s for bare, _ in pairs], [session.cost.wall_s for _, session in pairs]
    possible = [max(bare.wall_s, session.longest_first) for bare, session in pairs]
    later = [wall - earliest for wall, earliest in zip(ours, possible, strict=True)]
    times = statistics.median(ours) / statistics.median(possible)
    return Result(
        [
            *unknown.figures("makespan.unknown", UNKNOWN),
            *known.figures("makespan.known", KNOWN),
            Figure("makespan.workers", statistics.median(later), "s later", LATER, f"{times:.2f}x the later of both"),
        ],
        [
            "longest first: the list schedule of the rollouts' own durations in 48 slots; `unknown` is the first run, `known` the second",
            "`.span` is from the first rollout's start to the last one's end, `.command` from the command's start to its end",
            f"makespan.workers: 48 workers {seconds(ours)}; bare -n 48 {seconds(bares)}; median of the differences {seconds(later)}",
        ],
    )


@dataclass(frozen=True)
class Session:
    """A measured pytest session, and how long it would have taken with the longest rollouts first."""

    cost: Cost
    span: float  # seconds from the first rollout's start to the last one's end
    longest_first: float  # seconds that the longest-first schedule of the same rollouts takes

    @classmethod
    def run(cls, place: Workplace, *arguments: str) -> Session:
        cost = run_pytest(place.root, *arguments, SUITE)
        run = place.last_run(calls_of(hundred()))
        durations = [rollout.duration_s for rollout in place.last_rollouts()]
        return cls(cost, run.performance.span_s, longest_first(durations, SLOTS))

    def figures(self, name: str, times: float) -> list[Figure]:
        limit = times * self.longest_first + 1
        return [
            Figure(f"{name}.span", self.span, "s", limit, f"{self.span / self.longest_first:.2f}x longest first"),
            Figure(f"{name}.command", self.cost.wall_s, "s", limit, f"{self.cost.wall_s / self.longest_first:.2f}x longest first"),
        ]


def longest_first(durations: Sequence[float], slots: int) -> float:
    """Returns the duration of the longest-first schedule: each free slot takes the longest rollout that is left."""
    ends = [0.0] * slots
    for duration in sorted(durations, reverse=True):
        heapq.heapreplace(ends, ends[0] + duration)
    return max(ends)
