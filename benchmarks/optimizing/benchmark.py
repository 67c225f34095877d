"""optimizing: how often studies of `agentbench optimize` call settings better that are not, and find those that are, by simulation"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import numpy as np
import optuna

from benchmarks.measurement import Figure, Options, Result
from benchmarks.optimizing.studies import MARGIN, PLANTED, SETTINGS, StudyOutcome, Truth, banking_plan, simulate
from pytest_agentbench.stats.mean_intervals import binomial_interval

EQUAL, FASTER, TRAP = TRUTHS = (Truth(), Truth(faster=0.1), Truth(faster=0.1, worse=0.1))
STUDIES = {EQUAL: 1000, FASTER: 500, TRAP: 500}
QUICK = 10  # a share of STUDIES

#: The promises: share of studies that end in "better" without reason, its upper 95 % limit, and the share in which the planted setting
#: is not found and confirmed.
WRONG, WRONG_LIMIT, MISSED = 0.05, 0.065, 0.2

INTRODUCTION = """# Does `agentbench optimize` find what is there?

{made}

Each study tries {settings} settings, of which none or one differs from the default ones. Search and confirmation are the code of the
[command](../docs/compare/optimize.md); only the rollouts are simulated. Each is drawn from six real ones of its scenario,
which an embedded engine made that errs in a tenth of its answers (`policy: careless`), and is slower or faster by a load that changes
gradually (5 %, autocorrelation 0.9). The margin is {margin:g}.

- **claimed**: studies that call any settings better, with the upper 95 % limit. No settings are, in the first row, and in the third those
  that are faster lose more quality than the margin. Bar: at most {wrong:g} %, and in the first row an upper limit below {limit:g} %.
- **found**: studies whose search ranked the different setting first. **confirmed**: studies that then called it better; bar for the second
  row: at least {found:g} %.
- **rollouts**: of search and confirmation, both arms together.

| truth | studies | claimed | upper limit | found | confirmed | rollouts | of which confirmation |
|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """The outcomes of the studies of one truth."""

    truth: Truth
    outcomes: Sequence[StudyOutcome]

    @property
    def claimed(self) -> int:
        return sum(each.is_better for each in self.outcomes)

    @property
    def upper(self) -> float:
        """The upper limit of the share of studies that claim something."""
        return binomial_interval(self.claimed, len(self.outcomes), 0.95)[1]

    @property
    def found(self) -> float:
        return fmean(each.chosen == PLANTED for each in self.outcomes)

    @property
    def confirmed(self) -> float:
        return fmean(each.chosen == PLANTED and each.is_better for each in self.outcomes)

    def __str__(self) -> str:
        count, rollouts = len(self.outcomes), fmean(each.rollouts for each in self.outcomes)
        ours = banking_plan(0).rollouts[1]
        differs = self.truth != EQUAL
        shares = [f"{100 * self.claimed / count:.1f} %", f"{100 * self.upper:.1f} %"]
        shares += [f"{100 * each:.1f} %" if differs else "" for each in (self.found, self.confirmed)]
        return f"| {self.truth} | {count:,} | {' | '.join(shares)} | {rollouts:,.0f} | {ours:,} |".replace("|  |", "| |")


def measure(options: Options) -> Result:
    before = sum(os.times()[:4])
    rows = [*_rows(quick=options.quick)]
    cpu_s = sum(os.times()[:4]) - before
    if options.table is not None:
        versions = f"Python {platform.python_version()}, Optuna {optuna.__version__}, numpy {np.__version__}"
        quick = "--quick " if options.quick else ""
        made = (
            f"Made by `python -m benchmarks optimizing {quick}--table {options.table}` with {versions}, in {cpu_s / 60:.0f} minutes of CPU."
        )
        options.table.write_text(_page(made, rows), encoding="utf-8")
    figures = [*_figures(rows)]
    gross = tuple(f"{each.name} is {each.value:.3f}, more than {each.limit:.3f}" for each in figures if each.value > 2 * each.limit)
    return Result(figures, [f"{cpu_s:.0f} s of CPU"], gross=gross)


def _rows(*, quick: bool) -> Iterator[Row]:
    with ProcessPoolExecutor() as processes:
        for truth in TRUTHS:
            seeds = range(STUDIES[truth] // (QUICK if quick else 1))
            yield Row(truth, [*processes.map(partial(simulate, truth), seeds, chunksize=20)])


def _figures(rows: Sequence[Row]) -> Iterator[Figure]:
    for row in rows:
        if row.truth == EQUAL:
            yield Figure("wrong claim, upper limit", row.upper, "", WRONG_LIMIT if len(row.outcomes) == STUDIES[EQUAL] else 1)
        if row.truth == FASTER:
            yield Figure("missed", 1 - row.confirmed, "", MISSED)
        else:
            yield Figure(f"wrong claim{', trap' * (row.truth == TRAP)}", row.claimed / len(row.outcomes), "", WRONG)


def _page(made: str, rows: Sequence[Row]) -> str:
    terms = {"settings": SETTINGS, "margin": MARGIN, "wrong": 100 * WRONG, "limit": 100 * WRONG_LIMIT, "found": 100 * (1 - MISSED)}
    return INTRODUCTION.format(made=made, **terms) + "".join(f"{row}\n" for row in rows)
