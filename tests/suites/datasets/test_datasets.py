"""A data format of the suite itself: a function that suite.yaml names by its import path."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.suites.datasets import FORMATS
from pytest_agentbench.suites.folder import load_suite
from tests.sent import sent

READER = """
import csv
from pytest_agentbench import Scenario, Tool

STOCK = Tool("find_item", "Finds an item.", {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]})

def load(file):
    for id, question, item in csv.reader(file.read_text().splitlines()):
        expected = ({"tool": "find_item", "parameters": {"item": item}, "goal": ""},)
        yield Scenario(id, ({"role": "user", "content": question},), (STOCK,), expected, {"label_source": "hand"})
"""

TABLE = "shop-0,Do you have brass lamps?,brass lamp\nshop-1,Do you have oak chairs?,oak chair\n"


def write(folder: Path, reader: str = READER, format: str = "./reader.py:load", more: str = "") -> Path:
    """Writes a suite.yaml whose data is a table, and returns its path."""
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "shop.csv").write_text(TABLE)
    (folder / "reader.py").write_text(reader)
    file = folder / "suite.yaml"
    file.write_text(f"name: shop\ndataset: {{format: '{format}', file: data/shop.csv{more}}}\n")
    return file


def fault(folder: Path, reader: str, **suite: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_suite(write(folder, reader, **suite))
    return str(caught.value)


def test_a_file_of_the_suite(tmp_path: Path) -> None:
    """Scenarios are those that the function returns for the data file, and the data set has the name of the format."""
    suite = load_suite(write(tmp_path))

    assert ["shop-0", "shop-1"] == [each.id for each in suite.scenarios]
    assert "oak chair" == suite.scenarios[1].expected[0]["parameters"]["item"]
    facts = suite.dataset
    assert ("shop", "./reader.py:load", "data/shop.csv", "hand", 2) == (
        facts.name,
        facts.format,
        facts.file,
        facts.label_source,
        facts.size,
    )
    assert suite.scenarios == sent(suite.for_pool()).scenarios


def test_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A format may also be given as `package.module:function`."""
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path)
    (tmp_path / "our_formats.py").write_text(READER)

    assert 2 == load_suite(write(tmp_path, format="our_formats:load")).dataset.size


def test_another_reader_changes_the_checksum(tmp_path: Path) -> None:
    """If the code of the reader changes, the checksum of the data set changes, so that the runs are not compared."""
    first = load_suite(write(tmp_path)).dataset.sha256
    again = load_suite(write(tmp_path)).dataset.sha256
    (tmp_path / "other").mkdir()
    changed = load_suite(write(tmp_path / "other", READER + "# changed\n")).dataset.sha256

    assert first == again
    assert first != changed


@pytest.mark.parametrize(
    ("reader", "sentence"),
    [
        ("def load(file):\n    raise ValueError('no such column')", "'./reader.py:load' raised ValueError: no such column (reader.py:2)"),
        ("def load(file):\n    return 5", "'./reader.py:load' raised TypeError: 'int' object is not iterable"),
        ("def load(file):\n    return [{}]", "data/shop.csv: the dataset format must return objects of the class Scenario, not dict"),
        ("def load(file):\n    return []", "data/shop.csv: contains no scenarios"),
        (
            "def load():\n    return []",
            "suite.yaml: dataset: format ./reader.py:load reads an installed package; leave `file` ",
        ),
        (
            "def load(file, tools_file, more):\n    return []",
            "dataset format './reader.py:load' should take (file), not (file, ",
        ),
        ("load = 5", "suite.yaml: dataset format './reader.py:load' is a int, must be a function (file) -> scenarios"),
        ("import nothing_of_that_name", "suite.yaml: dataset format './reader.py:load' cannot be loaded: ModuleNotFoundError: "),
        (READER.replace("(STOCK,)", "[STOCK]"), "data/shop.csv: shop-0: tools must be a tuple of Tool, not [Tool("),
        (
            READER.replace("yield Scenario(id,", "yield Scenario('',"),
            "data/shop.csv: the id of a scenario must be a text",
        ),
        (
            READER.replace('{"tool": "find_item",', '{"tool": "find",'),
            "data/shop.csv: shop-0: an expected call: no tool 'find' (did you mean 'find_item'?); known: find_item",
        ),
        (
            READER.replace('{"label_source": "hand"}', '{("a", 1): "b"}'),
            "suite.yaml: scenario shop-0 must contain only values that JSON has: keys must be str, int, float, bool or None, not tuple",
        ),
        (
            READER.replace("(STOCK,)", "(type(STOCK)('find_item', None, STOCK.parameters),)"),
            "suite.yaml: shop-0: tools[0].description is null, not a text",
        ),
    ],
)
def test_mistakes(tmp_path: Path, reader: str, sentence: str) -> None:
    """A faulty format is reported in one sentence that says where the fault is."""
    assert sentence in fault(tmp_path, reader)


def test_a_tools_file_for_a_format_without_one(tmp_path: Path) -> None:
    """A tools file is refused if the function of the format does not take one."""
    (tmp_path / "tools.json").write_text("[]")

    assert "should take (file, tools_file), not (file)" in fault(tmp_path, READER, more=", tools: tools.json")


def test_unknown_names(tmp_path: Path) -> None:
    """The error of an unknown format lists the known ones, and says how to use a format of one's own."""
    sentence = fault(tmp_path, READER, format="csv")

    assert f"suite.yaml: no dataset format 'csv'; known: {', '.join(FORMATS)}, or an import path such as my_package.formats:csv" in sentence
