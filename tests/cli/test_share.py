"""`agentbench share`: the archive can be opened on a machine without the project."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from pathlib import Path

import numpy as np  # noqa: F401  # here, once, as yaml: pytester forgets imports, and what is in C does not load twice
import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.runs.journal import read_journal
from tests.project import FIND_THEN_ANSWER, Project

SECRET = "zebra-42-quartz-lantern"
OWN = "def fussy(scenario, rollout):\n    return 0.5 * bool(rollout.answer)\n"

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def shop(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a run whose answers contain a text that has become a secret after the run."""
    project.backend([FIND_THEN_ANSWER[0], {"text": f"Your code is {SECRET}."}])
    project.suite(scorers=["tsq", "./scorer.py:fussy"])
    project.write("scenarios/shop/scorer.py", OWN)
    project.run_once("scenarios/shop")
    monkeypatch.chdir(project.root)
    monkeypatch.setenv("SHOP_API_KEY", SECRET)
    return project


def opened(archive: Path, folder: Path) -> Path:
    """Unpacks an archive and returns the directory in it."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (found,) = folder.iterdir()
    return found


def test_an_archive_without_its_project(shop: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The archive is a run that can be shown and rescored without the project. Its hashes are right, and no file contains a secret."""
    name, scenarios = shop.directory.name, [each.scenario for each in shop.rollouts]
    assert any(SECRET in file.read_text(errors="replace") for file in shop.directory.rglob("*") if file.is_file())

    assert 0 == main(["share"])

    assert f"wrote {name}.tar.gz (" in capsys.readouterr().out
    elsewhere = opened(shop.root / f"{name}.tar.gz", tmp_path / "elsewhere")
    shutil.rmtree(shop.root / "scenarios")
    shutil.rmtree(shop.root / "reports")
    monkeypatch.chdir(elsewhere)
    lines = [line.partition("  ") for line in (elsewhere / "SHA256SUMS").read_text().splitlines()]
    sums = {path: hashed for hashed, _, path in lines}
    files = {str(file.relative_to(elsewhere)): file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()}
    assert {"run.json", "rollouts.jsonl", "samples.jsonl", "report.md", "report.html", "README.md", "backend/engine.log"} <= sums.keys()
    assert {"suites/shop/suite.yaml", "suites/shop/scorer.py"} <= sums.keys()
    assert {path: hashlib.sha256(content).hexdigest() for path, content in files.items() if path != "SHA256SUMS"} == sums
    assert [] == [path for path, content in files.items() if SECRET.encode() in content]
    assert {"Your code is [redacted]."} == {each.answer for each in read_journal(elsewhere)}
    assert 0 == main(["show", "."])
    assert 0 == main(["rescore", ".", "--suite", "suites/shop"])
    assert "shop fussy: mean 0.500, now 0.500; 0 of 3 rollouts changed" in capsys.readouterr().out
    assert sorted(scenarios) == sorted(each.scenario for each in read_journal(elsewhere.with_name(f"{name}-rescored")))


def test_runs_that_cannot_be_shared(shop: Project, capsys: Capture) -> None:
    """A suite with a secret in its code, a missing suite, and an output file that exists are refused by name."""
    scorer = shop.root / "scenarios/shop/scorer.py"
    scorer.write_text(f'{OWN}\nKEY = "{SECRET}"\n')
    assert 4 == main(["share"])
    assert "scenarios/shop/scorer.py contains a secret; take it out, or share the run with --without-suites" in capsys.readouterr().err

    assert 0 == main(["share", "--without-suites", "--output", "shared.tar.gz"])
    assert "with no suite" in capsys.readouterr().out
    assert not (opened(Path("shared.tar.gz"), shop.root / "unpacked") / "suites").exists()

    assert 4 == main(["share", "--without-suites", "--output", "shared.tar.gz"])
    assert "shared.tar.gz exists already; remove it, or name another file with --output FILE" in capsys.readouterr().err

    (shop.root / "scenarios/shop/suite.yaml").unlink()
    assert 4 == main(["share"])
    assert "pass the suite's folder with --suite. To share the run without its suites, use --without-suites" in capsys.readouterr().err
