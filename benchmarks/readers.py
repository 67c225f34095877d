"""readers: CPU of `-n 48` on 100 scenarios relative to one process with 48 in flight, and to plain `pytest -n 48` on 100 empty tests"""

from __future__ import annotations

import statistics

from benchmarks.measurement import Cost, Figure, Options, Result, run_pytest, seconds
from benchmarks.one_process import IN_FLIGHT
from benchmarks.workers import LITERAL, WORKERS
from benchmarks.workplace import BARE, SUITE, hundred, workplace

ROUNDS = 3
WAYS = {"-n 48": (*WORKERS, SUITE), "one process": (IN_FLIGHT, SUITE), "literal": (*LITERAL, SUITE), "bare": (*WORKERS, *BARE)}
OVER_ONE, OVER_BARE = 1.5, 0.5


def measure(options: Options) -> Result:
    costs: dict[str, list[Cost]] = {name: [] for name in WAYS}
    with workplace() as place:
        place.suite(hundred())
        place.backend(tokens=20)
        place.bare(100)
        run_pytest(place.root, IN_FLIGHT, SUITE)  # compiles what is compiled once
        for _ in range(options.repeat or ROUNDS):
            for name, arguments in WAYS.items():
                costs[name].append(run_pytest(place.root, *arguments))
    cpu = {name: statistics.median(each.cpu_s for each in some) for name, some in costs.items()}
    wall = {name: statistics.median(each.wall_s for each in some) for name, some in costs.items()}
    return Result(
        [
            Figure("readers.cpu", cpu["-n 48"] / cpu["one process"], "x", OVER_ONE, f"{cpu['-n 48']:.1f} s"),
            Figure("readers.wall", wall["-n 48"] / wall["one process"], "x", OVER_ONE, f"{wall['-n 48']:.1f} s"),
            Figure("readers.bare", cpu["-n 48"] / cpu["bare"], "x", OVER_BARE, f"bare {cpu['bare']:.1f} s"),
        ],
        [
            f"{name}: CPU {seconds([each.cpu_s for each in some])}, wall {seconds([each.wall_s for each in some])}"
            for name, some in costs.items()
        ],
    )
