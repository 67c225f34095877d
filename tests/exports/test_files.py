"""Large files of other tools are read piece by piece, and errors are one sentence that names the file."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.files import epoch_ns, iso_ns, json_items, read_object
from pytest_agentbench.exports.nat_profiler import read_events
from pytest_agentbench.records import Json
from tests.exports.nat_job import COLUMNS, call

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that examples overwrite."""
    return tmp_path_factory.mktemp("files") / "scratch"


@given(values=st.lists(VALUES, max_size=6), size=st.integers(1, 9), indent=st.none() | st.integers(0, 2), ascii=st.booleans())
def test_elements_of_an_array(scratch: Path, values: list[Any], size: int, indent: int | None, ascii: bool) -> None:
    """The elements of an array are those that `json` reads, whatever they contain, however they are written, and wherever a piece ends."""
    scratch.write_text(json.dumps(values, indent=indent, ensure_ascii=ascii), encoding="utf-8", newline="")

    assert values == list(json_items(scratch, size))


@given(values=st.lists(VALUES, max_size=4), data=st.data())
def test_a_truncated_array(scratch: Path, values: list[Any], data: st.DataObject) -> None:
    """An array that is truncated anywhere is an error that names the file."""
    text = json.dumps(values)
    scratch.write_text(text[: data.draw(st.integers(0, len(text) - 1))], encoding="utf-8")

    with pytest.raises(ConfigError, match="scratch"):
        list(json_items(scratch, 3))


def test_an_array_is_read_piece_by_piece(tmp_path: Path) -> None:
    """Reading a long array takes the memory of one piece, not of the whole array."""
    file = tmp_path / "long.json"
    file.write_text(json.dumps([{"text": "word " * 200} for _ in range(5_000)]))
    tracemalloc.start()
    try:
        count = sum(1 for _ in json_items(file, 1 << 16))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert 5_000 == count
    assert peak < 1_000_000 < file.stat().st_size


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
TIMES = st.integers(0, 4 * 10**18).map(lambda ns: str(Decimal(ns) / 10**9))


@given(tokens=st.lists(st.tuples(TIMES, TEXTS), max_size=5), prompt=TEXTS, example=st.integers(0, 9))
def test_events_of_a_csv(scratch: Path, tokens: list[tuple[str, str]], prompt: str, example: int) -> None:
    """Commas, quotes and line breaks in prompts do not shift columns, and timestamps keep every nanosecond."""
    rows: list[Json] = call(example, "a", "0", [at for at, _ in tokens], "5000000000")
    for row, (_, text) in zip(rows[1:], tokens, strict=False):
        row["llm_new_token"] = text
    rows[0]["llm_text_input"] = prompt
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    scratch.write_text(stream.getvalue(), encoding="utf-8", newline="")

    (found,) = read_events(scratch)[example].calls()

    expected = sorted((round(Decimal(at) * 10**9), text not in ("", "None")) for at, text in tokens)
    assert expected == [(chunk.at_ns, chunk.kind == "content") for chunk in found.chunks]


def test_times() -> None:
    """Seconds since 1970 keep all digits. ISO 8601 is read with `Z` or an offset. A missing time is None."""
    here = Path("result.json")

    assert 1763740000200000001 == epoch_ns("1763740000.200000001")
    assert iso_ns("2026-11-21T10:00:00.25Z", here) == iso_ns("2026-11-21T12:00:00.25+02:00", here) == 1795255200250000000
    assert iso_ns(None, here) is None
    for wrong in ("inf", "NaN", "", "now"):
        with pytest.raises(ValueError, match="must be a time in seconds"):
            epoch_ns(wrong)
    with pytest.raises(ConfigError, match=r"result.json: 'noon' must be an ISO 8601 time"):
        iso_ns("noon", here)


@pytest.mark.parametrize(
    ("text", "why"),
    [("[]", "contains an array, must be an object"), ("{", "not valid JSON"), ("{}", "the key 'id' is missing"), ("3", "a whole number")],
)
def test_invalid_objects(tmp_path: Path, text: str, why: str) -> None:
    """An invalid file is named with the problem."""
    (tmp_path / "a.json").write_text(text)

    with pytest.raises(ConfigError, match=f"a.json: .*{why}"):
        read_object(tmp_path / "a.json", "id")
