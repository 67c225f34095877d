"""`agentbench reproduce` on real engines, one of which is slower on purpose, and its errors."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from tests.paper_scripts import figure
from tests.project import ALONE, FIND_THEN_ANSWER, Project
from tests.waits import wait_for

WORDS = ("--suite=scenarios/shop", "--concurrency=1,2", "--duration=3s", "--window=0s:3s", "--sample-interval=500ms", "--output=out")


def reproduce(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_agentbench.cli", "reproduce", "hle-throughput", *WORDS, "--methods=base=quick,slow", *words]
    return subprocess.run(
        [*command, "--", *ALONE, "--agentbench-trials=40"], cwd=project.root, capture_output=True, text=True, check=False, timeout=200
    )


def of_cell(output: Path, method: str, concurrency: int) -> Path:
    """Returns the folder of a measured cell."""
    [folder] = output.glob(f"hle_paper_{method}_c{concurrency}_rep1_*")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_tiny_windows(project: Project) -> None:
    """Each method at each concurrency has a window, which the paper's plot script finds.

    If the command runs again, it measures only what is missing.
    """
    project.suite(scenarios=4)
    project.backend([{"ttft_ms": 50, **rule} for rule in FIND_THEN_ANSWER], name="quick")
    project.backend([{"ttft_ms": 600, **rule} for rule in FIND_THEN_ANSWER], name="slow")
    done = reproduce(project)
    out = project.root / "out"
    rows = [*csv.DictReader((out / "throughput.csv").read_text(encoding="utf-8").splitlines())]

    assert 0 == done.returncode, done.stdout + done.stderr
    assert [("base", "1"), ("slow", "1"), ("base", "2"), ("slow", "2")] == [(row["method"], row["concurrency"]) for row in rows]
    assert ["1.0", "1.0"] == [row["ratio_to_baseline"] for row in rows[::2]]
    assert all(0 < float(row["ratio_to_baseline"]) < 1 for row in rows[1::2])
    assert {(row["method"], int(row["concurrency"])): pytest.approx(float(row["steps_per_min"])) for row in rows} == figure(out)
    assert (out / "throughput.png").stat().st_size > 0

    shutil.rmtree(of_cell(out, "slow", 2))
    planned = reproduce(project, "--dry-run")
    again = reproduce(project)
    after = [*csv.DictReader((out / "throughput.csv").read_text(encoding="utf-8").splitlines())]

    assert planned.stdout.startswith("4 cells, 3 of them measured; 0.05 min to go")
    assert "slow-c2: pytest scenarios/shop --agentbench-backend=slow --agentbench-concurrency=2" in planned.stdout
    assert 0 == again.returncode, again.stdout + again.stderr
    assert (rows[:3], True) == (after[:3], rows[3]["run"] != after[3]["run"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="NOT TESTED: bubblewrap is not installed")
@pytest.mark.timeout(200)
def test_a_killed_reproduction_continues(project: Project) -> None:
    """With the suite `hle` and its orchestrator, a killed command can be run again: measured cells are kept, and the incomplete one starts
    anew.
    """
    project.shipped("hle")
    for name, ms in (("quick", 20), ("slow", 200)):
        told = {"kind": "embedded", "policy": "script", "script": "../scenarios/hle/orchestrated_answers.yaml", "ttft_ms": ms}
        project.write(f"backends/{name}.yaml", json.dumps(told))
    words = (
        "reproduce",
        "hle-throughput",
        "--methods=base=quick,slow",
        "--concurrency=2",
        "--duration=3s",
        "--window=0s:3s",
        "--output=out",
    )
    command = [sys.executable, "-m", "pytest_agentbench.cli", *words, "--sample-interval=500ms", "--", *ALONE, "--agentbench-trials=20"]
    out = project.root / "out"
    began = subprocess.Popen(command, cwd=project.root, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: [*project.root.glob("reports/*slow*/rollouts.jsonl")] or began.poll() is not None, "the second cell", 60)
    finally:
        # The command and its session are in a process group of their own.
        os.killpg(began.pid, signal.SIGKILL)
        began.wait(30)
    first = (of_cell(out, "base", 2) / "cell.json").read_text(encoding="utf-8")
    assert [] == [*out.glob("*slow*")]

    done = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=False, timeout=100)
    rows = [*csv.DictReader((out / "throughput.csv").read_text(encoding="utf-8").splitlines())]

    assert 0 == done.returncode, done.stdout + done.stderr
    assert done.stdout.startswith("2 cells, 1 of them measured")
    assert first == (of_cell(out, "base", 2) / "cell.json").read_text(encoding="utf-8")
    assert [("base", "1.0"), ("slow", True)] == [
        (row["method"], row["ratio_to_baseline"] if row["method"] == "base" else 0 < float(row["ratio_to_baseline"]) < 1) for row in rows
    ]
    assert all(int(row["steps"]) > 0 for row in rows)
    assert 2 == len([*project.root.glob("reports/*slow*/rollouts.jsonl")])


@pytest.mark.slow
def test_a_session_that_fails(project: Project) -> None:
    """If the session of a cell fails, the others are still measured. The cell is named, and the exit status is 1."""
    project.suite(scenarios=2)
    project.backend(name="quick")
    project.write("backends/slow.yaml", json.dumps({"model": "m", "services": {"engine": {"run": ["false"]}}}))
    done = reproduce(project, "--concurrency=1", "--duration=1s", "--window=0s:1s")

    assert 1 == done.returncode, done.stdout + done.stderr
    assert "agentbench: not measured: slow-c1; run the same command again to measure them" in done.stderr
    assert (of_cell(project.root / "out", "base", 1) / "cell.json").is_file()


def test_the_variant_whose_steps_are_counted(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """For `hle` the orchestrator's steps are counted, because its default agent calls no tool.

    Other suites use their own agent or --variant.
    """
    monkeypatch.chdir(project.root)
    project.shipped("hle")
    project.suite()
    said = []
    for words in ([], ["--suite=scenarios/shop"], ["--suite=scenarios/shop", "--variant=other"], ["--variant=default"]):
        assert 0 == main(["reproduce", "hle-throughput", "--methods=embedded", "--concurrency=2", "--dry-run", *words])
        said.append(re.findall(r"pytest (\S+) (?:--agentbench-variants=(\w+) )?--agentbench-backend", capsys.readouterr().out))

    hle, shop = "scenarios/hle", "scenarios/shop"
    assert [[(hle, "orchestrator")], [(shop, "")], [(shop, "other")], [(hle, "default")]] == said


def test_missing_requirements(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run prints the duration and what is missing. Without --dry-run, nothing starts if something is missing."""
    monkeypatch.chdir(project.root)
    monkeypatch.setenv("AGENTBENCH_ENVS", str(project.root / "envs"))
    project.suite()
    words = ["reproduce", "hle-throughput", "--suite=scenarios/shop", "--output=out"]

    assert 0 == main([*words, "--dry-run"])
    said = capsys.readouterr().out
    assert said.startswith("12 cells, 0 of them measured; 30 h 0 min to go")
    assert 12 == said.count(": pytest scenarios/shop --agentbench-backend=")
    assert "continuum (vllm-continuum): " in said
    assert "agentbench env create vllm-continuum" in said
    assert 0 != main(words)
    assert "agentbench env create thunderagent" in capsys.readouterr().err
    assert not (project.root / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hle-accuracy"], "hle-throughput"),
        (["hle-throughput", "--methods", "a,a"], "each name once"),
        (["hle-throughput", "--concurrency", "4,x"], "whole numbers from 1 up"),
        (["hle-throughput", "--window", "5m"], "START:END"),
        (["hle-throughput", "--duration", "10m"], "give a longer --duration"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With an invalid option, nothing runs."""
    try:
        status: int | str | None = main(["reproduce", *words])
    except SystemExit as end:
        status = end.code
    assert 4 == status
    assert message in capsys.readouterr().err
