"""`agentbench export --as csv`."""

from __future__ import annotations

import csv
from pathlib import Path

from pytest_agentbench.exports import load_writer
from pytest_agentbench.exports.chosen import Chosen
from pytest_agentbench.tables import COLUMNS
from tests.made_runs import run_directory
from tests.tables.shop import ALL


def test_a_file_for_each_table(tmp_path: Path) -> None:
    """Every table is a file with its columns and rows, unknown values are empty, and columns.csv explains them all."""
    chosen = Chosen([run_directory(tmp_path / "run", *ALL)])
    load_writer("csv")(chosen, tmp_path)
    files = {name: [*csv.DictReader((tmp_path / f"{name}.csv").read_text().splitlines())] for name in (*COLUMNS, "columns")}

    assert {"calls": 5, "rollouts": 3, "scores": 5, "samples": 0} == {name: len(files[name]) for name in COLUMNS}
    assert [("100.0", "False"), ("", "False")] == [(files["calls"][row]["ttft_ms"], files["calls"][row]["judge"]) for row in (0, 3)]
    assert [(name, column.name) for name, columns in COLUMNS.items() for column in columns] == [
        (row["table"], row["column"]) for row in files["columns"]
    ]
