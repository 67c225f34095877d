"""The proof in docs/verdict-results.md, in small: `python -m tests.benchmarks verdicts` has all cells."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pytest_agentbench.stats.means import suite_interval
from pytest_agentbench.stats.paired import Sample, compare
from pytest_agentbench.stats.trials import Side, guarded, noise, packed, plain
from tests.benchmarks.verdicts import latency, population, suite
from tests.benchmarks.verdicts.benchmark import RISK, uneven, within
from tests.benchmarks.verdicts.families import families
from tests.benchmarks.verdicts.kinds import CHANGES, KINDS, crash, fade
from tests.benchmarks.verdicts.latency import Latencies
from tests.benchmarks.verdicts.page import Page

PAGE = Path(__file__).parents[2] / "docs/verdict-results.md"
FEW = 400


@pytest.mark.parametrize(
    "cell",
    [suite.Cell("mixed", 20, 1, 1), suite.Cell("sure", 20, 3, 3), suite.Cell("quiet", 100, 3, 3), suite.Cell("binary", 100, 2, 6)],
    ids=str,
)
def test_verdicts_about_a_suite_hold(cell: suite.Cell) -> None:
    """Each is wrong at most one time in twenty, finds about what a z test finds that knows the variance, and says how much that is."""
    outcome = suite.simulate(cell, FEW, seed=11)
    page = Page(FEW, [outcome], [], [], [], [], [], [], [], Latencies(0, [], []))

    assert outcome.now.passes <= within(RISK, FEW)
    assert outcome.now.fails <= within(RISK, FEW)
    assert [] == [*page.weak, *page.off]


@pytest.mark.parametrize(
    "cell",
    [population.Cell("ceiling", 20, 1), population.Cell("graded", 100, 3), population.Cell("mixed", 100, 3, uneven(100, 25))],
    ids=str,
)
def test_verdicts_about_a_population_hold(cell: population.Cell) -> None:
    """The same of scenarios that are drawn, alone and in clusters of unequal size, whose fall is found."""
    outcome = population.simulate(cell, FEW, seed=11)

    assert outcome.wrong_pass <= within(RISK, FEW)
    assert outcome.wrong_fail <= within(RISK, FEW)
    assert outcome.fails[0] >= 0.9 * outcome.fails[1], "now and before"


@pytest.mark.parametrize("trials", [(1, 1), (3, 3), (1, 3), (5, 2)])
def test_what_is_simulated_is_the_gate(trials: tuple[int, int]) -> None:
    """Arrays of comparisons have the bounds that `compare` has of each of them."""
    for kind in KINDS:
        cell, random = suite.Cell(kind, 20, *trials), np.random.default_rng(3)
        for batch in suite.drawn(cell, 5, random, fade, 0.05):
            interval = suite.gate(cell, batch)
            for at in range(5):
                new, base = (
                    {str(i): Sample("", tuple(each)) for i, each in enumerate(side[at].tolist())} for side in (batch.new, batch.base)
                )
                decision = compare(new, base, 0.05)
                assert (decision.low, decision.high) == pytest.approx((interval.low[at], interval.high[at]), abs=1e-4)


def test_the_changes_are_as_large_as_they_say() -> None:
    """The mean of the suite drops by exactly so much, whatever changes; or, where rollouts crash, is expected to."""
    means = KINDS["continuous"].means(np.random.default_rng(1), (20, 100))
    for change in CHANGES:
        after = change(np.random.default_rng(2), means, 0.05)
        expected = after.means * (1 - after.crash)

        assert means.mean(-1) - expected.mean(-1) == pytest.approx(np.full(20, 0.05))
    assert CHANGES[1] is crash


def test_one_run_has_the_same_noise_in_a_report() -> None:
    """The interval of a mean in plain numbers is that of the arrays, with one trial, with several, and with unequal numbers of them."""
    random = np.random.default_rng(4)
    for counts in ([1] * 12, [3] * 12, [1, 1, 2, 3, 4, 3, 2, 2, 3, 1, 2, 2]):
        scores = [random.beta(4, 2, count).tolist() for count in counts]
        found = noise(Side.of(packed(scores)))
        low = min(float(plain(found, 0.95).low), float(guarded(found, (0.0, 1.0), 0.95).low))

        assert suite_interval(scores).low == pytest.approx(max(low, 0.0))


def test_rules_of_a_session_are_no_more_often_wrong() -> None:
    """Five rules without a margin share their level, and all have to pass."""
    five = families(100, 11)[-1]

    assert max(five.wrong_pass, five.wrong_fail) <= within(RISK, 100)


@pytest.mark.parametrize("likeness", [0.0, 0.5, 0.8])
def test_latencies_of_two_runs_hold(likeness: float) -> None:
    """However much load that comes and goes makes neighbours alike, up to 0.8, each verdict is wrong at most one time in twenty."""
    outcome = latency.simulate(latency.Cell(50, 100, 3, likeness, 1.0, shuffled=False), 100, seed=11)

    assert max(outcome.wrong_pass, outcome.wrong_fail) <= within(RISK, 100)
    assert outcome.undecided <= 0.6


def test_load_that_changes_slowly_decides_nothing() -> None:
    """At 0.95 three hundred rollouts are no fifteen blocks."""
    outcome = latency.simulate(latency.Cell(50, 100, 3, 0.95, 1.0, shuffled=False), 50, seed=11)

    assert outcome.undecided >= 0.9


@pytest.mark.parametrize("likeness", [0.0, 0.8])
def test_arms_that_take_turns_hold(likeness: float) -> None:
    """Of equal arms one is called faster in no more than one session of twenty."""
    assert latency.turns(50, 100, 10, likeness, 200, seed=11).claims <= within(RISK, 200)


def test_the_committed_table_holds() -> None:
    """Every wrong share that the page shows of the gate is what the gate promises, in all cells."""
    of_suite, _, rest = PAGE.read_text("utf-8").partition("### A run against a limit")
    suites = re.findall(r"^\| \d+ \| [\d to]+ \| \w+ \| ([\d.]+) % [\w. ]+ \([\d.]+ %\) \| ([\d.]+) % ", of_suite, re.MULTILINE)
    populations = re.findall(r"^\| \d+(?: in \d+)?(?: unequal)? \| \d \| \w+ \| ([\d.]+) % \| ([\d.]+) % \(", rest, re.MULTILINE)
    (runs,) = re.findall(r"Each share is of ([\d,]+) comparisons", of_suite)
    most = 100 * within(RISK, int(runs.replace(",", "")))

    section = rest.partition("## Latencies")[2]
    apart = re.findall(r"^\| p\d+ \| \d+ \| \d \| 0\.[058] \| \d+% \| \w+ \| ([\d.]+) % \([\d.]+ %\) \| ([\d.]+) % ", section, re.MULTILINE)
    turns = re.findall(r"^\| p\d+ \| \d+ \| \d+ \| 0\.[058] \| ([\d.]+) % ", section, re.MULTILINE)
    (compared,) = re.findall(r"Each share is of (\d+) comparisons", section)
    most_of_latencies = 100 * within(RISK, int(compared))

    assert (91, 60, 36, 18) == (len(suites), len(populations), len(apart), len(turns))
    assert [] == [row for row in apart if max(map(float, row)) > most_of_latencies]
    assert [] == [share for share in turns if float(share) > most_of_latencies]
    assert [] == [row for row in (*suites, *populations) if max(map(float, row)) > most]
