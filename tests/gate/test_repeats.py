"""Earlier runs of the same setup: which runs count, how many there are, and whether a run is the best of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.gate.baselines import best_run_warnings
from pytest_agentbench.gate.repeats import PARTS, earlier_runs, runs_of_same_setup, setup_of
from pytest_agentbench.lib.codec import plain
from pytest_agentbench.runs.results import BaselineRun, EarlierRuns, Means
from pytest_agentbench.runs.run_file import Rescored, Run, write_run
from tests.made_runs import gate_result, identity_of, run_of
from tests.made_runs import mean as mean_of


def run(day: int, verdict: str = "PASS", mean: float | None = 0.5, **changes: Any) -> Run:
    """Returns a run of the suite shop on this day."""
    base = run_of()
    known: dict[str, Any] = {
        "id": f"2026010{day}-120000",
        "started_at": f"2026-01-0{day}T12:00:00+01:00",
        "verdict": verdict,
        "identity": identity_of(),
        "gate": gate_result(baselines={"shop": BaselineRun("before", None, "")}),
        "suites": {"shop": replace(base.suites["shop"], scores={"tsq": Means(None if mean is None else mean_of(mean), None)})},
    }
    return replace(base, **{**known, **changes})


def other(part: str) -> Run:
    """Returns a failed run whose identity differs in one part."""
    return run(1, "FAIL", identity=identity_of(hashes={**identity_of().hashes, part: "other"}))


NO_CODE = identity_of(code=None)


def kept(reports: Path, *runs: Run) -> Path:
    for each in runs:
        (reports / each.id).mkdir(parents=True)
        write_run(each, reports / each.id)
    return reports


def test_earlier_runs(tmp_path: Path) -> None:
    """Earlier runs of the same setup are counted, and those without PASS are named. Later runs and the run itself do not count."""
    runs = [run(4, "FAIL"), run(1, "FAIL"), run(2, "INCONCLUSIVE"), run(3)]

    assert EarlierRuns(2, ("20260101-120000", "20260102-120000")) == earlier_runs(run(3), kept(tmp_path, *runs))


@pytest.mark.parametrize(
    "before",
    [
        run(1, "NOT MEASURED"),
        run(1, "INTERRUPTED"),
        run(1, "FAIL", rescored=Rescored("x", "y")),
        run(1, "FAIL", identity=None),
        run(1, "FAIL", settings=replace(run_of().settings, limit=3)),
        run(1, "FAIL", gate=gate_result(baselines={"shop": BaselineRun("another", None, "")})),
        run(1, "FAIL", gate=None),
        run(1, "FAIL", schema="agentbench-run/0"),
        *(other(part) for part in PARTS),
    ],
)
def test_runs_that_do_not_count(tmp_path: Path, before: Run) -> None:
    """Runs that could not measure, were interrupted or rescored, or have another setup do not count."""
    assert EarlierRuns(0, ()) == earlier_runs(run(2), kept(tmp_path, before))


def test_unknown_setups_are_not_the_same(tmp_path: Path) -> None:
    """Without git, the setup of a run is unknown, so no other run counts as one of the same setup."""
    assert setup_of(run(1, identity=NO_CODE)) is None
    reports = kept(tmp_path, run(1, "FAIL", identity=NO_CODE))
    assert EarlierRuns(0, ()) == earlier_runs(run(2, identity=NO_CODE), reports)


def test_folders_that_are_not_runs(tmp_path: Path) -> None:
    """Symbolic links to runs and incomplete files do not count as runs."""
    kept(tmp_path, run(1, "FAIL"))
    (tmp_path / "latest").symlink_to("20260101-120000")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "run.json").write_text(json.dumps(plain(run(2)))[:50])

    assert ["20260101-120000"] == [each.id for each in runs_of_same_setup(run(3), tmp_path)]
    assert [] == runs_of_same_setup(run(3), tmp_path / "nowhere")


def test_the_best_of_several() -> None:
    """The best of five equal runs gets a warning with 1.2 standard deviations. The second best and a single run get none."""
    others = [run(day, mean=0.5 + day / 100) for day in range(1, 5)]

    (sentence,) = best_run_warnings(run(5, mean=0.6), "shop", others)

    assert "shop tsq.mean is the best of 5 runs of this setup, probably by luck (about 1.2 standard deviations)" in sentence
    assert [] == [*best_run_warnings(run(5, mean=0.53), "shop", others)]
    assert [] == [*best_run_warnings(run(5, mean=0.54), "shop", others)], "as good as another one"
    assert [] == [*best_run_warnings(run(5, mean=0.6), "shop", [])]
    assert [] == [*best_run_warnings(run(5, mean=0.6), "bank", others)]
    assert [] == [*best_run_warnings(run(5, mean=None), "shop", others)]
