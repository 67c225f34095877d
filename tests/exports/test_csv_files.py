"""`agentbench export --as csv`."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.cli import main
from pytest_agentbench.exports import load_writer
from pytest_agentbench.exports.csv_files import inert, write_rows
from pytest_agentbench.exports.files import ChosenRuns
from pytest_agentbench.records import Score
from pytest_agentbench.reports import suite_phrases
from pytest_agentbench.reports.document import Code, heads, spans
from pytest_agentbench.tables import COLUMNS
from tests.findings import report_of, said, tables
from tests.made_runs import run_directory
from tests.tables.shop import ALL, LOST, call, rollout

CONVERTER = shutil.which("soffice")  # The program of LibreOffice

#: Texts that a spreadsheet treats as formulas, and texts that a careless reader treats as the end of a row or cell.
HOSTILE = (
    *(
        "=1+1",
        "+1+1",
        "-1+1",
        "@SUM(1)",
        "\t=1+1",
        "\r=1+1",
        "\n=1+1",
        "\uff1d1+1",
        '=HYPERLINK("https://evil.example","a")',
        "=cmd|' /C calc'!A0",
    ),
    *("a\rb", "a\nb", "a\r\nb", 'a"b', "a,b", "'=1", "\u2028", "\x00", "\x85"),
)
PLAIN = ("a", "1", "-1", "+1.5e-3", "-.5", "", " =1+1", "a=1", "—")
CELLS = st.none() | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.text(max_size=8) | st.sampled_from((*HOSTILE, *PLAIN))
Reader = Callable[[Path], list[list[str]]]


def test_a_file_for_each_table(tmp_path: Path) -> None:
    """Every table is a file with its columns and rows, unknown values are empty, and columns.csv explains all columns."""
    chosen = ChosenRuns([run_directory(tmp_path / "run", *ALL)])
    load_writer("csv")(chosen, tmp_path)
    files = {name: [*csv.DictReader((tmp_path / f"{name}.csv").read_text().splitlines())] for name in (*COLUMNS, "columns")}

    assert {"calls": 5, "rollouts": 3, "scores": 5, "samples": 0, "metrics": 70} == {name: len(files[name]) for name in COLUMNS}
    assert [("100.0", "True"), ("", "True")] == [(files["calls"][row]["ttft_ms"], files["calls"][row]["measured"]) for row in (0, 3)]
    assert [(name, column.name) for name, columns in COLUMNS.items() for column in columns] == [
        (row["table"], row["column"]) for row in files["columns"]
    ]


def test_the_report_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the scenarios, report.md has the command that writes scores.csv, which has a row for each of them."""
    monkeypatch.chdir(tmp_path)
    directory = run_directory(tmp_path / "reports" / "run", *ALL)
    report = report_of(directory)
    [(run,)] = said(report, suite_phrases.spreadsheet)
    [command] = [span.text for span in spans(suite_phrases.spreadsheet(run)) if isinstance(span, Code)]
    scores = [column.title for column in heads("scenario", *run.suites["shop"].scorers)]
    [scenarios] = [table for table in tables(report, "scenario") if scores == [column.title for column in table.columns]]

    assert 0 == main(shlex.split(command)[1:])

    rows = csv.DictReader((directory / "csv" / "scores.csv").read_text(encoding="utf-8").splitlines())
    measured = {row["scenario"] for row in rows}
    named = {name for name, *_ in scenarios.rows}
    assert {Code(name, "scenario") for name in measured} == named - {Code(LOST.scenario, "scenario")}


def with_csv(file: Path) -> list[list[str]]:
    with file.open(encoding="utf-8", newline="") as stream:
        return [*csv.reader(stream, strict=True)]


def with_pandas(file: Path) -> list[list[str]]:
    return [[*map(str, row)] for row in pd.read_csv(file, header=None, dtype=str, keep_default_na=False).to_numpy()]


