"""The benchmark of benchmarks/verdict-results-real.md with few runs. `python -m benchmarks verdicts_real` makes all of them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.measurement import BenchmarkError, Options
from benchmarks.verdicts.pairs import Pair, Run, Shares, Verdicts, judge_pairs
from benchmarks.verdicts.population import Interval
from benchmarks.verdicts.real import MARGINS, measure, result
from benchmarks.verdicts.real_page import RealPage, Same, Target
from tests.gate.evidences import evidence, trial
from tests.project import ROOT

pytestmark = pytest.mark.timeout(300)

PAGE = ROOT / "benchmarks/verdict-results-real.md"


def run(lost: float) -> Run:
    """Returns a run of sixty scenarios with different scores, all of them lower by about `lost`."""
    return Run.of(evidence(trial(number, 0.5 + number % 5 / 10 - lost * (1 + number % 2 / 10)) for number in range(60)))


def test_a_known_drop() -> None:
    """A drop of 0.21 passes with larger margins and fails with smaller ones. A plain threshold gives the same verdicts."""
    found = judge_pairs([Pair(run(0.2), run(0)), Pair(run(0.2), run(0))], (0.05, 0.1, 0.4))

    right = {0.05: Shares(0, 1), 0.1: Shares(0, 1), 0.4: Shares(1, 0)}
    assert right == {margin: found.shares["gate", margin] for margin in right}
    assert right == {margin: found.shares["threshold", margin] for margin in right}
    assert (1, 0) == (found.intervals["gate"].covers(-0.21), found.intervals["gate"].covers(0))
    assert 0 == found.half_width("threshold") < found.half_width("gate") < found.half_width("pooled")


def test_shares_are_of_all_pairs() -> None:
    """Shares are of all pairs: if one of four pairs got worse, a quarter fails."""
    found = judge_pairs([Pair(run(0.2), run(0)), *[Pair(run(0), run(0))] * 3], (0.1,))

    assert Shares(0.75, 0.25) == found.shares["gate", 0.1] == found.shares["threshold", 0.1]
    assert (4, 0.75) == (found.pairs, found.intervals["gate"].covers(0))


def test_a_run_without_all_scores() -> None:
    """A run without all scores cannot be compared, and the error names a scenario."""
    with pytest.raises(BenchmarkError, match=r"^now: no tsq for 1 of 2 scenarios, such as 7$"):
        Run.of(evidence([trial(1), trial(7, None)]))


@pytest.mark.parametrize(
    ("share", "word"),
    [(0.05, "holds"), (0.051, "above the target, within chance"), (0.09, "above the target, within chance"), (0.1, "MISSES")],
)
def test_shares_above_their_target(share: float, word: str) -> None:
    """A share holds if it is within its target. A share above it is described by whether chance can explain it."""
    assert word == Target("FAIL, nothing changed", share, most=0.05, most_by_chance=0.09).word


def test_a_gate_that_errs_is_called_broken() -> None:
    """If a fifth of unchanged pairs fails, which is more than chance explains, the benchmark reports that and fails."""
    shares = {("gate", margin): Shares(0.8, 0.2) for margin in MARGINS}
    wide = Interval(np.array([-0.1]), np.array([0.1]))
    found = Verdicts(1, shares, {"gate": wide, "pooled": wide})
    same = Same(rate=0.1, scenarios=100, runs=100, mean=0.6, deviation=0.01, every=found, neighbours=found)

    broken = result(RealPage(same, [], each_s=5.0), Options())

    assert ("FAIL, nothing changed: 0.200, more than 0.142",) == broken.gross
    assert [("FAIL, nothing changed", False), ("misses, nothing changed", True)] == [(each.name, each.holds) for each in broken.figures]


def test_one_run_is_not_enough() -> None:
    """A single run is refused, because there is no other run to compare with."""
    with pytest.raises(BenchmarkError, match="--repeat must be at least 2"):
        measure(Options(repeat=1))


@pytest.mark.slow
def test_real_sessions_in_small(tmp_path: Path) -> None:
    """Three equal sessions and two with a raised error rate give a page in which the shares of each row sum to 100 %."""
    found = measure(Options(quick=True, table=tmp_path / "page.md"))

    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (0\.\d{3}) \| ([\w ]+) \|(?: ([\d.]+) % \|)(?: ([\d.]+) % \|)(?: ([\d.]+) % \|)", page, re.MULTILINE)
    deviation = re.search(r"standard deviation of\n([\d.]+) from run to run", page)
    drop = re.search(r"true drop is ([\d.]+),", page)
    assert () == found.gross
    assert 4 + 4 + 5 == len(rows)
    assert [] == [row for row in rows if abs(sum(map(float, row[2:])) - 100) > 0.11]
    assert ["neither"] == [right for margin, right, *_ in rows if drop and margin == drop[1]]
    assert deviation and float(deviation[1]) > 0, "another seed has other errors"
    assert page.startswith("# Do the verdicts hold in real runs?\n\nMade by `python -m benchmarks verdicts_real --quick --table ")
    assert "\n5 whole pytest sessions of the banking suite: 20 scenarios, one trial each, " in page
    assert "{" not in page


def test_the_committed_page_holds() -> None:
    """The committed page has fifty unchanged runs, and all promises of the gate hold, within chance."""
    page = PAGE.read_text("utf-8")

    assert "50 runs with an error rate of 0.1." in page
    assert ["holds"] * 8 == re.findall(r"% \| ([\w ,]+) \|$", page.partition("## Nothing changed")[0], re.MULTILINE)
