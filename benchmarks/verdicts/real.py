"""verdicts_real: how often the gate's verdicts on real runs of the banking suite are wrong; the engine has a known error rate"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import count, permutations, product
from pathlib import Path

from benchmarks.measurement import BenchmarkError, Figure, Options, Result, run_pytest
from benchmarks.timing.table import processor
from benchmarks.verdicts.benchmark import COVERAGE, RISK, within
from benchmarks.verdicts.pairs import Pair, Run, judge_pairs
from benchmarks.verdicts.real_page import RealPage, Same, Target, Worse
from benchmarks.workplace import Workplace, workplace
from pytest_agentbench.gate.baselines import read_evidence

BANKING = Path(__file__).parents[2] / "scenarios/banking"
RUNS = 50
ERROR_RATE = 0.1
RAISED = (0.5, 0.9)  # the agent repairs many a wrong call: the score falls by much less
MARGINS = (0.03, 0.05, 0.1, 0.2)
QUICK_RUNS, QUICK_SCENARIOS = 3, 20

#: Only the engine's errors may make a difference, and no scenario may fail its test.
OPTIONS = ("-p", "no:xdist", "--agentbench-threshold=tsq=0", "--agentbench-threshold=tsq.mean=0")


def measure(options: Options) -> Result:
    runs = options.repeat or (QUICK_RUNS if options.quick else RUNS)
    if runs < 2:
        raise BenchmarkError("--repeat must be at least 2, because runs are compared with each other")
    rates = RAISED[-1:] if options.quick else RAISED
    part = (f"--agentbench-limit={QUICK_SCENARIOS}",) if options.quick else ()
    with workplace() as place:
        prepare(place)
        seeds = count(1)  # no two runs have the same
        began = time.monotonic()
        same = [session(place, ERROR_RATE, next(seeds), part) for _ in range(runs)]
        raised = {rate: [session(place, rate, next(seeds), part) for _ in range(max(2, runs // 5))] for rate in rates}
        each_s = (time.monotonic() - began) / (runs + sum(map(len, raised.values())))
    found = RealPage(compare_same(same), [compare_worse(rate, worse, same) for rate, worse in raised.items()], each_s)
    return result(found, options)


def prepare(place: Workplace) -> None:
    """Writes the included banking suite, and an engine without delays."""
    shutil.copytree(BANKING, place.root / "scenarios/banking", ignore=shutil.ignore_patterns("__pycache__"))
    place.write("backends/embedded.yaml", json.dumps({"kind": "embedded", "policy": "careless"}))


def session(place: Workplace, error_rate: float, seed: int, part: Sequence[str]) -> Run:
    """Runs a pytest session. Returns the evidence in its run directory, which `agentbench gate` would read."""
    engine = (f"--agentbench-set=backend.error_rate={error_rate}", f"--agentbench-set=backend.seed={seed}")
    run_pytest(place.root, "scenarios/banking", *OPTIONS, *engine, *part)
    return Run.of(read_evidence((place.root / "reports/latest").resolve()))


def compare_same(runs: Sequence[Run]) -> Same:
    """Compares unchanged runs: each with each other, and pairs that have no run in common."""
    means = [run.mean for run in runs]
    return Same(
        rate=ERROR_RATE,
        scenarios=runs[0].trials,
        runs=len(runs),
        mean=statistics.fmean(means),
        deviation=statistics.stdev(means),
        every=judge_pairs([Pair(*both) for both in permutations(runs, 2)], MARGINS),
        neighbours=judge_pairs([Pair(run, base) for base, run in zip(runs[::2], runs[1::2], strict=False)], MARGINS),
    )


def compare_worse(rate: float, worse: Sequence[Run], same: Sequence[Run]) -> Worse:
    """Compares each run with a raised error rate with each unchanged one. Raises BenchmarkError if the scores are not lower."""
    means = [[run.mean for run in runs] for runs in (worse, same)]
    drop = statistics.fmean(means[1]) - statistics.fmean(means[0])
    if drop <= 0:
        raise BenchmarkError(f"an error rate of {rate} instead of {ERROR_RATE} does not lower the score (drop {drop:+.3f}); use more runs")
    error = sum(statistics.variance(each) / len(each) for each in means) ** 0.5
    return Worse(rate, len(worse), drop, error, judge_pairs([Pair(*both) for both in product(worse, same)], (*MARGINS, drop)))


def result(found: RealPage, options: Options) -> Result:
    targets = [*judged(found)]
    if options.table is not None:
        versions = f"{os.cpu_count()} cores ({processor()}), Linux {platform.release()}, Python {platform.python_version()}"
        extra = (" --quick" if options.quick else "") + (f" --repeat {options.repeat}" if options.repeat else "")
        made = f"Made by `python -m benchmarks verdicts_real{extra} --table {options.table}` on {versions}."
        options.table.write_text(found.text(made, targets), encoding="utf-8")
    gross = tuple(f"{each.name}: {each.share:.3f}, more than {each.most_by_chance:.3f}" for each in targets if each.word == "MISSES")
    figures = [Figure(each.name, each.share, "", each.most_by_chance) for each in targets]
    return Result(figures, [f"{found.sessions} sessions, {found.each_s:.1f} s each"], "", gross)


def judged(found: RealPage) -> Iterator[Target]:
    """Yields the promises of the gate, with the shares that were measured.

    Pairs that share runs are not independent. They count at least as half as many independent pairs as there are runs, and for two kinds
    of runs as many as there are of the fewer (Hoeffding 1948, on the variance of U-statistics).
    """
    same = found.same

    def target(name: str, share: float, most: float, independent: int) -> Target:
        return Target(name, share, most, within(most, independent))

    alarms = max(same.every.shares["gate", margin].fails for margin in MARGINS)
    yield target("FAIL, nothing changed", alarms, RISK, same.runs // 2)
    yield target("misses, nothing changed", 1 - same.every.intervals["gate"].covers(0.0), 1 - COVERAGE, same.runs // 2)
    for worse in found.worse:
        passes = max(worse.verdicts.shares["gate", margin].passes for margin in (*MARGINS, worse.drop) if margin <= worse.drop)
        fails = max(worse.verdicts.shares["gate", margin].fails for margin in (*MARGINS, worse.drop) if margin >= worse.drop)
        independent = min(same.runs, worse.runs)
        yield target(f"wrong PASS, rate {worse.rate}", passes, RISK, independent)
        yield target(f"wrong FAIL, rate {worse.rate}", fails, RISK, independent)
        yield target(f"misses, rate {worse.rate}", 1 - worse.verdicts.intervals["gate"].covers(-worse.drop), 1 - COVERAGE, independent)
