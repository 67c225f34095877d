"""verdicts: how often the gate is wrong about simulated suites whose truth is known, beside a bare threshold and pooled trials"""

from __future__ import annotations

import math
import platform
from itertools import product

import numpy as np

from pytest_agentbench.gate.bounded import FEWEST_CLUSTERS
from pytest_agentbench.gate.intervals import FEWEST_UNBOUNDED, too_few
from tests.benchmarks.measuring import Figure, Options, Result
from tests.benchmarks.verdicts.cells import Cell, simulate
from tests.benchmarks.verdicts.others import latencies, limits, unbounded
from tests.benchmarks.verdicts.page import Page
from tests.benchmarks.verdicts.suites import KINDS

RUNS = 5000  # simulated comparisons of each cell, change and margin
QUICK = 1000
SIZES = (20, 100, 300)
TRIALS = (1, 3, 5)

#: What the gate promises of an interval of 95 %: the usual risk of each verdict is 2.5 %, that of the worst suite 5 %.
RISK, COVERAGE = 0.05, 0.93


def uneven(n: int, clusters: int) -> tuple[int, ...]:
    """Sizes of clusters that grow from the first to the last."""
    return tuple(np.maximum(1, np.diff(np.round(np.linspace(0, 1, clusters + 1) ** 1.6 * n))).astype(int).tolist())


CLUSTERS = ((5,) * 4, (5,) * 20, (10,) * 15, uneven(300, 40), (5,) * 60)


def measure(options: Options) -> Result:
    runs = QUICK if options.quick else RUNS
    alone = [Cell(kind, n, trials) for n, trials, kind in product(SIZES, TRIALS, KINDS)]
    clustered = [Cell(kind, sum(sizes), trials, sizes) for sizes, trials, kind in product(CLUSTERS, TRIALS, ("mixed", "ceiling", "sure"))]
    cells = [*alone, *clustered]
    found = Page(
        runs,
        [simulate(cell, runs, seed) for seed, cell in enumerate(cells) if not too_few(cell.clusters)],
        [cell for cell in cells if too_few(cell.clusters)],
        [(cell, limits(cell, runs, seed)) for seed, cell in enumerate(alone)],
        [(n, sigma, unbounded(n, sigma, runs // 5, n)) for sigma in (0.5, 1.0) for n in (20, FEWEST_UNBOUNDED, 100)],
        [latencies(q, n, runs // 12, q + n) for q, n in ((50, 20), (50, 100), (90, 100))],
    )
    return result(found, options)


def result(found: Page, options: Options) -> Result:
    risk, coverage = (within(share, found.runs) for share in (RISK, 1 - COVERAGE))
    figures = [
        Figure("wrong PASS", max(each.gate.wrong_pass for each in found.outcomes), "", risk),
        Figure("FAIL, nothing changed", max(each.gate.false_alarm for each in found.outcomes), "", risk),
        Figure("interval misses the truth", max(1 - each.gate.coverage for each in found.outcomes), "", coverage),
        Figure("wrong PASS, limits", max(each["gate"][0] for _, each in found.limits), "", risk),
        Figure("interval misses, limits", max(1 - each["gate"][1] for _, each in found.limits), "", coverage),
        Figure(
            "interval misses, no limits",
            max(1 - each["percentile-t"] for n, _, each in found.unbounded if n >= FEWEST_UNBOUNDED),
            "",
            within(1 - COVERAGE, found.runs // 5),
        ),
        Figure("wrong PASS, latencies", max(each.wrong_pass for each in found.slow), "", within(RISK, found.runs // 12)),
        Figure("interval misses, latencies", max(1 - each.coverage for each in found.slow), "", within(1 - COVERAGE, found.runs // 12)),
    ]
    if options.table is not None:
        versions = f"Python {platform.python_version()}, numpy {np.__version__}"
        made = f"Made by `python -m tests.benchmarks verdicts --table {options.table}` with {versions}."
        options.table.write_text(found.text(made, FEWEST_CLUSTERS, FEWEST_UNBOUNDED), encoding="utf-8")
    gross = tuple(f"{figure.name} is {figure.value:.3f}, more than {figure.limit:.3f}" for figure in figures if not figure.holds)
    return Result(figures, [f"{found.runs:,} simulated comparisons of each cell, change and margin"], "", gross)


def within(share: float, runs: int) -> float:
    """The share, and what chance adds in so many runs: three standard errors."""
    return share + 3 * math.sqrt(share * (1 - share) / runs)
