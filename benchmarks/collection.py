"""collect: time and memory of collecting 10,000 scenarios in one process"""

from __future__ import annotations

from benchmarks.measurement import Figure, Options, Result, run_pytest
from benchmarks.workplace import BARE, MOST_TURNS, SUITE, workplace

SCENARIOS = 10_000
LIMIT_S = 8
LIMIT_MB = 400


def measure(options: Options) -> Result:
    del options  # one size
    with workplace() as place:
        place.suite([1 + number % MOST_TURNS for number in range(SCENARIOS)])
        place.backend(tokens=20)
        place.bare(SCENARIOS)
        run_pytest(place.root, "--co", "--agentbench-limit=1", SUITE)  # compiles what is compiled once
        bare = run_pytest(place.root, "--co", *BARE)
        ours = run_pytest(place.root, "--co", SUITE)
    return Result(
        [
            Figure("collect.wall", ours.wall_s, "s", LIMIT_S, f"{ours.wall_s / bare.wall_s:.2f}x bare pytest"),
            Figure("collect.memory", ours.peak_mb, "MB", LIMIT_MB, f"{ours.peak_mb / bare.peak_mb:.2f}x bare pytest"),
        ],
        [f"bare pytest collects as many parameters of one empty test in {bare.wall_s:.2f} s and {bare.peak_mb:.0f} MB"],
    )
