"""Scenarios and tools of a configuration of the NeMo Agent Toolkit are found, or it is said what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.nat_config.data import NatInputs, read_scenarios, read_scorers, read_tools
from pytest_agentbench.exports.nat_config.reading import NatReading
from tests.project import TOOLS


def reading_of(folder: Path, **keys: Any) -> NatReading:
    (folder / "tools.json").write_text(json.dumps(TOOLS))
    (folder / "config.yml").write_text(yaml.safe_dump({"workflow": {}, **keys}))
    return NatReading(folder / "config.yml")


def titles(reading: NatReading, names: list[str], file: Path | None = None) -> list[str]:
    return [tool["title"] for tool in read_tools(reading, names, file)]


def test_tools(tmp_path: Path) -> None:
    """A group has the included tools in their order, without the excluded ones. A function is a tool, described here or by the user."""
    group = {"_type": "banking_tools_group", "tools_json_path": str(tmp_path / "tools.json")}
    functions = {"clock": {"_type": "current_datetime"}, "find_item": {"_type": "shop_search"}}
    groups = {"all": group, "some": {**group, "include": ["return_item", "find_item"]}, "less": {**group, "exclude": ["find_item"]}}
    reading = reading_of(tmp_path, functions=functions, function_groups=groups)

    assert ["find_item", "order_item", "return_item"] == titles(reading, ["all", "less"])
    assert ["return_item", "find_item", "clock"] == titles(reading, ["some", "clock"])
    assert ["order_item", "return_item"] == titles(reading, ["less"])
    assert ["find_item"] == titles(reading, ["find_item"], tmp_path / "tools.json")
    assert [] == titles(reading, [])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("search", r"functions\.search\._type: the tool of a 'wiki_search' is not known; describe search in a tools\.json"),
        ("remote", r"function_groups\.remote\._type: 'mcp_client' cannot be converted; known: banking_tools_group"),
        ("wrong", r"function_groups\.wrong: .*tools\.json has no tool 'sell_item'"),
        ("lost", r"function_groups\.lost\.tools_json_path: there is no file nowhere\.json; .*--tools FILE"),
        ("serch", r"tool_names: no function 'serch' \(did you mean 'search'\?\)"),
    ],
)
def test_unknown_tools(name: str, sentence: str, tmp_path: Path) -> None:
    """A tool without a description is an error that says how to describe it."""
    groups = {
        "remote": {"_type": "mcp_client"},
        "wrong": {"_type": "banking_tools_group", "tools_json_path": str(tmp_path / "tools.json"), "include": ["sell_item"]},
        "lost": {"_type": "banking_tools_group", "tools_json_path": "nowhere.json"},
    }
    reading = reading_of(tmp_path, functions={"search": {"_type": "wiki_search"}}, function_groups=groups)

    with pytest.raises(ConfigError, match=sentence):
        read_tools(reading, [name], None)


def test_scenarios(tmp_path: Path) -> None:
    """Entries keep their labels and lose their tools. Files and questions of the command line replace the data of the configuration."""
    entry = {"id": "a", "question": "Where?", "available_tools": TOOLS, "expected_tool_calls": [{"tool": "find_item", "parameters": {}}]}
    (tmp_path / "data.json").write_text(json.dumps([entry]))
    dataset = {"_type": "csv", "file_path": str(tmp_path / "data.csv")}
    reading = reading_of(tmp_path, eval={"general": {"dataset": dataset}})
    general = reading.part(("eval", "general"), "general")

    scenarios, name = read_scenarios(reading, general, NatInputs(data=tmp_path / "data.json"))
    assert ([{key: value for key, value in entry.items() if key != "available_tools"}], "data.json") == (scenarios, name)
    assert [{"id": "input-1", "question": "A?"}, {"id": "input-2", "question": "B?"}] == read_scenarios(
        reading, general, NatInputs(questions=["A?", "B?"])
    )[0]
    with pytest.raises(ConfigError, match=r"dataset\._type: 'csv' cannot be read; name data in json or jsonl with --data FILE"):
        read_scenarios(reading, general, NatInputs())


def test_scorers_without_evaluators(tmp_path: Path) -> None:
    """A suite needs a scorer. Without evaluators it is `tsq`, or `schema_valid` if there are no labels, whatever the evaluators are."""
    plain, judged = reading_of(tmp_path), reading_of(tmp_path, eval={"evaluators": {"a": {"_type": "tsq_evaluator"}}})

    assert [{"tsq": {}}, {"schema_valid": {}}] == [read_scorers(plain, has_labels=each) for each in (True, False)]
    assert [{"nat_compat": {}}, {"schema_valid": {}}] == [read_scorers(judged, has_labels=each) for each in (True, False)]
