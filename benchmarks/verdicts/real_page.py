"""Writes benchmarks/verdict-results-real.md: how often the gate's verdicts on real runs are wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.verdicts.page import percent, table
from benchmarks.verdicts.pairs import Shares, Verdicts
from pytest_agentbench.stats.quantiles import normal_quantile

INTRODUCTION = """# Do the verdicts hold in real runs?

{made}
{sessions} whole pytest sessions of the banking suite: {scenarios} scenarios, one trial each, {seconds} s a session.
[verdict-results.md](verdict-results.md) has far more comparisons, of simulated suites whose truth is known exactly. This page is about
evidence that went all the way through agent, tap, scorers, journal and run directory.

The built-in engine has the policy `careless`: word matching that takes a wrong tool in a given share of its calls. No model, no GPU, no
delays. Every session has another seed, so two sessions with the same error rate differ by chance alone.

- **gate**: its own code, on evidence read from the run directories: `tsq.mean >= -margin vs baseline`.
- **threshold**: "fail when the mean drops by more than the margin", the rule that most CI jobs have. It knows no INCONCLUSIVE.
- **pooled**: the z interval of two proportions with all trials as independent, as most scripts have it. It does not pair scenarios, and
  takes a score between 0 and 1 for a share of passes.

What this page cannot show:

- All runs have the same scenarios, and the rule asks of this suite. Of other scenarios like these nothing is shown.
- The gate keeps its promise for suites in which rollouts fail rarely, too, by adding imaginary trials at either end of the score's range
  before it says PASS. Here few fail as a whole, so PASS comes less often than these runs alone would allow.
- Pairs that share a run are not independent. *By chance* is what a gate that keeps its promise just so may show: the target and three
  standard errors of as many independent pairs as these are worth at worst, half the runs, or with two error rates the fewer runs. That
  is wide: these runs can find a gate that is badly wrong, not one that is wrong in 7 % of all cases instead of 5 %.
- The true drop is the difference of the averages over all runs of either rate, the judged ones among them; its standard error is said.
"""


@dataclass(frozen=True)
class Target:
    """A promise of the gate: a share of wrong verdicts or intervals, with its limit."""

    name: str
    share: float
    most: float
    most_by_chance: float  # what so few runs may show of a gate that keeps its promise just so

    @property
    def word(self) -> str:
        return "holds" if self.share <= self.most else "above the target, within chance" if self.share <= self.most_by_chance else "MISSES"


@dataclass(frozen=True)
class Same:
    """The results of runs with the same error rate. They differ only by chance."""

    rate: float
    scenarios: int
    runs: int
    mean: float  # of the runs' scores
    deviation: float  # of one run's score
    every: Verdicts  # each run against each other, both ways round
    neighbours: Verdicts  # pairs that have no run in common


@dataclass(frozen=True)
class Worse:
    """The results of runs with a raised error rate, each compared with each unchanged run."""

    rate: float
    runs: int
    drop: float  # of the mean score
    error: float  # standard error of the drop
    verdicts: Verdicts


@dataclass(frozen=True)
class RealPage:
    """All results of the benchmark."""

    same: Same
    worse: Sequence[Worse]
    each_s: float  # seconds of a session

    @property
    def sessions(self) -> int:
        return self.same.runs + sum(worse.runs for worse in self.worse)

    def text(self, made: str, targets: Sequence[Target]) -> str:
        facts = {
            "{made}": made,
            "{sessions}": str(self.sessions),
            "{scenarios}": str(self.same.scenarios),
            "{seconds}": f"{self.each_s:.1f}",
        }
        introduction = INTRODUCTION
        for name, value in facts.items():
            introduction = introduction.replace(name, value)
        return (
            "\n".join([introduction, *kept(targets), *self.unchanged(), *(line for worse in self.worse for line in dropped(worse))]) + "\n"
        )

    def unchanged(self) -> Iterator[str]:
        same = self.same
        yield "\n## Nothing changed\n"
        reach = normal_quantile(0.975) * 2**0.5 * same.deviation
        yield f"{same.runs} runs with an error rate of {same.rate}. Their tsq is {same.mean:.3f} on average, with a standard deviation of"
        yield f"{same.deviation:.4f} from run to run: chance alone makes two runs differ by up to {reach:.3f} in 95 % of all cases."
        yield "Every FAIL is wrong."
        for what, found in (("Every run against every other", same.every), ("Pairs that have no run in common", same.neighbours)):
            yield f"\n{what}, {found.pairs:,} in all:\n"
            yield from comparison(found, {margin: "not FAIL" for _, margin in found.shares})
            yield f"\n{covered(found, 0.0)}"


def kept(targets: Sequence[Target]) -> Iterator[str]:
    yield "## The gate's promises\n"
    rows = ([each.name, percent(each.share), percent(each.most), percent(each.most_by_chance), each.word] for each in targets)
    yield from table(["what", "share of pairs", "target", "by chance", "verdict"], rows)
    yield "\n*misses*: the interval does not hold the true difference. A share is the worst of all margins; all pairs."


def dropped(worse: Worse) -> Iterator[str]:
    yield f"\n## Error rate {worse.rate}\n"
    yield f"{worse.runs} runs. The true drop is {worse.drop:.3f}, with a standard error of {worse.error:.3f}; where the margin is the drop"
    yield f"itself, PASS and FAIL are both wrong. Every run against every one above, {worse.verdicts.pairs:,} pairs:\n"
    margins = {margin for _, margin in worse.verdicts.shares}
    yield from comparison(
        worse.verdicts, {margin: "FAIL" if margin < worse.drop else "PASS" if margin > worse.drop else "neither" for margin in margins}
    )
    yield f"\n{covered(worse.verdicts, -worse.drop)}"


def comparison(found: Verdicts, right: Mapping[float, str]) -> list[str]:
    """Returns a table with a row for each margin. `right` has the right verdict for each margin."""
    words = {"gate": ("PASS", "FAIL", "INCONCLUSIVE"), "threshold": ("PASS", "FAIL"), "pooled": ("PASS", "FAIL", "INCONCLUSIVE")}
    heads = ["margin", "right", *(f"{method}: {word}" for method, every in words.items() for word in every)]
    rows = (
        [
            f"{margin:.3f}",
            right[margin],
            *(text for method, every in words.items() for text in shown(found.shares[method, margin])[: len(every)]),
        ]
        for margin in sorted(right)
    )
    return table(heads, rows)


def shown(shares: Shares) -> list[str]:
    return [*map(percent, (shares.passes, shares.fails, max(0.0, 1 - shares.passes - shares.fails)))]


def covered(found: Verdicts, truth: float) -> str:
    shares = {method: percent(found.intervals[method].covers(truth)) for method in ("gate", "pooled")}
    said = (f"{share} of the {method} intervals (on average ± {found.half_width(method):.3f})" for method, share in shares.items())
    return f"The truth lies in {' and in '.join(said)}."
