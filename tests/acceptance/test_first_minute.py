"""The commands of the README, in an empty directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.reports.document import Level
from tests.findings import gate_of, report_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def banking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project created by `agentbench init banking`, with an engine that does not wait."""
    monkeypatch.chdir(tmp_path)
    assert 0 == main(["init", "banking"])
    embedded = tmp_path / "backends" / "embedded.yaml"
    embedded.write_text(re.sub(r"(ttft_ms|itl_ms): \d+", r"\1: 0", embedded.read_text(encoding="utf-8")), encoding="utf-8")
    return tmp_path


def typed(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Runs a line in a shell that has the programs of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(line, shell=True, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_gate_of_the_readme(banking: Path) -> None:
    """The README's commands for a baseline work as printed: an unchanged suite passes the gate."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("To find out whether a later run got worse")[2].partition("\n## ")[0]
    run, promote, gate = (typed(banking, line.strip()) for line in text.splitlines() if line.startswith("    "))

    assert (0, 0, 0) == (run.returncode, promote.returncode, gate.returncode), run.stdout + promote.stderr + gate.stdout
    assert "wrote reports/baselines/banking.jsonl" in promote.stdout
    assert "runs of the whole suite will be INCONCLUSIVE" not in promote.stdout
    told = gate_of(report_of((banking / "reports" / "latest").resolve(), Level.SUMMARY))
    assert ("PASS", ["banking"]) == (told.verdict, [*told.baselines])
    assert re.search(r"^verdict +PASS\b", gate.stdout, re.MULTILINE)