def sheet(file: Path) -> ET.Element:
    """Returns a CSV file as LibreOffice opens it with a double click."""
    assert CONVERTER is not None
    out = file.parent / "opened"
    command = [CONVERTER, "--headless", f"-env:UserInstallation={(out / 'profile').as_uri()}", "--convert-to", "fods", "--outdir", str(out)]
    subprocess.run([*command, str(file)], check=True, capture_output=True, timeout=120)
    return ET.parse(out / f"{file.stem}.fods").getroot()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that examples overwrite."""
    return tmp_path_factory.mktemp("csv") / "scratch.csv"


@given(rows=st.lists(st.tuples(CELLS, CELLS), max_size=5), exact=st.booleans())
def test_written_rows_can_be_read(scratch: Path, rows: list[tuple[Any, Any]], exact: bool) -> None:
    """The modules csv and pandas read the same rows that were written, whatever the cells contain. Lines end as in RFC 4180."""
    write_rows(scratch, ("a", "b"), rows, exact=exact)

    expected = [["a", "b"], *(["" if cell is None else str(cell if exact else inert(cell)) for cell in row] for row in rows)]
    assert expected == with_csv(scratch)
    assert [row for row in expected if any(row)] == [row for row in with_pandas(scratch) if any(row)]
    assert re.fullmatch(rb'(?:(?:[^"\r\n]|"[^"]*+")*+\r\n)++', scratch.read_bytes())


@given(CELLS)
def test_no_cell_is_a_formula(cell: Any) -> None:
    """A text that a spreadsheet treats as a formula gets an apostrophe. Other cells are unchanged."""
    written = inert(cell)

    assert written in (cell, f"'{cell}")
    if isinstance(written, str) and written != "":
        assert written[0] not in "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20" or float(written) is not None
    if not isinstance(cell, str) or re.match("[^-=+@\t\r\n\uff1d\uff0b\uff0d\uff20]", cell):
        assert written is cell


def test_texts_that_are_formulas() -> None:
    """Texts that begin like a formula, also in full-width characters, get an apostrophe. Numbers, also as text, are unchanged."""
    assert [f"'{text}" for text in HOSTILE[:10]] == [*map(inert, HOSTILE[:10])]
    assert [*PLAIN, -1, -1.5] == [*map(inert, (*PLAIN, -1, -1.5))]


def test_halves_of_characters(tmp_path: Path) -> None:
    """Half a surrogate pair, which no file can contain, is written as an escape."""
    write_rows(tmp_path / "a.csv", ("a",), [("x\ud800",)])

    assert [["a"], ["x\\ud800"]] == with_csv(tmp_path / "a.csv")


def hostile_run(folder: Path) -> Path:
    """Returns a run whose scenarios, models and explanations are hostile."""
    scores = [{"tsq": Score(-0.5, {text: 0.0}, text)} for text in HOSTILE]
    made = [
        rollout(text, calls=(call(0, 100, end=200, model=text),), scores=score, answer=text)
        for text, score in zip(HOSTILE, scores, strict=True)
    ]
    return run_directory(folder, *(replace(each, reason=text) for each, text in zip(made, HOSTILE, strict=True)))


def column(rows: Sequence[Sequence[str]], name: str) -> list[str]:
    place = rows[0].index(name)
    return [row[place] for row in rows[1:]]


@pytest.mark.parametrize("read", [with_csv, with_pandas])
@pytest.mark.parametrize("exact", [False, True])
def test_a_hostile_run(tmp_path: Path, read: Reader, exact: bool) -> None:
    """The tables of a run with hostile texts have all rows and texts: with apostrophes by default, and unchanged with --exact."""
    run = hostile_run(tmp_path / "run")
    assert 0 == main(["export", str(run), "--as", "csv", "--output", str(tmp_path / "out"), *["--exact"] * exact])

    texts = [text if exact else inert(text) for text in HOSTILE]
    calls, scores = (read(tmp_path / "out" / f"{name}.csv") for name in ("calls", "scores"))
    assert sorted(texts) == sorted(column(calls, "scenario")) == sorted(column(calls, "model"))
    # There is a row for the score, and one for its part.
    assert sorted([*texts, *texts]) == sorted(column(scores, "scenario"))
    assert {"-0.5", "0.0"} == {*column(scores, "value")}


def test_other_formats_with_csv_files(tmp_path: Path) -> None:
    """CSV files of other formats follow the same rule, and Parquet contains every text unchanged."""
    pytest.importorskip("pyarrow", reason="NOT TESTED: pyarrow is not installed")
    run = str(hostile_run(tmp_path / "run"))
    for name, options in {"nat": [], "nat-exact": ["--exact"], "parquet": []}.items():
        assert 0 == main(["export", run, "--as", name.removesuffix("-exact"), "--output", str(tmp_path / name), *options])

    (events,), (exact,) = ([*(tmp_path / name).rglob("standardized_data_all.csv")] for name in ("nat", "nat-exact"))
    assert {"", *map(inert, HOSTILE)} == {*column(with_csv(events), "llm_name")}
    assert {"", *HOSTILE} == {*column(with_csv(exact), "llm_name")}
    assert {*HOSTILE} == {*pd.read_parquet(tmp_path / "parquet" / "calls.parquet")["model"]}


@pytest.mark.slow
@pytest.mark.skipif(CONVERTER is None, reason="NOT TESTED: LibreOffice is not installed (Debian: libreoffice-calc-nogui)")
def test_a_spreadsheet_computes_nothing(tmp_path: Path) -> None:
    """LibreOffice opens a table of hostile texts with all rows and without a formula. The exact table has formulas."""
    table = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
    run = str(hostile_run(tmp_path / "run"))
    for name, options in {"default": [], "exact": ["--exact"]}.items():
        assert 0 == main(["export", run, "--as", "csv", "--output", str(tmp_path / name), *options])

    opened, exact = (sheet(tmp_path / name / "calls.csv") for name in ("default", "exact"))

    assert len(HOSTILE) + 1 == len([*opened.iter(f"{table}table-row")])
    assert [] == [cell.attrib for cell in opened.iter() if f"{table}formula" in cell.attrib]
    assert [cell for cell in exact.iter() if f"{table}formula" in cell.attrib]
