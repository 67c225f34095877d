"""The benchmark of prefix hits: prompts of the requested lengths, misses and hits, and the formula."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.prefix_hits import Client, formula, main
from tests.engines import engine


def test_the_formula() -> None:
    """The formula has a fixed part, a part for each thousand tokens, and a part for their square."""
    assert pytest.approx(66 + 114 + 17.64) == formula((66, 57, 4.41), 2000)


def test_a_table_of_the_built_in_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """A row has the number of tokens, the median of misses and hits, and the tokens that a hit found in the cache.

    A miss takes at least the time of the formula.
    """
    main(["--tokens", "100", "400", "--repeats", "1", "--together", "2", "--cost", "5", "50", "0"])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:4]]

    assert ["100", "400"] == [row[0] for row in rows]
    assert ["96", "384"] == [row[5] for row in rows]
    assert [["10.0", "5.2"], ["25.0", "5.8"]] == [[row[2], row[4]] for row in rows]
    assert all(float(row[1].split()[0]) >= float(row[2]) for row in rows)
    assert all(re.fullmatch(r"2: \d+ to \d+ ms", row[6]) for row in rows)


def test_any_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a URL, the server there is measured, and asked for its model."""
    with engine(tmp_path, model="bank-7b") as url:
        main([f"{url}/v1", "--tokens", "100", "--repeats", "1", "--together", "0"])

    assert "| 100 |" in capsys.readouterr().out


def test_a_server_without_text_is_an_error(tmp_path: Path) -> None:
    """An answer without text has no TTFT, which is an error with the URL and the status."""
    with engine(tmp_path, [{"status": 503}], model="m") as url, pytest.raises(RuntimeError, match=f"{url}/v1: no stream .*503"):
        Client(f"{url}/v1", None, 1)
