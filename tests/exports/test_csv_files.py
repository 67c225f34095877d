"""`agentbench export --as csv`."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.exports import load_writer
from pytest_agentbench.exports.chosen_runs import ChosenRuns
from pytest_agentbench.reports import markdown
from pytest_agentbench.runs.run_file import read_run
from pytest_agentbench.tables import COLUMNS
from tests.made_runs import run_directory
from tests.tables.shop import ALL, LOST


def test_a_file_for_each_table(tmp_path: Path) -> None:
    """Every table is a file with its columns and rows, unknown values are empty, and columns.csv explains them all."""
    chosen = ChosenRuns([run_directory(tmp_path / "run", *ALL)])
    load_writer("csv")(chosen, tmp_path)
    files = {name: [*csv.DictReader((tmp_path / f"{name}.csv").read_text().splitlines())] for name in (*COLUMNS, "columns")}

    assert {"calls": 5, "rollouts": 3, "scores": 5, "samples": 0} == {name: len(files[name]) for name in COLUMNS}
    assert [("100.0", "True"), ("", "True")] == [(files["calls"][row]["ttft_ms"], files["calls"][row]["measured"]) for row in (0, 3)]
    assert [(name, column.name) for name, columns in COLUMNS.items() for column in columns] == [
        (row["table"], row["column"]) for row in files["columns"]
    ]


def test_the_report_says_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the scenarios of report.md is the command that writes scores.csv, which has a row for each of them."""
    monkeypatch.chdir(tmp_path)
    directory = run_directory(tmp_path / "reports" / "run", *ALL)
    report = markdown.write(read_run(directory), directory).read_text(encoding="utf-8")
    [(scenarios, command)] = re.findall(r"### Every scenario\n(.*?)`(agentbench [^`]*)` writes scores.csv", report, re.DOTALL)

    assert 0 == main(shlex.split(command)[1:])

    rows = csv.DictReader((directory / "csv" / "scores.csv").read_text(encoding="utf-8").splitlines())
    assert {row["scenario"] for row in rows} == {*re.findall(r"^\| `(.+?)` \|", scenarios, re.MULTILINE)} - {LOST.scenario}
