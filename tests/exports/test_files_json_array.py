"""A JSON array that is written in another order than that of its elements."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from pytest_agentbench.exports.files import JsonArray, array_parts, json_text


def test_the_order_of_the_file(tmp_path: Path) -> None:
    """Elements come in the order of their positions. Those in parts and those with an unpaired surrogate are read back."""
    with JsonArray(tmp_path / "a.json") as array:
        array.add(7, [json_text({"text": "\ud800 ü"})])
        array.add(2, array_parts('{"list": ', iter([1, Path("b")]), "}"))
        array.add(5, array_parts('{"list": ', [], "}"))

    assert [{"list": [1, "b"]}, {"list": []}, {"text": "\ud800 ü"}] == json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert ["a.json"] == [file.name for file in tmp_path.iterdir()]


def test_no_elements(tmp_path: Path) -> None:
    """An array without elements is empty. After an error there is no file."""
    with JsonArray(tmp_path / "a.json"):
        pass
    with pytest.raises(ZeroDivisionError), JsonArray(tmp_path / "b.json") as array:
        array.add(0, (str(1 / number) for number in (1, 0)))

    assert [] == json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert ["a.json"] == [file.name for file in tmp_path.iterdir()]


def test_one_part_in_memory(tmp_path: Path) -> None:
    """The memory used is a few times the largest part, however large the array is."""
    tracemalloc.start()
    with JsonArray(tmp_path / "a.json") as array:
        for number in range(20):
            array.add(number, array_parts("", ("x" * 100_000 for _ in range(10)), ""))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (tmp_path / "a.json").stat().st_size > 20_000_000
    assert peak < 1_000_000
