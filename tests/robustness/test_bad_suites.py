"""Invalid suites and data, run by pytest: each is one clear sentence, and none affects another suite of the same run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.records import Json
from tests.project import TOOLS, WAYS, Project

pytestmark = pytest.mark.slow


Spoil = Callable[[Path], object]


def in_yaml(**keys: Any) -> Spoil:
    """Changes keys of suite.yaml."""

    def spoil(folder: Path) -> None:
        file = folder / "suite.yaml"
        file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))

    return spoil


def in_first_entry(**keys: Any) -> Spoil:
    """Changes keys of the first entry of the data."""

    def spoil(folder: Path) -> None:
        first, *others = json.loads((folder / "data.json").read_text())
        (folder / "data.json").write_text(json.dumps([{**first, **keys}, *others]))

    return spoil


def nothing(folder: Path) -> None:
    """Changes nothing: the suite is invalid because of its name."""


def as_file(name: str, content: bytes) -> Spoil:
    return lambda folder: (folder / name).write_bytes(content)


def as_json_lines(folder: Path) -> None:
    entries = json.loads((folder / "data.json").read_text())
    (folder / "data.jsonl").write_text("\n".join([json.dumps(entries[0]), "{'id': 'shop-1'}", json.dumps(entries[2])]))
    in_yaml(dataset={"format": "agent-leaderboard", "file": "data.jsonl"})(folder)


def with_tool(**keys: Any) -> Spoil:
    tools: list[Json] = [{**TOOLS[0], **keys}, *TOOLS[1:]]
    return in_first_entry(available_tools=tools)


#: Maps the name of a suite to a change of a valid one, and the sentence about it.
BAD: dict[str, tuple[Spoil, str]] = {
    "yaml": (as_file("suite.yaml", b"name: yaml\ndataset: {format: [}\n"), "suite.yaml:2: not valid YAML: "),
    "not_a_mapping": (as_file("suite.yaml", b"- name\n"), "suite.yaml: is list, must be a mapping of keys"),
    "unknown_key": (
        in_yaml(scorer="tsq"),
        "suite.yaml: unknown key 'scorer' (did you mean 'scorers'?); known keys: name, description, dataset, agent,",
    ),
    "unknown_inner": (
        in_yaml(dataset={"format": "agent-leaderboard", "path": "x"}),
        "unknown key 'dataset.path'; known keys: format, file, tools,",
    ),
    "no_such_format": (in_yaml(dataset={"format": "csv", "file": "data.json"}), "no dataset format 'csv'; known: agent-leaderboard"),
    "no_such_data": (in_yaml(dataset={"format": "agent-leaderboard", "file": "gone.json"}), "/no_such_data/gone.json does not exist"),
    "no_such_agent": (
        in_yaml(agent={"kind": "tool_caling"}),
        "no agent 'tool_caling' (did you mean 'tool_calling'?); known: command, nothing, ",
    ),
    "no_such_option": (
        in_yaml(agent={"kind": "tool_calling", "turns": 3}),
        "agent: unknown key 'turns' (did you mean 'max_turns'?); known keys of tool_calling: kind,",
    ),
    "no_such_scorer": (
        in_yaml(scorers=["tqs"], thresholds={}),
        "no scorer 'tqs' (did you mean 'tsq'?); known: action_completion, completeness, exact, ",
    ),
    "no_such_scorer_under_thresholds": (
        in_yaml(scorers=["tqs"]),
        "no scorer 'tqs' (did you mean 'tsq'?); known: action_completion, completeness, exact, ",
    ),
    "no_such_measure": (in_yaml(thresholds={"nat_compat": 0.5}), "thresholds: 'nat_compat' is not measured; scores of this suite: tsq"),
    "broken_json": (as_file("data.json", b'[\n{"id": "a",\n]'), "data.json:3: not valid JSON: "),
    "broken_line": (as_json_lines, "data.jsonl:2: not valid JSON: "),
    "no_data": (as_file("data.json", b" \n"), "data.json: is empty; it must contain a JSON list of scenarios"),
    "no_entries": (as_file("data.json", b"[]"), "data.json: contains no scenarios"),
    "latin1": (as_file("data.json", b'[{"id": "caf\xe9"}]'), "data.json: not UTF-8: byte 12 is 0xe9; save it as UTF-8"),
    "not_an_entry": (as_file("data.json", b'["shop"]'), "data.json: entry 1: is a JSON str, must be an object"),
    "no_question": (in_first_entry(question=""), "data.json: entry 1: 'question' must be a text that is not empty"),
    "twice": (in_first_entry(id="twice-1"), "data.json: the id 'twice-1' is there twice"),
    "no_such_tool": (
        in_first_entry(expected_tool_calls=[{"tool": "buy"}]),
        "no_such_tool-0: an expected call: no tool 'buy'; known: find_item, order_item,",
    ),
    "labels_no_list": (in_first_entry(expected_tool_calls=5), "entry 1: 'expected_tool_calls' must be a list"),
    "metadata_no_map": (in_first_entry(metadata="none"), "entry 1: 'metadata' must be an object"),
    "bad_parameters": (in_first_entry(expected_tool_calls=[{"tool": "find_item", "parameters": ["lamp"]}]), "entry 1: "),
    "no_schema": (with_tool(properties={"item": {"type": "text"}}), "the parameters of tool 'find_item' are not a valid JSON schema"),
    "xfail": (nothing, "xfail/suite.yaml: name: 'xfail' is a mark that pytest or a plugin acts upon, and a suite's name marks its tests;"),
    "skip": (nothing, "skip/suite.yaml: name: 'skip' is a mark that pytest or a plugin acts upon"),
    "parametrize": (nothing, "take another name, such as parametrize_suite"),
    "asyncio": (nothing, "asyncio/suite.yaml: name: 'asyncio' is a mark that"),
    "timeout": (nothing, "timeout/suite.yaml: name: 'timeout' is a mark that"),
    "usefixtures": (nothing, "usefixtures/suite.yaml: name: 'usefixtures' is a mark that"),
    "unknown_label": (
        in_first_entry(expected_tools=["find_item"]),
        "data.json: entry 1: unknown key 'expected_tools' (did you mean 'expected_tool_calls'?); known keys: id, ",
    ),
    "repeated_key": (
        as_file("suite.yaml", b"name: a\ntrials: 2\nname: b\n"),
        "suite.yaml:3: the key 'name' occurs twice, first in line 1",
    ),
    "cold": (in_yaml(agent={"kind": "tool_calling", "temperature": -1}), "agent: temperature must be a number from 0 up, not -1"),
    "out_of_reach": (in_yaml(thresholds={"tsq": 1.5}), "the threshold tsq: 1.5 is out of range: tsq is between 0 and 1"),
    "no_properties": (with_tool(properties=["item"]), "the parameters of tool 'find_item' are not a valid JSON schema"),
}


def spoilt_suites(project: Project) -> None:
    for name, (spoil, _) in BAD.items():
        project.suite(name)
        spoil(project.root / "scenarios" / name)


@WAYS
def test_each_bad_suite_is_one_sentence(project: Project, way: tuple[str, ...]) -> None:
    """An invalid suite is a collection error with the file and the fault. A valid suite in the same run is measured as usual."""
    spoilt_suites(project)
    project.suite("good", scenarios=2)

    result = project.run(*way, "--continue-on-collection-errors", "scenarios")

    output = result.stdout.str()
    assert [] == [sentence for _, sentence in BAD.values() if sentence not in output]
    assert 4 == result.ret
    assert len(BAD) == output.count("ERROR scenarios/")
    result.assert_outcomes(passed=2, errors=len(BAD))
    assert "Traceback" not in output + result.stderr.str()
    assert ["good"] == [*project.run_json["suites"]]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ((), 4),
        (("-x",), 4),
        (("--collect-only",), 4),
        (("--continue-on-collection-errors",), 4),
        (("-n", "2"), 4),
        (("-n", "2", "--agentbench-set", "scorers=[tqs]"), 4),
        (("-n", "2", "--agentbench-threshold", "tsq=1.0"), 1),
    ],
    ids=["plain", "x", "collect-only", "continue", "n2", "all-wrong", "a-failure-too"],
)
def test_the_exit_status_of_a_wrong_suite(project: Project, options: tuple[str, ...], status: int) -> None:
    """An invalid suite is a usage error, however the session is run. Only a failed test of another suite changes the exit status to 1."""
    project.suite("good", scenarios=2, expected=("find_item", "order_item"), thresholds={"tsq": 0.1})
    project.suite("bad", colour="red")

    assert status == project.run(*options, "scenarios").ret


def test_nothing_runs_when_collection_failed(project: Project) -> None:
    """A collection error stops a session before its tests, as usual in pytest, and no run directory is left."""
    project.suite("good", scenarios=2)
    project.suite("bad", scorers=["tqs"], thresholds={})

    result = project.run("scenarios")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*scenarios/bad/suite.yaml: no scorer 'tqs' (did you mean 'tsq'?); known: *"])
    assert 4 == result.ret
    assert [] == [*project.root.glob("reports/2*")]


def test_two_suites_of_one_name(project: Project) -> None:
    """A name is a marker and part of every rollout's key, so two suites with one name are a usage error that names both files."""
    project.suite("shop")
    project.suite("store")
    file = project.root / "scenarios/store/suite.yaml"
    file.write_text(file.read_text().replace('"store"', '"shop"', 1))

    result = project.run("scenarios")

    assert 4 == result.ret
    result.stderr.fnmatch_lines(["ERROR: two suites are named 'shop': *shop/suite.yaml and *store/suite.yaml; rename one of them"])
