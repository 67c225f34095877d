"""The reference runs in benchmarks/reference: the code makes the stored results from stored files, and a change is detected."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reference.again import comparable
from benchmarks.reference.differences import differences
from benchmarks.reference.sessions import MADE
from benchmarks.reference.store import EXPECTED, INPUTS, archive_of, read_archive, stored, write_archive
from pytest_agentbench.lib.json_text import opened, sealed
from tests.project import ROOT

SMALL = ("banking", "resumed")


def compare(*names: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Compares runs, using the packages in a folder, and other modules of the checkout."""
    command = [sys.executable, "-m", "benchmarks.reference", "compare", *names]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_every_run_is_stored() -> None:
    """Each reference run is stored, and no other. Together they take less than 1.5 megabytes."""
    assert sorted(MADE) == stored()
    assert sum(archive_of(name).stat().st_size for name in stored()) < 1_500_000


def test_small_runs_are_equal() -> None:
    """The code makes the stored results from the stored journals, samples and facts."""
    done = compare(*SMALL)

    assert (0, "2 runs, equal\n") == (done.returncode, done.stdout), done.stdout + done.stderr


@pytest.mark.slow
def test_all_runs_are_equal() -> None:
    """All reference runs are equal to the stored results, whatever the hash seed is."""
    done = compare()

    assert (0, f"{len(stored())} runs, equal\n") == (done.returncode, done.stdout), done.stdout + done.stderr


def test_a_change_is_seen(tmp_path: Path) -> None:
    """A changed stored file, and a changed word in a report, are lines of a difference, and the status is 1."""
    for package in ("benchmarks", "pytest_agentbench"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "shipped"))
    archive = tmp_path / "benchmarks/reference/runs/resumed.tar.xz"
    files = read_archive(archive)
    run = files[f"{EXPECTED}run.json"].replace(b'"not_run": 0', b'"not_run": 7', 1)
    write_archive(archive, {**files, f"{EXPECTED}run.json": run})
    phrases = tmp_path / "pytest_agentbench/reports/serving_phrases.py"
    phrases.write_text(phrases.read_text(encoding="utf-8").replace(" peak, {flight.mean", " at most, {flight.mean"), encoding="utf-8")

    done = compare("resumed", folder=tmp_path)

    assert 1 == done.returncode
    lines = done.stdout.splitlines()
    changed = ("comment.md", "report.html", "report.md", "run.json", "terminal.txt")  # One phrase is in all these reports.
    assert [f"--- stored/resumed/{name}" for name in changed] == [line for line in lines if line.startswith("--- ")]
    assert any(line.startswith('-    "not_run": 7') for line in lines)
    assert any(line.startswith("-throughput ") and " peak, " in line for line in lines)
    assert any(line.startswith("+throughput ") and " at most, " in line for line in lines)
    assert "1 run, 1 differ" == lines[-1]


def test_differences_between_two_executions() -> None:
    """Between two executions of a run, times may differ, but answers of an agent may not."""
    archive = read_archive(archive_of("black_box"))
    name = f"{INPUTS}rollouts.jsonl"
    line, *others = archive[name].splitlines()

    def changed(**fields: Any) -> dict[str, bytes]:
        record = {**json.loads(opened(line)), **fields}
        return comparable({**archive, name: b"\n".join([sealed(json.dumps(record).encode()), *others])})

    assert [] == [*differences("black_box", comparable(archive), changed(started_at=1.0, ended_ns=2))]
    found = [*differences("black_box", comparable(archive), changed(answer="another one"))]
    assert any(line.startswith("+") and "another one" in line for line in found)


def test_an_unknown_name() -> None:
    """An unknown run is refused with the most similar known one."""
    done = compare("bankng")

    assert 2 == done.returncode
    assert "banking" in done.stderr
