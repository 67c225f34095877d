"""`agentbench export --as pytest-benchmark`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.stats import Stats

from pytest_agentbench.exports import load_writer
from pytest_agentbench.exports.benchmark_json import statistics
from pytest_agentbench.exports.files import ChosenRuns
from tests.made_runs import run_directory
from tests.tables.shop import ALL, BOUGHT


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The exported files of two runs."""
    directories = [run_directory(tmp_path / "reports" / name, *rollouts) for name, rollouts in (("old", ALL), ("new", (BOUGHT,)))]
    (tmp_path / "files").mkdir()
    load_writer("pytest-benchmark")(ChosenRuns(directories), tmp_path / "files")
    return tmp_path / "files"


def test_durations_are_rounds(files: Path) -> None:
    """Durations of calls and rollouts are rounds in seconds. Failed calls and judges' calls are left out."""
    benchmarks = {each["name"]: each for each in json.loads((files / "old.json").read_text())["benchmarks"]}

    assert {"rounds": 3, "min": 0.1, "median": 0.2, "max": 0.4}.items() <= benchmarks["shop: ttft"]["stats"].items()
    assert 3 == benchmarks["shop: rollout"]["stats"]["rounds"]
    assert {"shop: itl_mean", "shop: e2e"} <= set(benchmarks)


def test_statistics_equal_those_of_pytest_benchmark() -> None:
    """Each statistic equals that of pytest-benchmark, except for the quartiles, which it does not interpolate."""
    seconds = [0.1, 0.2, 0.2, 0.3, 0.4, 0.5, 9.0]
    untyped: Any = Stats
    rounds = untyped()
    for each in seconds:
        rounds.update(each)
    ours, theirs = statistics(np.array(seconds)), rounds.as_dict()

    assert {*theirs, "iterations"} == set(ours)
    for name in (
        "min",
        "max",
        "mean",
        "stddev",
        "rounds",
        "median",
        "stddev_outliers",
        "iqr_outliers",
        "outliers",
        "total",
        "ops",
        "hd15iqr",
    ):
        assert theirs[name] == pytest.approx(ours[name]), name
    assert statistics(np.array([0.5])).items() >= {"rounds": 1, "stddev": 0.0, "iqr": 0.0, "outliers": "0;0"}.items()


def test_pytest_benchmark_compares_them(files: Path) -> None:
    """`pytest-benchmark compare` shows both runs of a duration side by side."""
    command = [
        sys.executable,
        "-m",
        "pytest_benchmark",
        "compare",
        "old.json",
        "new.json",
        "--columns=median,rounds",
        "--group-by=fullname",
    ]
    done = subprocess.run(command, cwd=files, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "shop::ttft" in done.stdout
    assert "old" in done.stdout and "new" in done.stdout
