"""A folder with suite.yaml and data becomes a suite, or leads to an error of one sentence."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import fields, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec, json_text
from pytest_agentbench.records import Json
from pytest_agentbench.rollouts.compile import checked
from pytest_agentbench.suites.folder import load_suite
from pytest_agentbench.suites.suite import Scenario, Suite, Task, Tool
from tests.project import ROOT
from tests.sent import sent

SPEC: Json = {"name": "shop", "dataset": {"format": "agent-leaderboard", "file": "data.json"}}


#: A tool in the form of Chat Completions requests, and in that of a data set.
OPENAI: Json = {
    "type": "function",
    "function": {
        "name": "find_item",
        "description": "Finds.",
        "strict": True,
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"], "additionalProperties": False},
    },
}
OURS = '{"title": "find_item", "description": "Finds.", "type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}'


def tool(title: str = "find_item", **keys: Any) -> Json:
    """Returns a tool with one required text parameter."""
    return {"title": title, "description": "Finds.", "properties": {"item": {"type": "string"}}, "required": ["item"], **keys}


def entry(id: object = "s-0", **keys: Any) -> Json:
    """Returns a scenario that expects one call."""
    call = {"tool": "find_item", "parameters": {"item": "lamp"}, "goal": "a lamp"}
    return {"id": id, "question": "A lamp?", "available_tools": [tool()], "expected_tool_calls": [call], **keys}


class Folder:
    """The folder of a suite. Files are written as JSON, which is also YAML, or as the given text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("suite.yaml", SPEC)
        self.write("data.json", [entry()])

    def write(self, name: str, content: Any) -> Path:
        file = self.path / name
        file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return file

    def load(self, *overrides: tuple[str, Any]) -> Suite:
        return load_suite(self.path / "suite.yaml", overrides)

    def refusal(self, *overrides: tuple[str, Any]) -> str:
        """Returns the error about the suite, with file names instead of paths."""
        with pytest.raises(ConfigError) as caught:
            self.load(*overrides)
        return str(caught.value).replace(f"{self.path}/", "")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Returns the folder of a suite that loads without error."""
    return Folder(tmp_path)


def test_labels_in_both_forms(folder: Folder) -> None:
    """A label has one value for each argument, or several accepted values and a list of optional arguments."""
    calls = [
        {"tool": "find_item", "parameters": {"item": "a"}},
        {"tool": "find_item", "accepts": {"item": ["a", "b"]}, "optional": ["item"]},
    ]
    folder.write("data.json", [entry(expected_tool_calls=calls)])

    assert [{**call, "goal": ""} for call in calls] == [*folder.load().scenarios[0].expected]


def test_a_suite_and_its_defaults(folder: Folder) -> None:
    """Keys that suite.yaml leaves out have their defaults, and the data set has its hash."""
    suite = folder.load()

    assert ("shop", folder.path, {"kind": "tool_calling"}, {}, {"tsq": {}}, {}, 1, 600.0, "") == (
        suite.name,
        suite.folder,
        suite.agent,
        suite.variants,
        suite.scorers,
        suite.thresholds,
        suite.trials,
        suite.timeout,
        suite.description,
    )
    assert ("data", "agent-leaderboard", "data.json", "unknown", 1) == (
        suite.dataset.name,
        suite.dataset.format,
        suite.dataset.file,
        suite.dataset.label_source,
        suite.dataset.size,
    )
    assert hashlib.sha256((folder.path / "data.json").read_bytes()).hexdigest() == suite.dataset.sha256


def test_every_key_is_read(folder: Folder) -> None:
    """The suite has all values of suite.yaml, in the same order."""
    keys: Json = {
        "description": "A shop.",
        "agent": {"kind": "./agent.py:Agent", "colour": "red"},
        "scorers": ["repeated", {"tsq": {"strict": True}}, "./scorers.py:polite"],
        "judge": {"url": "http://localhost:1/v1", "model": "m"},
        "roles": {
            "search": {"url": "http://localhost:2/v1", "model": "s", "api_key": "SEARCH_KEY", "limits": {"calls": 2}},
            "reasoner": {"model": "r"},
        },
        "limits": {"calls": 9, "tokens": 1000, "cost": 0.5},
        "isolation": "process",
        "thresholds": {"polite": 1, "tsq.mean": 0.5},
        "trials": 3,
        "timeout": 5,
        "xdist_workers": 4,
    }
    folder.write("suite.yaml", {**SPEC, **keys, "dataset": {**SPEC["dataset"], "name": "the shop"}})
    suite = folder.load()

    scorers = {"repeated": {}, "tsq": {"strict": True}, "./scorers.py:polite": {}}
    roles = {**keys["roles"], "judge": keys.pop("judge")}
    assert {**keys, "scorers": scorers, "roles": roles} == {name: getattr(suite, name) for name in keys}
    assert ("the shop", ("repeated", "tsq", "polite")) == (suite.dataset.name, suite.score_names)


def test_a_scenario(folder: Folder) -> None:
    """The question is the only message, and schemas allow no unknown parameters. Optional keys that are missing or null are empty."""
    schema = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"], "additionalProperties": False}
    empty: Json = dict.fromkeys(("expected_tool_calls", "metadata", "user_goals"))
    data = [entry(metadata={"a": 1}, user_goals=["a lamp"]), entry("s-1", **empty), {"id": "s-2", "question": "?", "available_tools": []}]
    folder.write("data.json", data)

    first, second, third = folder.load().scenarios

    assert ({"role": "user", "content": "A lamp?"},) == first.messages
    assert ({"tool": "find_item", "parameters": {"item": "lamp"}, "goal": "a lamp"},) == first.expected
    assert {"a": 1, "user_goals": ["a lamp"]} == first.metadata
    assert schema == first.tools[0].parameters
    assert ((), {"user_goals": []}) == (second.expected, second.metadata)
    assert ((), (), {"user_goals": []}) == (third.tools, third.expected, third.metadata)


def test_schemas_given_as_text(folder: Folder) -> None:
    """Schemas that are stored as JSON text inside JSON, as in the source, load as the same tool."""
    plain = tool(response_schema={"properties": {"found": {"type": "boolean"}}})
    text = {**plain, "properties": json.dumps(plain["properties"]), "response_schema": json.dumps(plain["response_schema"])}
    folder.write("data.json", [entry("a", available_tools=[plain]), entry("b", available_tools=[text])])

    first, second = folder.load().scenarios

    assert first.tools == second.tools
    assert {"properties": {"found": {"type": "boolean"}}} == first.tools[0].response_schema


def test_json_lines(folder: Folder) -> None:
    """A .jsonl file has one scenario per line. Empty lines do not count, and U+2028 inside a text does not end a line."""
    first = json.dumps(entry("s-0", question="one\u2028two\x85three"), ensure_ascii=False)
    folder.write("data.jsonl", f"{first}\n\n{json.dumps(entry('s-1'))}\r\n")

    suite = folder.load(("dataset.file", "data.jsonl"))

    assert ["s-0", "s-1"] == [scenario.id for scenario in suite.scenarios]
    assert "one\u2028two\x85three" == suite.scenarios[0].messages[0]["content"]


def test_tools_are_shared(folder: Folder) -> None:
    """Entries with equal tools share one tuple, and so do entries that use the tools file. The tools file is part of the hash."""
    bare = {"id": "c", "question": "?"}
    folder.write("data.json", [entry("a"), entry("b"), bare, {**bare, "id": "d"}])
    folder.write("tools.json", [tool("other")])

    suite = folder.load(("dataset.tools", "tools.json"))
    a, b, c, d = (scenario.tools for scenario in suite.scenarios)

    assert a is b
    assert c is d
    assert (["find_item"], ["other"]) == ([each.name for each in a], [each.name for each in c])
    both = (folder.path / "data.json").read_bytes() + (folder.path / "tools.json").read_bytes()
    assert hashlib.sha256(both).hexdigest() == suite.dataset.sha256


def test_label_sources_are_named(folder: Folder) -> None:
    """Each label source of the file is listed once."""
    labels = ["hand", "heuristic-v1", "hand"]
    folder.write("data.json", [entry(f"s-{i}", metadata={"label_source": label}) for i, label in enumerate(labels)])

    assert "hand, heuristic-v1" == folder.load().dataset.label_source


def test_overrides_come_before_the_check(folder: Folder) -> None:
    """An override changes the suite, and is checked as if it was written in suite.yaml."""
    assert 0.6 == folder.load(("agent.temperature", 0.6)).agent["temperature"]
    assert "suite.yaml: trials: must be greater than or equal to 1, not 0" == folder.refusal(("trials", 0))


@pytest.mark.parametrize(
    ("workers", "refusal"),
    [
        (0, "must be greater than or equal to 1, not 0"),
        (-2, "must be greater than or equal to 1, not -2"),
        (1001, "must be less than or equal to 1000, not 1001"),
        (True, "must be a whole number, not True"),
        (2.5, "must be a whole number, not 2.5"),
        ("auto", "must be a whole number, not 'auto'"),
    ],
)
def test_invalid_numbers_of_workers(folder: Folder, workers: object, refusal: str) -> None:
    """The number of workers must be a whole number from 1 to 1000."""
    assert f"suite.yaml: xdist_workers: {refusal}" == folder.refusal(("xdist_workers", workers))


def test_variants(folder: Folder) -> None:
    """A variant is the suite's agent with other settings. The variant `default` is the suite's own agent."""
    suite = folder.load(("agent.max_turns", 5), ("variants", {"hot": {"agent": {"temperature": 1.0}}}))

    assert {"kind": "tool_calling", "max_turns": 5, "temperature": 1.0} == suite.agent_of("hot")
    assert {"kind": "tool_calling", "max_turns": 5} == suite.agent_of("default")


def test_the_threshold_of_rewards(folder: Folder) -> None:
    """The scorer `reward` declares a threshold of 1, which a threshold of the suite replaces. Other scorers declare none."""
    assert {"reward": 1.0} == checked(folder.load(("scorers", ["reward", "tsq"]))).thresholds
    assert {"reward": 0.5} == checked(folder.load(("scorers", ["reward"]), ("thresholds", {"reward": 0.5}))).thresholds


def test_variants_with_a_file_of_settings(folder: Folder) -> None:
    """A variant of a terminal agent may read another agent_config.json without naming a kind.

    A variant with another kind does not inherit settings.
    """
    (folder.path / "hot.json").write_text('{"temperature": 1.0}')
    variants = {"hot": {"agent": {"config": "hot.json"}}, "other": {"agent": {"kind": "react"}}}

    suite = folder.load(("agent", {"kind": "terminal", "style": "text"}), ("variants", variants))

    assert {"kind": "terminal", "style": "text", "temperature": 1.0} == suite.agent_of("hot")
    assert {"temperature": 1.0} == suite.variants["hot"]
    assert {"kind": "react"} == suite.agent_of("other")


def test_a_variant_of_some_scenarios(folder: Folder) -> None:
    """A variant may have a limit, so that it uses only the first scenarios."""
    folder.write("data.json", [entry("a"), entry("b"), entry("c")])
    suite = folder.load(("variants", {"hot": {"limit": 2}, "cold": {"limit": 9}}))

    assert {"hot": 2, "cold": 9} == suite.sizes


#: Field of a scenario -> a value that is not its default.
FILLED: Json = {
    "id": "a",
    "messages": ({"role": "user", "content": "A lamp?"},),
    "tools": (Tool("find_item", "Finds.", {"type": "object"}, {"type": "object"}),),
    "expected": ({"tool": "find_item", "parameters": {}, "goal": "a lamp"},),
    "metadata": {"source": "hand"},
    "cluster": "one",
    "turns": (({"role": "user", "content": "And a chair?"},), ({"role": "user", "content": "Thanks."},)),
    "task": Task("/tasks/hello", "0" * 16, env={"LANG": "C"}, artifacts=("/root/hello",)),
    "state": {"stock": 1},
    "final_state": {"stock": 0},
}


def test_the_wire_keeps_every_field_of_a_scenario() -> None:
    """A scenario that is sent as JSON and received is equal to the original, with each field alone and with all fields."""
    assert [each.name for each in fields(Scenario)] == [*FILLED], "FILLED needs a value for each field"

    bare = {name: FILLED[name] for name in ("id", "messages")}
    for filled in (bare, *({**bare, name: value} for name, value in FILLED.items()), FILLED):
        scenario = Scenario(**filled)
        received = codec.received(Scenario, json.loads(json.dumps(codec.plain(scenario))))

        assert scenario == received


def test_the_wire_keeps_a_suite(folder: Folder) -> None:
    """A suite that is sent to the pool arrives unchanged, except that dates in its metadata become texts.

    Scenarios with shared tools share them again.
    """
    folder.write("data.json", [entry("a"), entry("b"), entry("c", available_tools=[tool(), tool("other")])])
    suite = folder.load(("variants", {"hot": {"agent": {"temperature": 1.0}}}))
    first, *others = suite.scenarios
    suite = replace(suite, scenarios=(replace(first, metadata={"at": date(2026, 1, 2)}), *others))

    received = sent(suite.for_pool())
    a, b, c = (scenario.tools for scenario in received.scenarios)

    assert replace(suite.for_pool(), scenarios=(replace(first, metadata={"at": "2026-01-02"}), *others)) == received
    assert a is b
    assert a is not c
    assert {"find_item", "other"} == {each.name for each in c}


def test_tool_sets_are_sent_once() -> None:
    """Each tool set of the banking suite is sent once, so the suite needs less than 240 kB.

    With the tools in each scenario it would need 3.5 MB.
    """
    suite = load_suite(ROOT / "scenarios/banking/suite.yaml").for_pool()

    assert len(json_text.dumps(codec.plain(suite))) < 240_000
    assert suite == sent(suite)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("name: [", "suite.yaml:2: not valid YAML: "),
        ("", "suite.yaml: is empty, must be a mapping of keys"),
        (
            {**SPEC, "scorer": ["tsq"]},
            (
                "suite.yaml: unknown key 'scorer' (did you mean 'scorers'?); "
                "known keys: name, description, dataset, agent, variants, scorers, tools, arguments, ans"
            ),
        ),
        (
            {"name": "shop", "dataset": {"format": "f", "fil": "d"}},
            "suite.yaml: unknown key 'dataset.fil' (did you mean 'file'?); known keys: format, file, tools, name",
        ),
        (
            {**SPEC, "variants": {"hot": {"agnet": {}}}},
            "suite.yaml: unknown key 'variants.hot.agnet' (did you mean 'agent'?); known keys: agent",
        ),
        (
            {**SPEC, "variants": {"default": {}}},
            "suite.yaml: variants: 'default' is the name of the suite's own agent; give the variant another name",
        ),
        ({**SPEC, "name": "my shop"}, "suite.yaml: name: must be letters, digits and `_`, with a letter first"),
        ({**SPEC, "name": "_shop"}, "suite.yaml: name: must be letters, digits and `_`, with a letter first"),
        ("name: shop\nname: store\n", "suite.yaml:2: the key 'name' occurs twice, first in line 1; keep one of them"),
        ("{name: shop, dataset: {format: f, file: d}, timeout: .inf}", "suite.yaml: timeout: must be a finite number"),
        ({**SPEC, "scorers": []}, "suite.yaml: scorers: a suite needs at least one scorer; add one, for example tsq"),
        ({**SPEC, "scorers": [{"tsq": {}, "other": {}}]}, "suite.yaml: scorers: must be a list of names or of {name: options}"),
        ({**SPEC, "scorers": ["tsq", "tsq"]}, "suite.yaml: scorers: two scores would be called 'tsq'; remove or rename one of the scorers"),
        (
            {**SPEC, "scorers": ["tsq", "./mine.py:tsq"]},
            "suite.yaml: scorers: two scores would be called 'tsq'; remove or rename one of the scorers",
        ),
        (
            {**SPEC, "roles": {"judge": {}}},
            "suite.yaml: roles: 'judge' is not one of the roles; write the judge under the key 'judge', next to 'roles'",
        ),
        (
            {**SPEC, "roles": {"agent": {}}},
            "suite.yaml: roles: 'agent' is the name of the agent itself in reports; give the role another name",
        ),
        ({**SPEC, "roles": {"x": {"url": "http://x/v1"}}}, "suite.yaml: roles.x: a role with a 'url' needs a 'model', too; add it"),
        (
            {**SPEC, "roles": {"x": {"api_key": "X"}}},
            "suite.yaml: roles.x: 'api_key' needs a 'url'; add the 'url' of the endpoint, or remove 'api_key'",
        ),
        ({**SPEC, "timeout": 0}, "suite.yaml: timeout: must be greater than 0, not 0"),
        ({"name": "shop"}, "suite.yaml: the key 'dataset' is missing"),
        (
            "{name: shop, dataset: {format: f, file: d}, agent: {day: 2024-01-01}}",
            "suite.yaml: agent.day: input was not a valid JSON value",
        ),
        (
            "{name: shop, dataset: {format: f, file: d}, thresholds: {tsq: .nan}}",
            "suite.yaml: thresholds.tsq: must be a finite number",
        ),
        (
            {"name": "shop", "dataset": {"format": "agent-leaderbord", "file": "data.json"}},
            "suite.yaml: no dataset format 'agent-leaderbord' (did you mean 'agent-leaderboard'?); known: agent-leaderboard",
        ),
        (
            {"name": "shop", "dataset": {"format": "agent-leaderboard", "file": "dta.json"}},
            "suite.yaml: the data file dta.json does not exist",
        ),
        (
            {"name": "shop", "dataset": {"format": "agent-leaderboard", "file": "data.json", "tools": "t.json"}},
            "suite.yaml: the data file t.json does not exist",
        ),
    ],
)
def test_faulty_suite_files(folder: Folder, spec: Any, sentence: str) -> None:
    """The error about an invalid suite.yaml names the file, the key or the line, and the known values."""
    folder.write("suite.yaml", spec)

    assert re.match(re.escape(sentence), folder.refusal())


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("", "data.json: is empty; it must contain a JSON list of scenarios, or one JSON object per line"),
        (" \n ", "data.json: is empty; "),
        ("[]", "data.json: contains no scenarios"),
        ("{}", "data.json: contains a JSON dict, but must contain a list of scenarios"),
        ('[\n{"id": "a",\n]', "data.json:3: not valid JSON: Expecting property name enclosed in double quotes (column 1)"),
        ([entry(), 5], "data.json: entry 2: is a JSON int, must be an object"),
        ([entry(id="")], "data.json: entry 1: 'id' must be a text that is not empty, not ''"),
        ([entry(id=7)], "data.json: entry 1: 'id' must be a text that is not empty, not 7"),
        ([entry(question=None)], "data.json: entry 1: 'question' must be a text that is not empty, not None"),
        ([entry(metadata=["hand"])], "data.json: entry 1: 'metadata' must be an object, not ['hand']"),
        ([entry(user_goals="a lamp")], "data.json: entry 1: 'user_goals' must be a list, not a lamp"),
        ([entry(expected_tool_calls=5)], "data.json: entry 1: 'expected_tool_calls' must be a list, not 5"),
        (
            [entry(expected_tool_calls=["find_item"])],
            "data.json: entry 1: an expected call must be {tool, parameters, goal}, not find_item",
        ),
        (
            [entry(expected_tool_calls=[{"tool": "find_item", "parameters": ["lamp"]}])],
            "data.json: entry 1: expected call of find_item: 'parameters' must be an object, not ['lamp']",
        ),
        (
            [entry(expected_tool_calls=[{"tool": "find_item", "accepts": {"item": "lamp"}}])],
            "data.json: entry 1: expected call of find_item: accepts: 'item' must be a list, not lamp",
        ),
        (
            [entry(expected_tool_calls=[{"tool": "find_item", "accepts": {}, "parameters": {}}])],
            "data.json: entry 1: expected call of find_item: has both 'parameters' and 'accepts'; keep only one of them",
        ),
        (
            [entry(), entry("s-1", expected_tools=["find_item"])],
            (
                "data.json: entry 2: unknown key 'expected_tools' (did you mean 'expected_tool_calls'?); "
                "known keys: id, question, ground_truth, metadata, user_goals, cluster, av"
            ),
        ),
        (
            [entry(expected_tool_calls=[{"tool": "find_item", "arguments": {}}])],
            (
                "data.json: entry 1: expected call of find_item: unknown key 'arguments' (did you mean 'parameters'?); "
                "known keys: tool, parameters, goal"
            ),
        ),
        (
            [entry(expected_tool_calls=[{"tool": "find_item", "accepts": {}, "optinal": []}])],
            (
                "data.json: entry 1: expected call of find_item: unknown key 'optinal' (did you mean 'optional'?); "
                "known keys: tool, accepts, optional, goal"
            ),
        ),
        (
            [entry(expected_tool_calls=[{"tool": "find_item", "parameters": {}, "optional": ["item"]}])],
            "data.json: entry 1: expected call of find_item: has 'optional' without 'accepts'",
        ),
        (
            '[{"id": "s-0", "question": "?", "metadata": {"a": 1, "a": 2}}]',
            "data.json: the key 'a' is there twice in one entry; keep one of them",
        ),
        ("[" * 200_000, "data.json: not valid JSON: it is nested more than 200 levels deep"),
        ([entry("a"), entry("b"), entry("a")], "data.json: the id 'a' is there twice; ids name tests and must be unique"),
        (
            [entry(expected_tool_calls=[{"tool": "find_itm"}], available_tools=[tool(), tool("order_item")])],
            "data.json: s-0: an expected call: no tool 'find_itm' (did you mean 'find_item'?); known: find_item, order_item",
        ),
    ],
)
def test_faulty_data(folder: Folder, data: Any, sentence: str) -> None:
    """The error about invalid data names the file, and the entry, the line or the scenario."""
    folder.write("data.json", data)

    assert re.match(re.escape(sentence), folder.refusal())


@pytest.mark.parametrize(
    ("tools", "sentence"),
    [
        (None, "data.json: entry 1: the tools must be a list, not NoneType"),
        ({}, "data.json: entry 1: the tools must be a list, not dict"),
        (["find_item"], "data.json: entry 1: a tool has no 'title'; add it, because it is the tool's name: find_item"),
        ([OPENAI], f"data.json: entry 1: a tool is in OpenAI's form; write it as {OURS}"),
        ([{"type": "function", **OPENAI["function"]}], f"data.json: entry 1: a tool is in OpenAI's form; write it as {OURS}"),
        (
            [{"type": "function", "function": "find_item"}],
            "data.json: entry 1: a tool has no 'title'; add it, because it is the tool's name: {'type': 'function'",
        ),
        ([tool("")], "data.json: entry 1: a tool has no 'title'; add it, because it is the tool's name: {'title': ''"),
        ([tool(), tool()], "data.json: entry 1: the tool 'find_item' is there twice; remove one of the two"),
        (
            [tool(parameters={})],
            "data.json: entry 1: tool 'find_item': unknown key 'parameters'; known keys: title, description, type, properties, required,",
        ),
        ([tool(description=["Finds."])], "data.json: entry 1: tool 'find_item': 'description' must be a text, not ['Finds.']"),
        (
            [tool(properties="{")],
            "data.json: entry 1: tool 'find_item': 'properties' is a text that is not valid JSON; write the schema as an object: Expecting",
        ),
        ([tool(properties=["item"])], "data.json: entry 1: tool 'find_item': 'properties' must be an object, not ['item']"),
        ([tool(response_schema="[1]")], "data.json: entry 1: tool 'find_item': 'response_schema' must be an object, not [1]"),
        (
            [tool(response_schema={"properties": ["done"]})],
            "data.json: entry 1: tool 'find_item': response_schema: 'properties' must be an object, not ['done']",
        ),
        (
            [tool(properties={"item": {"type": "strin"}})],
            "data.json: the parameters of tool 'find_item' are not a valid JSON schema: Unknown type",
        ),
        ([tool(properties={"item": "string"})], "data.json: the parameters of tool 'find_item' are not a valid JSON schema: "),
        ([tool(required=None)], "data.json: the parameters of tool 'find_item' are not a valid JSON schema: required must be an array"),
        (
            [tool(properties={"item": {"pattern": "("}})],
            "data.json: the parameters of tool 'find_item' are not a valid JSON schema: missing )",
        ),
        (
            [tool(properties={"item": {"$ref": "http://127.0.0.1:9/item"}})],
            "data.json: the parameters of tool 'find_item' are not a valid JSON schema: a `$ref` leads to another document, http://127.0.0.1:9/item",
        ),
    ],
)
def test_faulty_tools(folder: Folder, tools: Any, sentence: str) -> None:
    """The error about an invalid tool or schema names the entry. No schema leads to a network request."""
    folder.write("data.json", [entry(available_tools=tools)])

    assert re.match(re.escape(sentence), folder.refusal())


def test_the_suggested_form_of_a_tool(folder: Folder) -> None:
    """The form that the error about an OpenAI tool suggests can be read."""
    folder.write("data.json", [entry(available_tools=[json.loads(OURS)])])

    (scenario,) = folder.load().scenarios
    assert "find_item" == scenario.tools[0].name
    assert {"item": {"type": "string"}} == scenario.tools[0].parameters["properties"]


def test_an_entry_without_tools(folder: Folder) -> None:
    """Tools come from the entry or from the tools file. If both are missing, the error names the entry."""
    folder.write("data.json", [entry(), {"id": "s-1", "question": "?"}])

    assert "data.json: entry 2: no 'available_tools'; add them, or name a tools file in suite.yaml with dataset.tools" == folder.refusal()


def test_a_faulty_tools_file(folder: Folder) -> None:
    """The error about an invalid tools file names that file."""
    folder.write("tools.json", "[\n{]")
    assert re.match(r"tools\.json:2: not valid JSON: ", folder.refusal(("dataset.tools", "tools.json")))

    folder.write("tools.json", [{"description": "no title"}])
    assert re.match(r"tools\.json: a tool has no 'title'", folder.refusal(("dataset.tools", "tools.json")))


def test_a_broken_json_line(folder: Folder) -> None:
    """In JSON lines, the error has the line number. Empty lines are counted."""
    folder.write("data.jsonl", f'{json.dumps(entry("a"))}\n\n{{"id": "b",\n')
    sentence = "data.jsonl:3: not valid JSON: Expecting property name enclosed in double quotes (column 12)"

    assert sentence == folder.refusal(("dataset.file", "data.jsonl"))


def test_a_repeated_key_in_a_json_line(folder: Folder) -> None:
    """In JSON lines, the error about a repeated key has the line number."""
    folder.write("data.jsonl", f'{json.dumps(entry("a"))}\n{{"id": "b", "id": "c", "question": "?"}}\n')

    assert "data.jsonl:2: the key 'id' is there twice in one entry; keep one of them" == folder.refusal(("dataset.file", "data.jsonl"))


def test_data_in_another_encoding(folder: Folder) -> None:
    """The error about a data file that is not UTF-8 names the first invalid byte."""
    (folder.path / "data.json").write_bytes('[{"id": "café"}]'.encode("latin-1"))

    assert "data.json: not UTF-8: byte 12 is 0xe9; save it as UTF-8" == folder.refusal()
