"""workers: CPU of 48 xdist workers (--agentbench-workers=48) on 100 scenarios, relative to plain `pytest -n 48` on 100 empty tests"""

from __future__ import annotations

import statistics

from benchmarks.measurement import Figure, Options, Result, each_of, run_pytest, seconds
from benchmarks.workplace import BARE, SUITE, calls_of, hundred, processes, workplace

WORKERS = ("-n", "48")
LITERAL = (*WORKERS, "--agentbench-workers=48")
PAIRS = 3
LIMIT = 1.15


def measure(options: Options) -> Result:
    bare, ours, beside = [], [], []
    with workplace() as place:
        place.suite(hundred())
        place.backend(tokens=20)
        place.bare(100)
        warm_up = ("-n", "2")  # compiles what is compiled once
        run_pytest(place.root, *warm_up, *BARE)
        run_pytest(place.root, *warm_up, SUITE)
        for _ in range(options.repeat or PAIRS):
            bare.append(run_pytest(place.root, *WORKERS, *BARE).cpu_s)
            cpu = run_pytest(place.root, *LITERAL, SUITE).cpu_s
            beside.append(processes(place.last_run(calls_of(hundred()))))
            ours.append(cpu - sum(beside[-1].values()))
    ratio = statistics.median(mine / other for mine, other in zip(ours, bare, strict=True))
    medians = {name: statistics.median(each[name] for each in beside) for name in beside[0]}
    return Result(
        [Figure("workers.cpu", ratio, "x", LIMIT, f"{statistics.median(ours):.1f} s over {statistics.median(bare):.1f} s")],
        [
            "workers.cpu: controller and workers; median of the pairs' ratios; the same plugins on both sides, agentbench on ours",
            f"ours {seconds(ours)}; bare {seconds(bare)}",
            f"beside it {each_of(medians)} s of CPU",
        ],
    )
