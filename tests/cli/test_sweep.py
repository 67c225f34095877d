"""`agentbench sweep` on a real engine with a known knee, and its errors."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.exports.nat_profiler import BENCHMARK_COLUMNS
from tests.project import ALONE, FIND_THEN_ANSWER, Project
from tests.waits import wait_for


def sweep(project: Project, *words: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_agentbench.cli", "sweep", "scenarios/shop", *words, "--", *ALONE, *options]
    return subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=False, timeout=200)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_known_knee(project: Project) -> None:
    """If an engine serves two calls at a time, two in flight are the knee and the greatest level at which calls do not wait."""
    project.suite(scenarios=24)
    project.backend(ttft_ms=120, max_concurrency=2)

    done = sweep(project, "--concurrency=1,2,8", "--slo=ttft=300ms", "--target=0.5", "--margin=0.5")

    assert 0 == done.returncode, done.stderr
    folder = project.directory / "sweep"
    found = json.loads((folder / "sweep.json").read_text())
    assert (2, {"shown": 2, "refuted": 8, "undecided": []}) == (found["knee"], found["greatest"])
    assert "2 in flight is good enough, 8 is not" in done.stdout
    assert {"1", "2", "8"} == found["warm_up"].keys()
    assert {24} == {level["rollouts"] + found["warm_up"][str(level["concurrency"])] for level in found["levels"]}
    assert all(found["warm_up"].values())
    rows = [*csv.reader((folder / "benchmark_results.csv").read_text(encoding="utf-8").splitlines())]
    assert [*BENCHMARK_COLUMNS] == rows[0]
    assert 32 == len(rows[0])
    assert ["1", "2", "8"] == [row[0] for row in rows[1:]]
    names = {"benchmark_report.md", "analysis_1.txt", "analysis_2.txt", "analysis_8.txt", "levels.csv", "sweep.md", "sweep.png"}
    assert names <= {file.name for file in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_search(project: Project) -> None:
    """A search runs one session after the other, and prints the last level that is good enough and the first that is not."""
    project.suite(scenarios=24)
    project.backend(ttft_ms=120, max_concurrency=2)

    done = sweep(project, "--find", "--concurrency=1,8", "--slo=ttft=170ms", "--target=0.5", "--margin=0.5")

    assert 0 == done.returncode, done.stderr
    answer = re.search(r"search from 1 to 8: (\d) in flight is good enough, (\d) is not", done.stdout)
    assert answer, done.stdout
    shown, refuted = map(int, answer.groups())
    # With two rollouts in flight no call waits.
    assert 2 <= shown < refuted <= 8
    assert 1 == refuted - shown
    runs = [path for path in (project.root / "reports").glob("*/run.json") if not path.parent.is_symlink()]
    assert 2 <= len(runs) <= 5


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_rollouts_that_the_backend_lost(project: Project) -> None:
    """If a backend fails some calls, as an overloaded one does, the sweep has a result, and no level is shown to be good enough."""
    project.suite(scenarios=24)
    project.backend([{"match": {"contains": "shop-2"}, "status": 500}, *FIND_THEN_ANSWER])

    done = sweep(project, "--concurrency=1,2", "--margin=0.9")

    assert 0 == done.returncode, done.stderr
    assert 6 == project.run_json["exit_status"]
    found = json.loads((project.directory / "sweep/sweep.json").read_text())
    assert ["INCONCLUSIVE", "INCONCLUSIVE"] == [level["verdict"] for level in found["levels"]]
    assert all(level["infra_error"] and level["rollouts"] > level["infra_error"] for level in found["levels"])
    assert "no level is shown to be good enough" in done.stdout
    assert re.search(r"concurrency 1: \d infra_error", done.stdout)


@pytest.mark.slow
def test_nothing_measured(project: Project) -> None:
    """If every rollout is lost, there is no summary, and the exit status is the session's."""
    project.suite()
    project.backend([{"match": {}, "status": 500}])

    done = sweep(project, "--concurrency=1,2")

    assert 6 == done.returncode
    assert "the session ended with status 6, see above; nothing was measured" in done.stderr


@pytest.mark.slow
def test_an_interrupt(project: Project) -> None:
    """After Ctrl-C, pytest still writes the measured rollouts before the command ends."""
    project.suite(scenarios=24)
    project.backend(ttft_ms=300)
    words = ["sweep", "scenarios/shop", "--concurrency=1,2", "--", *ALONE]
    command = [sys.executable, "-m", "pytest_agentbench.cli", *words]
    running = subprocess.Popen(command, cwd=project.root, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: any(file.stat().st_size for file in project.root.glob("reports/2*/rollouts.jsonl")), "the first rollout")
        os.killpg(running.pid, signal.SIGINT)

        assert 130 == running.wait(60)
    finally:
        running.kill()
    assert "INTERRUPTED" == project.run_json["verdict"]


def test_a_session_that_fails(project: Project) -> None:
    """If the session fails, the command has its exit status, and says so after its output."""
    project.suite()
    done = sweep(project, "--concurrency=1,2", options=["-k", "nothing_of_that_name"])
    assert 5 == done.returncode
    assert "the session ended with status 5" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--concurrency", "4"], "at least two different numbers"),
        (["--concurrency", "4,x"], "whole numbers from 1 up"),
        (["--slo", "ttft"], "ttft=500ms"),
        (["--target", "1.5"], "less than 1"),
        (["--find", "--output", "there"], "leave out --output"),
        (["--output", "."], "name another directory"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With an invalid option, nothing runs."""
    try:
        status: int | str | None = main(["sweep", "scenarios/shop", *words])
    except SystemExit as end:
        status = end.code
    assert 4 == status
    assert message in capsys.readouterr().err


def test_a_run_that_is_not_a_sweep(project: Project) -> None:
    """A run without several concurrencies has no levels."""
    from pytest_agentbench.errors import ConfigError
    from pytest_agentbench.sweep.levels import read_sweep

    project.suite()
    project.run_once("scenarios/shop")
    with pytest.raises(ConfigError, match="are not concurrency levels"):
        read_sweep(project.directory)
