"""`agentbench export --as parquet`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet

from pytest_agentbench.exports import load_writer
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.lib.process import child_environment
from pytest_agentbench.tables import COLUMNS
from tests.made_runs import run_directory
from tests.tables.shop import ALL


def test_a_file_for_each_table(tmp_path: Path) -> None:
    """Every table is a file with its rows, types and units, and unknown values are null."""
    chosen = ChosenRuns([run_directory(tmp_path / "run", *ALL)])
    load_writer("parquet")(chosen, tmp_path)
    files = {name: pyarrow.parquet.read_table(tmp_path / f"{name}.parquet") for name in COLUMNS}

    for table in chosen.tables.all:
        assert [*map(dict, (zip(files[table.name].column_names, row, strict=True) for row in table.rows()))] == files[
            table.name
        ].to_pylist()
    assert b"ms" == files["calls"].schema.field("ttft_ms").metadata[b"unit"]
    assert 1 == files["calls"]["ttft_ms"].null_count
    assert ["int64", "bool", "string"] == [str(files["calls"].schema.field(name).type) for name in ("number", "measured", "suite")]


def test_without_pyarrow(tmp_path: Path) -> None:
    """If pyarrow is missing, the error has the command that installs it, and nothing is written."""
    run_directory(tmp_path / "reports/run", *ALL)
    code = "import sys; sys.modules['pyarrow'] = None; from pytest_agentbench.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "export", "run", "--as", "parquet", "--output", "out"]
    done = subprocess.run(command, cwd=tmp_path, env=child_environment(), capture_output=True, text=True, check=False)

    assert (4, "") == (done.returncode, done.stdout)
    assert "pip install 'pytest-agentbench[parquet]'" in done.stderr
    assert ["reports"] == [each.name for each in tmp_path.iterdir()]
