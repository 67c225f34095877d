"""Writes benchmarks/verdict-results.md: how often the gate's verdicts on simulated suites are wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.verdicts import arms, population, populations, rounds, suite
from benchmarks.verdicts.families import Family
from benchmarks.verdicts.kinds import KINDS
from benchmarks.verdicts.latency import Latencies, Outcome, Turns
from benchmarks.verdicts.others import METHODS

INTRODUCTION = """# Do the verdicts hold?

{made}
Nothing here needs a GPU or a model: runs are simulated whose truth is known, so that a verdict can be wrong.
Each share is of {runs} comparisons (lost rollouts and several rules: a fifth of that; latencies: an eighth; more than two arms: a quarter).

[Two questions](../docs/compare/gates.md#two-questions) are asked of scores, and each has its table. The promise: a verdict is
**wrong** in at most 5 % of runs in every cell that claims it, beyond the error of the simulation itself. Wrong means that the true
change is exactly the margin. In brackets stands what the gate had before it knew the two questions: imaginary scenarios on both
sides, whatever was asked.
"""

OF_SUITE = """## Of suite: this suite against its baseline

Scenarios are fixed, trials vary. Changes: *fade* (every scenario scores less), *crash* (each rollout scores 0 with a small probability),
*broken* (scenarios break for good), *clusters broken* (clusters of 1 to 10 break), each at margins of 0.02, 0.05 and 0.1; *same* is no
change with a margin of 0. The worst of all of them is shown, with its name where it is new.

- **m80**: the margin with which a z test that knows the true variance passes 80 % of unchanged runs, and its N-fold, N being all
  rollouts of the run that has fewer. Bars: **PASS** at m80 is at least 0.9 of the z test's where m80 N is 10 or more; below, where any
  method is blind (a drop made of rollouts that fail cannot be seen in so few), a margin of 1.1 sqrt(m80^2 + (3.5 / N)^2) has 80 % PASS.
- **FAIL**: every scenario faded by m80 in the mean, the margin is 0. Bar: 0.9 of the z test's (0.85 with 20 scenarios) where that is
  between 50 and 95 %.
- **found**: the drop of which the gate says that such a run finds it 4 times out of 5, and how often that is so. Bar: 80 +- 5 % (+- 10
  with 20 scenarios), and what the simulation adds.

Scores:
"""

OF_POPULATION = """## Of population: scenarios like these

Scenarios, or whole clusters, are drawn anew in each comparison. Wrong PASS is the worst of fading, breaking, churn (some are repaired,
more break) and rescue, at margins of 0.05, 0.1 and 0.2. Wrong FAIL is that of fading and breaking. **It is not promised where scenarios
are rescued** (all fade, and one in twenty, or one cluster in twenty, is repaired wholly): a great improvement that is not among the
scenarios drawn is seen by no method, and the last column shows how often that FAILs wrongly. Scenarios of a cluster pass equally often
and change together.
"""

ROUNDS = """### Rounds of trials

`--agentbench-trials=auto:5`: looks after rounds 2, 3, 4 and 5, at levels that together spend what one look has, against a baseline whose
trials are fixed. Wrong PASS and wrong FAIL are the worst of the changes and margins above, and of *same*. A verdict costs the share of
rollouts in bold: the cells have the distance from the threshold (m80 as above, joined by the margin below which the second round cannot
pass whatever it measures, times 1.1 and 1.6; for FAIL m80, the margin is 0.02), the power of all five trials at once, that of rounds,
and the share. Bars, where the baseline has five trials at most: at most 55 % of the rollouts where all at once have a power of 98 %, 75 %
from 80 % on, and 0.95 of their power. With a baseline of 15 trials all is known sooner, and looks before the end know less of it.
"""

READING = """## How to read it

- `of suite` finds what trials can show, and no more: where nothing varies, N rollouts prove no drop below 3.4 / N, whatever the method.
- What hits a whole run (a provider's update, load, a bad cache, one session of a judge) is in no simulation: one run against one run
  cannot see it.
- 20 scenarios hardly ever decide about a margin of 0.1 `of population`, whatever the number of trials: where one scenario in ten breaks,
  one suite of 20 in eight shows no trace of it.
- Fewer than {fewest} effective clusters decide nothing of the population, nor does a percentile with fewer than ten independent
  rollouts expected beyond it, nor a value without limits with fewer than {unbounded} scenarios.
"""


LATENCIES = """
## Latencies

Each share is of {count} comparisons. A rollout of five calls is as slow as its scenario makes it, and as the load then, which is alike
between rollouts that follow each other. *Load*: its share in what makes the rollouts of one scenario differ; the rest is noise of each.
Two runs begin their scenarios in the same order, or (*other*) in another one.

### Two runs, one after the other

By blocks of rollouts that move along the order of time, paired by scenario. Wrong: the new run is slower by exactly the margin of 10 %.
In brackets stands what the gate had before, a bootstrap that draws scenarios whole and knows no time. *PASS*: of runs that are equal;
*FAIL*: of a run that is 25 % slower. *Undecided*: rollouts are so much alike that there are fewer than 15 blocks, or too few independent
ones for the percentile. **The promise ends at an autocorrelation of 0.8**: above, most runs are
undecided, but where as much noise lies over such load, 100 rollouts cannot show it.
No comparison of two runs knows load that differs between them as wholes.
"""

TURNS = """
### Two arms that take turns

By one ratio for each pair of blocks. *Claims*: of equal arms one is called faster or slower, which is to be so in 5 %. *Found*: an arm
that is 10 % slower is called so. All noise between rollouts is load, and runs through both arms.
"""


@dataclass(frozen=True)
class Page:
    """The results of all simulations."""

    runs: int
    suites: Sequence[suite.Outcome]
    limits: Sequence[tuple[suite.Cell, float, float]]
    in_rounds: Sequence[rounds.Outcome]
    limited: Sequence[rounds.Limited]
    populations: Sequence[population.Outcome]
    lost: Sequence[tuple[str, float, float, float]]  # kind, margin, wrong PASS, wrong FAIL
    families: Sequence[Family]
    unbounded: Sequence[tuple[int, float, dict[str, float]]]  # n, sigma, method -> coverage
    latencies: Latencies
    arms: arms.Arms

    @property
    def weak(self) -> list[str]:
        """A line for each cell in which the gate detects too few changes."""
        return [f"{_name(each.cell)}: {why}" for each in self.suites for why in _weak(each, self.runs)]

    @property
    def off(self) -> list[str]:
        """A line for each cell in which the power that the gate prints is not the true one."""
        return [
            f"{_name(each.cell)}: {percent(each.power.found)} are found, not 80 %"
            for each in self.suites
            if abs(each.power.found - 0.8) > (0.1 if each.cell.n < 100 else 0.05) + 3 * math.sqrt(0.16 / self.runs)
        ]

    @property
    def dear(self) -> list[str]:
        """A line for each cell in which rounds of trials take too many rollouts, or detect less than all trials at once."""
        return [f"{_name(each.cell)}, in rounds: {why}" for each in self.in_rounds for why in _dear(each, self.runs)]

    def text(self, made: str, fewest: int, unbounded: int) -> str:
        return "\n".join(
            [
                INTRODUCTION.replace("{made}", made).replace("{runs}", f"{self.runs:,}"),
                OF_SUITE,
                *(f"- *{name}*: {kind.says}" for name, kind in KINDS.items()),
                "",
                *table(SUITE_HEADS, map(_suite_row, self.suites)),
                "\n### A run against a limit\n",
                "The limit is the suite's true mean, so every verdict is wrong.\n",
                *table(
                    ["n", "trials", "scores", "wrong PASS", "wrong FAIL"],
                    ([cell.n, cell.trials, cell.kind, percent(passes), percent(fails)] for cell, passes, fails in self.limits),
                ),
                "\n" + ROUNDS,
                *table(ROUNDS_HEADS, map(_rounds_row, self.in_rounds)),
                "\nThe same of runs without a baseline, against a limit that is the suite's true mean, so that every verdict is wrong:\n",
                *table(
                    ["n", "scores", "wrong PASS", "wrong FAIL"],
                    ([each.cell.n, each.cell.kind, percent(each.wrong_pass), percent(each.wrong_fail)] for each in self.limited),
                ),
                "\n### Rollouts that were lost\n",
                "100 scenarios, 3 trials, every scenario faded. The worst 2 % of the new run were lost, and count as 0 for PASS.\n",
                *table(
                    ["scores", "margin", "wrong PASS", "wrong FAIL"],
                    ([kind, margin, percent(passes), percent(fails)] for kind, margin, passes, fails in self.lost),
                ),
                "\n### Several rules in one session\n",
                "100 scenarios, 3 trials, continuous. Wrong PASS: one score dropped by its margin, the others did not.",
                "Wrong FAIL: nothing changed, and no rule has a margin, so that they share the level.\n",
                *table(
                    ["rules", "wrong PASS", "wrong FAIL"],
                    ([each.rules, percent(each.wrong_pass), percent(each.wrong_fail)] for each in self.families),
                ),
                "\n" + OF_POPULATION,
                *(f"- *{name}*: {kind.says}" for name, kind in populations.KINDS.items()),
                "",
                *table(POPULATION_HEADS, map(_population_row, self.populations)),
                "\n## Values without limits\n",
                "Coverage of the mean of lognormal values (costs, counts, tokens). The gate uses percentile-t.\n",
                *table(
                    ["n", "sigma", *METHODS],
                    ([n, sigma, *(percent(found[method]) for method in METHODS)] for n, sigma, found in self.unbounded),
                ),
                *latency_section(self.latencies),
                arms.INTRODUCTION.replace("{count}", str(self.arms.count)),
                *table(arms.HEADS, map(arms.row, self.arms.outcomes)),
                "\n" + READING.replace("{fewest}", str(fewest)).replace("{unbounded}", str(unbounded)),
            ]
        )


def latency_section(found: Latencies) -> Iterator[str]:
    yield LATENCIES.replace("{count}", str(found.count))
    yield from table(LATENCY_HEADS, map(_latency_row, found.runs_apart))
    yield TURNS
    yield from table(["percentile", "n", "pairs", "autocorrelation", "claims", "found"], map(_turns_row, found.turns))


LATENCY_HEADS = ["percentile", "n", "trials", "autocorrelation", "load", "order", "wrong PASS", "wrong FAIL", "undecided", "PASS", "FAIL"]


def _latency_row(outcome: Outcome) -> list[object]:
    cell = outcome.cell
    return [
        *(f"p{cell.q}", cell.n, cell.trials, cell.likeness, f"{cell.share:.0%}", "other" if cell.shuffled else "same"),
        f"{percent(outcome.wrong_pass)} ({percent(outcome.former_wrong_pass)})",
        f"{percent(outcome.wrong_fail)} ({percent(outcome.former_wrong_fail)})",
        percent(outcome.undecided),
        f"{percent(outcome.passes)} ({percent(outcome.former_passes)})",
        percent(outcome.fails),
    ]


def _turns_row(outcome: Turns) -> list[object]:
    return [f"p{outcome.q}", outcome.n, outcome.pairs, outcome.likeness, percent(outcome.claims), percent(outcome.found)]


SUITE_HEADS = [
    "n",
    "trials",
    "scores",
    "wrong PASS",
    "wrong FAIL",
    "m80",
    "m80 N",
    "PASS: z test",
    "PASS",
    "80 % PASS from, bar",
    "PASS there",
]
SUITE_HEADS += ["FAIL: z test", "FAIL", "found: drop", "found"]
ROUNDS_HEADS = ["n", "baseline's trials", "scores", "wrong PASS", "wrong FAIL", "PASS, 1.1", "PASS, 1.6", "FAIL, 1.1", "FAIL, 1.6"]
POPULATION_HEADS = ["n", "trials", "suite", "wrong PASS", "wrong FAIL", "PASS at 0.05", "PASS at 0.1", "FAIL of 0.2 at 0.1"]
POPULATION_HEADS += ["rescued: wrong FAIL"]


def _suite_row(outcome: suite.Outcome) -> list[object]:
    cell, power, now, then = outcome.cell, outcome.power, outcome.now, outcome.then
    trials = str(cell.trials) if cell.trials == cell.base_trials else f"{cell.trials} to {cell.base_trials}"
    silent = power.margin == 0
    return [
        cell.n,
        trials,
        cell.kind,
        f"{percent(now.passes)} {now.passes_at} ({percent(then.passes)})",
        f"{percent(now.fails)} {now.fails_at} ({percent(then.fails)})",
        f"{power.margin:.4f}",
        f"{power.margin * cell.rollouts:.1f}",
        *(["-", "-"] if silent else [percent(power.passes[0]), f"{percent(power.passes[1])} ({percent(power.passes[2])})"]),
        f"{power.wide[0]:.4f}",
        percent(power.wide[1]),
        *(["-", "-"] if silent else [percent(power.fails[0]), f"{percent(power.fails[1])} ({percent(power.fails[2])})"]),
        f"{power.drop:.4f}",
        percent(power.found),
    ]


def _rounds_row(outcome: rounds.Outcome) -> list[object]:
    cell = outcome.cell
    costs = [_cost(each) for each in (*outcome.passes, *outcome.fails)]
    return [
        cell.n,
        cell.base_trials,
        cell.kind,
        percent(outcome.wrong_pass),
        percent(outcome.wrong_fail),
        *costs,
        *["-"] * (len(ROUNDS_HEADS) - 5 - len(costs)),
    ]


def _cost(each: rounds.Spared) -> str:
    return f"{each.distance:.3f}: {percent(each.fixed)}, {percent(each.auto)}, **{100 * each.rollouts:.0f} %**"


def _dear(outcome: rounds.Outcome, runs: int) -> Iterable[str]:
    chance = 3 * math.sqrt(0.16 / runs)
    for each in (*outcome.passes, *outcome.fails):
        if outcome.promised and each.rollouts > each.bar + chance / 2:  # rounds vary by less than half of what there are of them
            yield f"{percent(each.rollouts)} of the rollouts where all at once have a power of {percent(each.fixed)}"
        if outcome.promised and each.auto < 0.95 * each.fixed - chance:
            yield f"{percent(each.auto)} where all trials at once have {percent(each.fixed)}"


def _population_row(outcome: population.Outcome) -> list[object]:
    cell = outcome.cell
    size = f"{cell.n} in {len(cell.sizes)}{'' if len({*cell.sizes}) == 1 else ' unequal'}" if cell.sizes else str(cell.n)
    return [
        size,
        cell.trials,
        cell.kind,
        percent(outcome.wrong_pass),
        f"{percent(outcome.wrong_fail)} ({percent(outcome.former_fail)})",
        *map(percent, outcome.passes),
        f"{percent(outcome.fails[0])} ({percent(outcome.fails[1])})",
        percent(outcome.rescued_fail),
    ]


def _weak(outcome: suite.Outcome, runs: int) -> Iterable[str]:
    """Yields which power of a cell is too low, by more than three standard errors of the simulation."""
    power, chance = outcome.power, 3 * math.sqrt(0.16 / runs)
    oracle, now, _ = power.passes
    if power.margin * outcome.cell.rollouts >= 10:
        if now < 0.9 * oracle - chance:
            yield f"{percent(now)} PASS where a z test has {percent(oracle)}"
    elif power.wide[1] < 0.8 - chance:
        yield f"{percent(power.wide[1])} PASS with a margin of {power.wide[0]:.3f}"
    oracle, now, _ = power.fails
    if 0.5 <= oracle <= 0.95 and now < (0.85 if outcome.cell.n < 100 else 0.9) * oracle - chance:
        yield f"{percent(now)} FAIL where a z test has {percent(oracle)}"


def _name(cell: suite.Cell) -> str:
    return f"{cell.kind}, {cell.n} scenarios, {cell.trials} and {cell.base_trials} trials"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads), *(f"| {' | '.join(map(str, each))} |" for each in rows)]
