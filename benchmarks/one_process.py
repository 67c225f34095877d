"""one_process: CPU of 100 scenarios, 48 in flight without workers: pytest, pool and tap"""

from __future__ import annotations

import statistics

from benchmarks.measurement import Figure, Options, Result, each_of, run_pytest, seconds
from benchmarks.workplace import BARE, SUITE, calls_of, hundred, processes, workplace

IN_FLIGHT = "--agentbench-concurrency=48"
RUNS = 5
LIMIT = 2.0


def measure(options: Options) -> Result:
    bare, ours, parts = [], [], []
    with workplace() as place:
        place.suite(hundred())
        place.backend(tokens=20)
        place.bare(100)
        run_pytest(place.root, IN_FLIGHT, SUITE)  # compiles what is compiled once
        for _ in range(options.repeat or RUNS):
            bare.append(run_pytest(place.root, *BARE).cpu_s)
            cpu = run_pytest(place.root, IN_FLIGHT, SUITE).cpu_s
            children = processes(place.last_run(calls_of(hundred())))
            parts.append({"pytest": cpu - sum(children.values()), **children})
            ours.append(cpu - children["engine"])
    total, floor = statistics.median(ours), statistics.median(bare)
    medians = {name: statistics.median(each[name] for each in parts) for name in parts[0]}
    return Result(
        [Figure("one_process.cpu", total, "s", LIMIT, f"{total / floor:.1f}x bare pytest")],
        [
            f"one_process.cpu: 350 LLM calls, {total / 350 * 1e3:.1f} ms each; a bare pytest takes {floor:.2f} s for 100 empty tests",
            f"runs {seconds(ours)}",
            f"medians of {each_of(medians)} s; the engine is beside it, not in it",
        ],
    )
