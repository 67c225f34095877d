"""The page that shows whether the gate's verdicts hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.benchmarks.verdicts.cells import Cell, Outcome, Rates
from tests.benchmarks.verdicts.others import METHODS, Slow
from tests.benchmarks.verdicts.suites import KINDS

INTRODUCTION = """# Do the verdicts hold?

{made}
Nothing here needs a GPU or a model: suites are simulated whose truth is known, so that a verdict can be wrong.
Each share is of {runs} comparisons (values without limits: a fifth of that; latencies: a twelfth).

The gate says PASS when the whole 95 % interval of the paired difference lies above -margin, FAIL when it lies below, else INCONCLUSIVE.
Its promise: each of the two is wrong at most 5 % of the time for every suite below (2.5 % where scores are nearly normal); the interval
holds the truth at least 93 % of the time. A share is the **worst** of three changes (*fade*: every scenario passes less often;
*snap*: some scenarios break for good; *churn*: some are repaired and more break) and of three margins (0.05, 0.1, 0.2).

- **wrong PASS**: the true drop is exactly the margin, and it passes. Target: at most 5 %.
- **false FAIL**: nothing changed, and it fails. Target: at most 5 %.
- **coverage**: the interval holds the true difference. Target: at least 93 %.
- **PASS at 0.05, at 0.1**: how often a run passes with that margin when nothing changed; in brackets, here and below, what
  `gate/power.py` plans from the suite's true variances (with one trial that passes or fails it is a little too careful:
  the gate has Tango's interval there).
- **FAIL**: how often a run fails with a margin of 0.1 when every scenario faded, by 0.2 in the mean.
- **threshold**: "fail when the mean drops by more than the margin", the rule that most CI jobs have.
- **pooled**: the z interval of two proportions with all trials as independent, as most scripts have it.

"""

READING = """## How to read it

- A bare threshold passes half of all drops that are as large as the margin, at every size and with any number of trials,
  and it raises false alarms as often as suites are small: it is a coin where it matters.
- Pooled trials look precise and are not: the more trials, the oftener a real drop passes.
- 20 scenarios hardly ever decide about a margin of 0.1, whatever the number of trials: where one scenario in ten breaks, one
  suite of 20 in eight shows no trace of it. The gate says INCONCLUSIVE, and prints the drop that it could have found.
- More trials shrink only the noise of a trial. Against breakage of whole scenarios or whole clusters only more of those help.
- Fewer than {fewest} effective clusters decide nothing, nor does a percentile with fewer than ten scenarios expected beyond it,
  nor a value without limits with fewer than {unbounded} scenarios.
"""


@dataclass(frozen=True)
class Page:
    """Everything that was simulated."""

    runs: int
    outcomes: Sequence[Outcome]
    undecided: Sequence[Cell]  # too few clusters
    limits: Sequence[tuple[Cell, dict[str, tuple[float, float]]]]
    unbounded: Sequence[tuple[int, float, dict[str, float]]]  # n, sigma, method -> coverage
    slow: Sequence[Slow]

    def text(self, made: str, fewest: int, unbounded: int) -> str:
        alone = [outcome for outcome in self.outcomes if not outcome.cell.sizes]
        clustered = [outcome for outcome in self.outcomes if outcome.cell.sizes]
        return "\n".join(
            [
                INTRODUCTION.replace("{made}", made).replace("{runs}", f"{self.runs:,}"),
                "Suites, by the true pass rates of their scenarios:\n",
                *(f"- *{name}*: {kind.says}" for name, kind in KINDS.items()),
                "\n## A run against its baseline\n",
                *comparisons(alone),
                "\n## The same with clusters\n",
                "Scenarios of a cluster have the same rate, and break together.\n",
                *comparisons(clustered),
                *(
                    f"\n{cell.n} scenarios in {len(cell.sizes)} clusters ({cell.kind}, {cell.trials} trials): too few, always INCONCLUSIVE."
                    for cell in self.undecided
                ),
                "\n## A run against a limit\n",
                "The limit is the true mean, so every PASS is wrong.",
                "*t* is Student's t on scenario means, *pooled* the z interval of all trials.\n",
                *table(
                    ["n", "trials", "suite", "wrong PASS", "coverage", "t: wrong PASS", "coverage", "pooled: wrong PASS", "coverage"],
                    (
                        [cell.n, cell.trials, cell.kind, *(percent(share) for method in found.values() for share in method)]
                        for cell, found in self.limits
                    ),
                ),
                "\n## Values without limits\n",
                "Coverage of the mean of lognormal values (costs, counts, tokens). The gate uses percentile-t.\n",
                *table(
                    ["n", "sigma", *METHODS],
                    ([n, sigma, *(percent(found[method]) for method in METHODS)] for n, sigma, found in self.unbounded),
                ),
                "\n## Latencies\n",
                "The new run is slower by exactly the margin of 10 %, so every PASS is wrong.",
                "*Calls alone*: the same bootstrap with every call drawn on its own, as if the calls of a rollout were independent.\n",
                *table(
                    ["percentile", "n", "wrong PASS", "coverage", "calls alone: wrong PASS", "coverage"],
                    (
                        [f"p{slow.q}", slow.n, *map(percent, (slow.wrong_pass, slow.coverage, slow.naive_wrong_pass, slow.naive_coverage))]
                        for slow in self.slow
                    ),
                ),
                "\n" + READING.replace("{fewest}", str(fewest)).replace("{unbounded}", str(unbounded)),
            ]
        )


def comparisons(outcomes: Iterable[Outcome]) -> list[str]:
    heads = ["n", "trials", "suite", "wrong PASS", "false FAIL", "coverage", "PASS at 0.05", "at 0.1", "FAIL"]
    heads += ["threshold: wrong PASS", "false FAIL", "pooled: wrong PASS", "false FAIL", "coverage"]
    return table(heads, map(row, outcomes))


def row(outcome: Outcome) -> list[object]:
    cell, theory = outcome.cell, outcome.theory or (None, None, None)
    size = f"{cell.n} in {len(cell.sizes)}" if cell.sizes else str(cell.n)
    power = [
        percent(found) + (f" ({percent(planned)})" if planned is not None else "")
        for found, planned in zip((*outcome.passes, outcome.fails), theory, strict=True)
    ]
    return [size, cell.trials, cell.kind, *shares(outcome.gate), *power, *shares(outcome.threshold)[:2], *shares(outcome.pooled)]


def shares(rates: Rates) -> list[str]:
    return [percent(rates.wrong_pass), percent(rates.false_alarm), percent(rates.coverage)]


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads), *(f"| {' | '.join(map(str, each))} |" for each in rows)]
