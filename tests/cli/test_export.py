"""`agentbench export`: the places of the files, and errors."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from tests.made_runs import run_directory
from tests.tables.shop import ALL, BOUGHT

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two runs in reports/."""
    monkeypatch.chdir(tmp_path)
    run_directory(tmp_path / "reports/one", *ALL)
    run_directory(tmp_path / "reports/two", BOUGHT)
    return tmp_path


def test_files_are_in_the_run_directory(place: Path, capsys: Capture) -> None:
    """Without --output, the files of a run are in its directory, with access only for the owner, and each is named."""
    status = main(["export", "one", "--as", "csv"])

    folder = Path("reports/one/csv")
    assert 0 == status
    assert sorted(f"wrote {file}" for file in folder.iterdir()) == capsys.readouterr().out.splitlines()
    assert 0o700 == stat.S_IMODE(folder.stat().st_mode)


def test_several_runs_need_a_directory(place: Path, capsys: Capture) -> None:
    """Several runs need --output with a directory. Without it there is an error."""
    assert 4 == main(["export", "one", "two", "--as", "csv"])
    assert "2 runs have no common directory for the files; name one with --output DIR" in capsys.readouterr().err
    assert 0 == main(["export", "one", "two", "--as", "csv", "--output", "new/both"])
    assert 5 == len((place / "new/both/rollouts.csv").read_text().splitlines())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["one", "--as", "cvs"], "no format 'cvs' (did you mean 'csv'?); known: "),
        (["three", "--as", "csv"], "no run 'three'; known: one, two"),
        (["one", "--as", "csv", "--output", "reports"], "reports exists already; remove it, or name another directory with --output DIR"),
        (["one", "--as", "csv", "--output", "/dev/null/x"], "/dev/null/x cannot be written: "),
    ],
)
def test_mistakes(place: Path, capsys: Capture, arguments: list[str], sentence: str) -> None:
    """A wrong format, run or directory is an error of one sentence, and nothing is written."""
    before = sorted(place.rglob("*"))

    assert 4 == main(["export", *arguments])
    assert sentence in capsys.readouterr().err
    assert before == sorted(place.rglob("*"))


def test_a_failed_export_leaves_nothing(place: Path) -> None:
    """If a writer fails, no directory and no part of one is left."""
    (place / "breaks.py").write_text("def write(chosen, directory):\n    (directory / 'a').touch()\n    raise ZeroDivisionError\n")
    with pytest.raises(ZeroDivisionError):
        main(["export", "one", "--as", "./breaks.py:write", "--output", "out"])

    assert ["breaks.py", "reports"] == sorted(each.name for each in place.iterdir() if each.name != "__pycache__")
