"""verdicts: how often the gate's verdicts on simulated suites with known true means are wrong, and how often it detects changes"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator
from itertools import product

import numpy as np

from benchmarks.measurement import Figure, Options, Result
from benchmarks.verdicts import arms, latency, population, rounds, suite
from benchmarks.verdicts.families import families
from benchmarks.verdicts.kinds import KINDS
from benchmarks.verdicts.latency import Latencies
from benchmarks.verdicts.others import limits, unbounded
from benchmarks.verdicts.page import Page
from pytest_agentbench.stats.intervals import FEWEST_UNBOUNDED, too_few
from pytest_agentbench.stats.mean_intervals import FEWEST_CLUSTERS

RUNS, QUICK = 1500, 350  # simulated comparisons of each cell, change and margin
SIZES = (20, 100, 300)
TRIALS = (1, 3, 5)
UNLIKE = ((1, 3), (3, 9), (5, 1), (2, 6))  # trials of the run and of its baseline
LATENCY_RUNS = 8  # a share of RUNS: each has hundreds of rollouts
ARM_RUNS = 4  # a share of RUNS: each has several comparisons
LOST_RUNS = 5  # a share of RUNS: each of these comparisons goes through all of the gate

#: What the gate promises: each verdict is wrong in 2.5 % of runs where scores are nearly normal, and in 5 % in the worst case.
RISK, COVERAGE = 0.05, 0.93


def uneven(n: int, clusters: int) -> tuple[int, ...]:
    """Returns the sizes of clusters with n scenarios in all. The sizes grow from the first to the last."""
    return tuple(np.maximum(1, np.diff(np.round(np.linspace(0, 1, clusters + 1) ** 1.6 * n))).astype(int).tolist())


CLUSTERS = ((5,) * 20, (4,) * 25, uneven(100, 25), uneven(300, 40), (5,) * 60)


def suite_cells() -> Iterator[suite.Cell]:
    for n, trials, kind in product(SIZES, TRIALS, KINDS):
        yield suite.Cell(kind, n, trials, trials)
    for (trials, base_trials), kind in product(UNLIKE, KINDS):
        yield suite.Cell(kind, 100, trials, base_trials)


def rounds_cells(*, quick: bool) -> Iterator[suite.Cell]:
    """Yields the cells for rounds of trials, with up to five rounds. With `quick`, these are the cells of one size, for CI."""
    for n, kind in product((100,) if quick else SIZES, KINDS):
        yield suite.Cell(kind, n, rounds.MOST, rounds.MOST)
    for base_trials, kind in product(() if quick else (1, 3 * rounds.MOST), KINDS):
        yield suite.Cell(kind, 100, rounds.MOST, base_trials)


def population_cells() -> Iterator[population.Cell]:
    for n, trials, kind in product(SIZES, (1, 3), ("beta", "mixed", "ceiling", "sure", "graded")):
        yield population.Cell(kind, n, trials)
    for sizes, trials, kind in product(CLUSTERS, (1, 3), ("mixed", "ceiling", "sure")):
        yield population.Cell(kind, sum(sizes), trials, sizes)


def measure(options: Options) -> Result:
    runs, began = QUICK if options.quick else RUNS, time.process_time()
    drawn = [cell for cell in population_cells() if not too_few(cell.clusters)]
    found = Page(
        runs,
        [suite.simulate(cell, runs, seed) for seed, cell in enumerate(suite_cells())],
        [(cell, *limits(cell, runs, seed)) for seed, cell in enumerate(suite_cells()) if cell.trials == cell.base_trials],
        [rounds.simulate(cell, runs, seed) for seed, cell in enumerate(rounds_cells(quick=options.quick))],
        [rounds.against_limit(suite.Cell(kind, n, rounds.MOST, 0), runs, n) for n, kind in product((20, 100), KINDS)],
        [population.simulate(cell, runs, seed) for seed, cell in enumerate(drawn)],
        [(kind, margin, *suite.lost(suite.Cell(kind, 100, 3, 3), runs // LOST_RUNS, 7, margin)) for kind, margin in LOST],
        families(runs // LOST_RUNS, 11),
        [(n, sigma, unbounded(n, sigma, runs // 5, n)) for sigma in (0.5, 1.0) for n in (20, FEWEST_UNBOUNDED, 100)],
        latencies(runs // LATENCY_RUNS),
        sessions(runs // ARM_RUNS, quick=options.quick),
    )
    return result(found, options, time.process_time() - began)


def latencies(runs: int) -> Latencies:
    return Latencies(
        runs,
        [latency.simulate(cell, runs, seed) for seed, cell in enumerate(latency.cells())],
        [latency.turns(*cell, runs, seed) for seed, cell in enumerate(latency.turns_cells())],
    )


def sessions(runs: int, *, quick: bool) -> arms.Arms:
    """Simulates sessions with more than two arms."""
    return arms.Arms(runs, [arms.simulate(cell, runs, seed) for seed, cell in enumerate(arms.cells(quick=quick))])


LOST = tuple(product(("continuous", "binary", "always"), (0.05, 0.1)))


def result(found: Page, options: Options, cpu_s: float) -> Result:
    risk = within(RISK, found.runs)
    fewer = within(RISK, found.runs // LOST_RUNS)
    added = [(each.wrong_pass, each.wrong_fail) for each in found.in_rounds]
    added += [(each.wrong_pass, each.wrong_fail) for each in found.limited]
    figures = [
        Figure("wrong PASS, of suite", max(each.now.passes for each in found.suites), "", risk),
        Figure("wrong FAIL, of suite", max(each.now.fails for each in found.suites), "", risk),
        Figure("cells in which power misses its bar", len(found.weak), "", 0),
        Figure("cells in which the printed power is not the true one", len(found.off), "", 0),
        Figure("wrong verdict, limits", max(max(shares) for _, *shares in found.limits), "", risk),
        Figure("wrong PASS, rounds of trials", max(passes for passes, _ in added), "", risk),
        Figure("wrong FAIL, rounds of trials", max(fails for _, fails in added), "", risk),
        Figure("cells in which rounds cost more than they may", len(found.dear), "", 0),
        Figure("wrong PASS, of population", max(each.wrong_pass for each in found.populations), "", risk),
        Figure("wrong FAIL, of population", max(each.wrong_fail for each in found.populations), "", risk),
        Figure("wrong PASS, rollouts lost", max(passes for _, _, passes, _ in found.lost), "", fewer),
        Figure("wrong PASS, several rules", max(each.wrong_pass for each in found.families), "", fewer),
        Figure("wrong FAIL, several rules", max(each.wrong_fail for each in found.families), "", fewer),
        Figure(
            "interval misses, no limits",
            max(1 - each["percentile-t"] for n, _, each in found.unbounded if n >= FEWEST_UNBOUNDED),
            "",
            within(1 - COVERAGE, found.runs // 5),
        ),
        *latency_figures(found.latencies),
        Figure("wrong claim, more than two arms", found.arms.worst, "", within(RISK, found.arms.count)),
    ]
    if options.table is not None:
        versions = f"Python {platform.python_version()}, numpy {np.__version__}, in {cpu_s / 60:.0f} minutes of CPU"
        quick = "--quick " if options.quick else ""
        made = f"Made by `python -m benchmarks verdicts {quick}--table {options.table}` with {versions}."
        options.table.write_text(found.text(made, FEWEST_CLUSTERS, FEWEST_UNBOUNDED), encoding="utf-8")
    gross = [f"{figure.name} is {figure.value:.3f}, more than {figure.limit:.3f}" for figure in figures if not figure.holds]
    notes = [
        f"{found.runs:,} simulated comparisons of each cell, change and margin, {cpu_s:.0f} s of CPU",
        *found.weak,
        *found.off,
        *found.dear,
    ]
    return Result(figures, notes, "", tuple(gross))


def latency_figures(found: Latencies) -> Iterator[Figure]:
    claimed = [each for each in found.runs_apart if each.claimed]
    risk = within(RISK, found.count)
    yield Figure("wrong PASS, latencies", max(each.wrong_pass for each in claimed), "", risk)
    yield Figure("wrong FAIL, latencies", max(each.wrong_fail for each in claimed), "", risk)
    yield Figure("wrong claim, arms that take turns", max(each.claims for each in found.turns if each.claimed), "", risk)


def within(share: float, runs: int) -> float:
    """Returns the share plus three standard errors: the most that chance explains in this number of runs."""
    return share + 3 * math.sqrt(share * (1 - share) / runs)
