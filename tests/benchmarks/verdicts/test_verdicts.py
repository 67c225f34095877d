"""The simulations of benchmarks/verdict-results.md with few runs. `python -m benchmarks verdicts` runs all cells."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import __main__ as benchmarks
from benchmarks.measurement import Options, Result
from benchmarks.verdicts import arms, latency, population, rounds, suite
from benchmarks.verdicts.benchmark import RISK, result, uneven, within
from benchmarks.verdicts.families import Family, family
from benchmarks.verdicts.kinds import CHANGES, KINDS, crash, fade
from benchmarks.verdicts.latency import Latencies
from benchmarks.verdicts.page import Page
from pytest_agentbench.gate.evidence import Trial
from pytest_agentbench.gate.verdict import judge_rules
from pytest_agentbench.stats.means import RunTrials, as_matrix, guarded, noise, plain, suite_interval
from pytest_agentbench.stats.paired import ScenarioSample, compare
from tests.gate.evidences import asked, evidence, trial
from tests.project import ROOT

PAGE = ROOT / "benchmarks/verdict-results.md"
FEW = 400
COST = r": ([\d.]+) %, [\d.]+ %, \*\*(\d+) %"  # power of all trials at once, and the share of rollouts that rounds take


@pytest.mark.parametrize(
    "cell",
    [suite.Cell("mixed", 20, 1, 1), suite.Cell("sure", 20, 3, 3), suite.Cell("quiet", 100, 3, 3), suite.Cell("binary", 100, 2, 6)],
    ids=str,
)
def test_verdicts_about_a_suite_hold(cell: suite.Cell) -> None:
    """Verdicts about a suite are wrong at most one time in twenty.

    Their power is about that of a z test with known variance, as reported.
    """
    outcome = suite.simulate(cell, FEW, seed=11)
    page = Page(FEW, [outcome], [], [], [], [], [], [], [], Latencies(0, [], []), arms.Arms(0, []))

    assert outcome.now.passes <= within(RISK, FEW)
    assert outcome.now.fails <= within(RISK, FEW)
    assert [] == [*page.weak, *page.off]


@pytest.mark.parametrize(
    "cell",
    [population.Cell("ceiling", 20, 1), population.Cell("graded", 100, 3), population.Cell("mixed", 100, 3, uneven(100, 25))],
    ids=str,
)
def test_verdicts_about_a_population_hold(cell: population.Cell) -> None:
    """Verdicts about a population are wrong at most one time in twenty, also with clusters of unequal size. A drop is detected."""
    outcome = population.simulate(cell, FEW, seed=11)

    assert outcome.wrong_pass <= within(RISK, FEW)
    assert outcome.wrong_fail <= within(RISK, FEW)
    assert outcome.fails[0] >= 0.9 * outcome.fails[1], "now and before"


@pytest.mark.parametrize("trials", [(1, 1), (3, 3), (1, 3), (5, 2)])
def test_the_simulation_equals_the_gate(trials: tuple[int, int]) -> None:
    """The bounds of comparisons in arrays equal those that `compare` returns for each of them."""
    for kind in KINDS:
        cell, random = suite.Cell(kind, 20, *trials), np.random.default_rng(3)
        for batch in suite.drawn(cell, 5, random, fade, 0.05):
            interval = suite.gate(cell, batch)
            for at in range(5):
                new, base = (
                    {str(i): ScenarioSample("", tuple(each)) for i, each in enumerate(side[at].tolist())}
                    for side in (batch.new, batch.base)
                )
                decision = compare(new, base, 0.05)
                assert (decision.low, decision.high) == pytest.approx((interval.low[at], interval.high[at]), abs=1e-4)


def test_the_size_of_changes() -> None:
    """Each kind of change lowers the mean of the suite by exactly the given drop. If rollouts crash, this holds for the expected mean."""
    means = KINDS["continuous"].means(np.random.default_rng(1), (20, 100))
    for change in CHANGES:
        after = change(np.random.default_rng(2), means, 0.05)
        expected = after.means * (1 - after.crash)

        assert means.mean(-1) - expected.mean(-1) == pytest.approx(np.full(20, 0.05))
    assert CHANGES[1] is crash


def test_one_run_has_the_same_noise_in_a_report() -> None:
    """The interval of a mean in a report equals that of the arrays, with one trial, several, and unequal numbers of trials."""
    random = np.random.default_rng(4)
    for counts in ([1] * 12, [3] * 12, [1, 1, 2, 3, 4, 3, 2, 2, 3, 1, 2, 2]):
        scores = [random.beta(4, 2, count).tolist() for count in counts]
        found = noise(RunTrials.of(as_matrix(scores)))
        low = min(float(plain(found, 0.95).low), float(guarded(found, (0.0, 1.0), 0.95).low))

        assert suite_interval(scores).low == pytest.approx(max(low, 0.0))


@pytest.mark.parametrize(("sessions", "seed"), [(25, 19), pytest.param(100, 16, marks=pytest.mark.slow)])
def test_rules_of_a_session_are_no_more_often_wrong(sessions: int, seed: int) -> None:
    """Five rules without a margin share their risk, so a session is not wrong more often.

    The seeds are some for which it would fail otherwise.
    """
    five = family(5, sessions, seed)

    assert max(five.wrong_pass, five.wrong_fail) <= within(RISK, sessions)


@pytest.mark.parametrize("likeness", [0.0, 0.5, 0.8])
def test_latencies_of_two_runs_hold(likeness: float) -> None:
    """If slowly changing load makes neighbours alike, up to a correlation of 0.8, verdicts are wrong at most one time in twenty."""
    outcome = latency.simulate(latency.Cell(50, 100, 3, likeness, 1.0, shuffled=False), 100, seed=11)

    assert max(outcome.wrong_pass, outcome.wrong_fail) <= within(RISK, 100)
    assert outcome.undecided <= 0.6


def test_load_that_changes_slowly_decides_nothing() -> None:
    """With a correlation of 0.95, three hundred rollouts are fewer than fifteen blocks, so nothing is decided."""
    outcome = latency.simulate(latency.Cell(50, 100, 3, 0.95, 1.0, shuffled=False), 50, seed=11)

    assert outcome.undecided >= 0.9


@pytest.mark.parametrize("likeness", [0.0, 0.8])
def test_arms_that_take_turns_hold(likeness: float) -> None:
    """If equal arms alternate, one is reported as faster in at most one session of twenty."""
    assert latency.turns(50, 100, 10, likeness, 200, seed=11).claims <= within(RISK, 200)


@pytest.mark.parametrize(
    "cell",
    [
        arms.Cell(3, with_each_other=False, likeness=0.8),
        pytest.param(arms.Cell(4, with_each_other=True, likeness=0.8), marks=pytest.mark.slow),
        pytest.param(arms.Cell(3, with_each_other=False, kind="binary"), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_more_arms_claim_no_more(cell: arms.Cell) -> None:
    """With several arms, a difference that does not exist is reported in at most one session of twenty, for any number of comparisons."""
    outcome = arms.simulate(cell, 100, seed=11)

    assert max(outcome.claims, outcome.wrong) <= within(RISK, 100)
    assert outcome.found > outcome.claims


@pytest.mark.parametrize(
    "cell", [suite.Cell("mixed", 20, 5, 5), suite.Cell("sure", 100, 5, 5), suite.Cell("continuous", 100, 5, 5)], ids=str
)
def test_rounds_of_trials_hold(cell: suite.Cell) -> None:
    """Four interim looks are not wrong more often than one, and a clear verdict needs less than half of the rollouts."""
    outcome = rounds.simulate(cell, FEW, seed=11)

    assert max(outcome.wrong_pass, outcome.wrong_fail) <= within(RISK, FEW)
    assert [] == Page(FEW, [], [], [outcome], [], [], [], [], [], Latencies(0, [], []), arms.Arms(0, [])).dear
    assert outcome.passes[-1].rollouts <= 0.45


@pytest.mark.parametrize("kind", ["continuous", "binary", "always"])
def test_rounds_that_are_simulated_are_the_gates(kind: str) -> None:
    """A simulated run ends after the same round, with the same verdict, as a run whose records the gate judges."""
    cell, random = suite.Cell(kind, 20, 5, 5), np.random.default_rng(3)
    batch = next(suite.drawn(cell, 6, random, fade, 0.1))
    simulated = rounds.compared(cell, batch, 0.15)

    for at in range(6):
        new, base = (evidence(trials_of(side[at].tolist())) for side in (batch.new, batch.base))
        for look in range(2, 6):
            run = replace(new, facts=replace(new.facts, most_rounds=5, rounds=look))
            (found,) = judge_rules([asked("tsq.mean >= -0.15 vs baseline")], run, {"shop": base})
            if not found.is_open(look):
                break
        assert (look, found.decision.verdict) == (simulated.rounds[at], words(simulated, at))


def trials_of(scores: list[list[float]]) -> list[Trial]:
    return [trial(scenario, score, number=number) for scenario, each in enumerate(scores) for number, score in enumerate(each, 1)]


def words(simulated: rounds.Ended, at: int) -> str:
    return "PASS" if simulated.passed[at] else "FAIL" if simulated.failed[at] else "INCONCLUSIVE"


def small_page(wrong: float, rollouts: float) -> Page:
    """Returns a page with one cell of each kind, with a share of wrong verdicts and the costs of rounds of trials."""
    cell = suite.Cell("quiet", 100, 5, 5)
    never = suite.Wrong(wrong, wrong, "fade 0.1", "fade 0.1")
    power = suite.Power(0.1, (1.0, 1.0, 1.0), (0.1, 1.0), (1.0, 1.0, 1.0), 0.1, 0.8)
    drawn = population.Outcome(population.Cell("mixed", 100, 1), 0.0, 0.0, 0.0, 0.0, (1.0, 1.0), (1.0, 1.0))
    slow = latency.Outcome(latency.Cell(50, 100, 3, 0.0, 1.0, shuffled=False), *[0.0] * 8)
    in_rounds = rounds.Outcome(cell, wrong, wrong, (rounds.Spared(0.1, 1.0, 1.0, rollouts),), ())
    return Page(
        1000,
        [suite.Outcome(cell, never, never, power)],
        [(cell, 0.0, 0.0)],
        [in_rounds],
        [rounds.Limited(cell, 0.0, 0.0)],
        [drawn],
        [("quiet", 0.05, 0.0, 0.0)],
        [Family(1, 0.0, 0.0)],
        [(100, 0.5, {"percentile-t": 0.95})],
        Latencies(100, [slow], [latency.turns(50, 100, 10, 0.0, 20, seed=1)]),
        arms.Arms(100, [arms.simulate(arms.Cell(3, with_each_other=False), 20, seed=1)]),
    )


@pytest.mark.parametrize(
    ("wrong", "rollouts", "broken"),
    [
        (0.02, 0.5, []),
        (0.2, 0.5, ["wrong PASS, of suite", "wrong FAIL, of suite", "wrong PASS, rounds of trials", "wrong FAIL, rounds of trials"]),
        (0.02, 0.7, ["cells in which rounds cost more than they may"]),
    ],
)
def test_a_cell_that_does_not_hold_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: float, rollouts: float, broken: list[str]
) -> None:
    """If a promise is broken, the command that CI runs ends with exit status 1 and names the promise."""

    def measured(options: Options) -> Result:
        return result(small_page(wrong, rollouts), options, 0.0)

    monkeypatch.setattr(benchmarks, "BENCHMARKS", {"verdicts": measured})
    monkeypatch.setattr("sys.argv", ["benchmarks", "verdicts", "--quick"])

    assert bool(broken) == benchmarks.main()
    assert broken == [line.split("BROKEN: ")[1].split(" is ")[0] for line in capsys.readouterr().out.splitlines() if "BROKEN: " in line]


def test_the_committed_table_holds() -> None:
    """In all cells of the committed page, the shares of wrong verdicts are within the promise of the gate."""
    of_suite, _, rest = PAGE.read_text("utf-8").partition("### A run against a limit")
    suites = re.findall(r"^\| \d+ \| [\d to]+ \| \w+ \| ([\d.]+) % [\w. ]+ \([\d.]+ %\) \| ([\d.]+) % ", of_suite, re.MULTILINE)
    populations = re.findall(r"^\| \d+(?: in \d+)?(?: unequal)? \| \d \| \w+ \| ([\d.]+) % \| ([\d.]+) % \(", rest, re.MULTILINE)
    (runs,) = re.findall(r"Each share is of ([\d,]+) comparisons", of_suite)
    most = 100 * within(RISK, int(runs.replace(",", "")))

    added = re.findall(r"^\| \d+ \| (\d+) \| \w+ \| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+: .*)$", rest, re.MULTILINE)
    costs = [(float(power), int(share)) for base, *_, row in added if int(base) <= rounds.MOST for power, share in re.findall(COST, row)]

    assert (35, 28 * 4 - 4 * 2 * 2) == (len(added), len(costs)), "PASS and FAIL, at two distances; what never varies does not fade"
    assert [] == [row for _, *row, _ in added if max(map(float, row)) > most]
    assert [] == [cost for cost in costs if cost[1] > next((100 * bar for power, bar in rounds.BARS if cost[0] >= 100 * power), 100) + 3]
    section = rest.partition("## Latencies")[2]
    apart = re.findall(r"^\| p\d+ \| \d+ \| \d \| 0\.[058] \| \d+% \| \w+ \| ([\d.]+) % \([\d.]+ %\) \| ([\d.]+) % ", section, re.MULTILINE)
    turns = re.findall(r"^\| p\d+ \| \d+ \| \d+ \| 0\.[058] \| ([\d.]+) % ", section, re.MULTILINE)
    (compared,) = re.findall(r"Each share is of (\d+) comparisons", section)
    most_of_latencies = 100 * within(RISK, int(compared))

    of_arms = rest.partition("## More than two arms")[2]
    shares = re.findall(r"^\| [34] \| with [\w ]+ \| [^|]+ \| ([\d.]+) % \| ([\d.]+) % ", of_arms, re.MULTILINE)
    (sessions,) = re.findall(r"Each share is of (\d+) sessions", of_arms)

    assert (91, 60, 36, 18, 12) == (len(suites), len(populations), len(apart), len(turns), len(shares))
    assert [] == [row for row in shares if max(map(float, row)) > 100 * within(RISK, int(sessions))]
    assert [] == [row for row in apart if max(map(float, row)) > most_of_latencies]
    assert [] == [share for share in turns if float(share) > most_of_latencies]
    assert [] == [row for row in (*suites, *populations) if max(map(float, row)) > most]
