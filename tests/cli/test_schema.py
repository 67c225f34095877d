"""`agentbench schema suite` and `backend`: the schemas describe every key, accept every YAML of this project, and detect mistakes."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, get_args

import fastjsonschema
import pytest
from pydantic import BaseModel

from pytest_agentbench.backends.spec import own_backends
from pytest_agentbench.backends.stack.composition import with_on
from pytest_agentbench.cli import main
from pytest_agentbench.cli.init import SCHEMA_FILE, SCHEMA_LINE
from pytest_agentbench.cli.schema import FILES, schema_text
from pytest_agentbench.lib.config import parse_yaml
from pytest_agentbench.schemas.yaml_files import BACKENDS, agents, options_of, tools
from pytest_agentbench.suites.folder import load_suite
from pytest_agentbench.suites.roles import RoleFile
from pytest_agentbench.suites.spec import SuiteSpec

ROOT = Path(__file__).parents[2]

BLOCK = re.compile(r"^```yaml\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)

SUITE: dict[str, Any] = {"name": "shop", "dataset": {"format": "agent-leaderboard", "file": "shop.jsonl"}}


def as_json(value: Any) -> Any:
    """Converts a YAML value to JSON as editors do: dates and keys become texts."""
    if isinstance(value, dict):
        return {str(name): as_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [as_json(each) for each in value]
    return value.isoformat() if isinstance(value, date) else value


@functools.cache
def validator(name: str) -> Callable[[Any], Any]:
    """Returns a function that validates a value against the printed schema, and raises if it is invalid."""
    valid: Callable[[Any], Any] = fastjsonschema.compile(json.loads(schema_text(name)), use_default=False)
    return valid


@pytest.mark.parametrize("name", FILES)
def test_schemas_are_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each schema that the help lists is printed with a title, and can be compiled."""
    assert 0 == main(["schema", name])

    schema = json.loads(capsys.readouterr().out)
    assert schema["title"].startswith("pytest-agentbench: ")
    fastjsonschema.compile(schema, use_default=False)


def yamls() -> Iterator[tuple[str, str]]:
    """Yields place and text of each YAML of the project: suites, backends, and snippets of the documentation."""
    for file in sorted([*ROOT.glob("scenarios/*/suite.yaml"), *ROOT.glob("backends/*.yaml"), *ROOT.glob("docs/ci/**/*.yaml")]):
        yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
    for page in sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]):
        for number, text in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), start=1):
            yield f"{page.relative_to(ROOT)}:{number}", text


def schema_for(text: str) -> str | None:
    """Returns the schema for a YAML: a suite has `dataset`, a backend `kind`, `services` or `include`. Returns None for others."""
    data = parse_yaml(text, "snippet")
    if not isinstance(data, dict) or "apiVersion" in data:
        return None
    return "suite" if "dataset" in data else "backend" if {"kind", "services", "include"} & data.keys() else None


CASES = {where: (schema, text) for where, text in yamls() if (schema := schema_for(text))}


def test_enough_is_validated() -> None:
    """The validated YAMLs include suites and backends of every kind, in files and in the documentation."""
    backends = [parse_yaml(text, where) for where, (schema, text) in CASES.items() if schema == "backend"]

    assert {"embedded", "url", "stack"} <= {each.get("kind", "stack") for each in backends}
    assert {f"backends/{name}.yaml" for name in own_backends(ROOT)} <= CASES.keys()
    assert 6 == len([where for where in CASES if where.startswith("scenarios/")])
    assert 30 < len([where for where in CASES if where.startswith("docs/")])


@pytest.mark.parametrize("name", ["suite", "backend"])
def test_yamls_of_this_project_are_valid(name: str) -> None:
    """Every suite and backend in files and in the documentation is valid.

    Editors read YAML 1.2, in which the key `on` is a text.
    """
    valid, faults = validator(name), []
    for where, (schema, text) in CASES.items():
        if schema == name:
            try:
                data = parse_yaml(text, where)
                valid(as_json(data | ({"services": with_on(data["services"])} if "services" in data else {})))
            except fastjsonschema.JsonSchemaValueException as error:
                faults.append(f"{where}: {error}")

    assert [] == faults


@pytest.mark.parametrize("suite", ["banking", "bfcl", "hle", "openthoughts", "own", "sessions"])
def test_suites_of_init_are_valid(suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The suite.yaml of `agentbench init` names the schema in its first line. The schema is in the same folder, and the suite is valid."""
    monkeypatch.chdir(tmp_path)
    assert 0 == main(["init", suite])

    folder = tmp_path / "scenarios" / suite
    text = (folder / "suite.yaml").read_bytes()
    schema = json.loads((folder / SCHEMA_FILE).read_text(encoding="utf-8"))
    assert text.startswith(SCHEMA_LINE)
    assert f"$schema=./{SCHEMA_FILE}" in SCHEMA_LINE.decode()
    assert f"wrote scenarios/{suite}/{SCHEMA_FILE}" in capsys.readouterr().out.splitlines()
    assert "https://json-schema.org/draft/2020-12/schema" == schema["$schema"]
    assert suite == fastjsonschema.compile(schema, use_default=False)(as_json(parse_yaml(text.decode(), suite)))["name"]
    assert text.removeprefix(SCHEMA_LINE) == (ROOT / "scenarios" / suite / "suite.yaml").read_bytes()


def test_the_first_line_changes_no_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite that `agentbench init` writes is equal to the shipped one."""
    monkeypatch.chdir(tmp_path)
    assert 0 == main(["init", "banking"])

    written, shipped = (load_suite(root / "scenarios/banking/suite.yaml") for root in (tmp_path, ROOT))
    assert (shipped.scenarios, shipped.dataset, shipped.agent) == (written.scenarios, written.dataset, written.agent)


#: Mistakes and valid alternatives: further keys of a suite, and whether they are valid.
OF_SUITES: dict[str, tuple[dict[str, Any], bool]] = {
    "misspelt": ({"scorer": ["tsq"]}, False),
    "misspelt inside": ({"dataset": {"format": "hle", "files": "x"}}, False),
    "misspelt of an agent": ({"agent": {"kind": "tool_calling", "max_turn": 3}}, False),
    "misspelt of the default agent": ({"agent": {"max_turn": 3}}, False),
    "misspelt of an agent in an agent": ({"agent": {"kind": "self_evaluating", "wraps": {"kind": "react", "max_turns": 3}}}, False),
    "misspelt of tools": ({"tools": {"kind": "mcp", "comand": ["x"]}}, False),
    "misspelt of a variant": ({"variants": {"warm": {"agents": {}}}}, False),
    "misspelt kind": ({"agent": {"kind": "reakt"}}, False),
    "wrong type": ({"trials": "three"}, False),
    "wrong type of an agent's": ({"agent": {"kind": "react", "max_tool_calls": "many"}}, False),
    "wrong value": ({"isolation": "thread"}, False),
    "wrong name of a variant": ({"variants": {"Warm": {}}}, False),
    "two scorers in one": ({"scorers": [{"tsq": {}, "regex": {}}]}, False),
    "missing": ({"dataset": {"file": "x"}}, False),
    "names of scorers": ({"scorers": ["tsq", {"regex": {"pattern": "x"}}]}, True),
    "scorers as a mapping": ({"scorers": {"tsq": {}}}, True),
    "a file of roles": ({"roles": "roles.yaml"}, True),
    "a delay with its unit": ({"answers": {"find_item": {"delay": "200ms"}}}, True),
    "a delay in seconds": ({"answers": {"find_item": {"delay": 0.2}}}, True),
    "the default agent": ({"agent": {"max_turns": 3, "temperature": 0.5}}, True),
    "an agent of one's own": ({"agent": {"kind": "./agent.py:Planner", "plan_words": 3}}, True),
    "an agent in an agent": ({"agent": {"kind": "self_evaluating", "wraps": "./agent.py:Planner"}}, True),
    "an option without a value": ({"agent": {"kind": "command", "program": ["sh"], "python": None}}, True),
    "a variant's agent": ({"agent": {"kind": "react"}, "variants": {"warm": {"agent": {"max_history": 3}}}}, True),
    "a config": ({"agent": {"kind": "terminal", "config": "agent_config.json"}}, True),
}


@pytest.mark.parametrize("case", OF_SUITES)
def test_mistakes_in_a_suite(case: str) -> None:
    """A misspelt key, a wrong type and a wrong value are detected at any depth. All supported alternatives are valid."""
    keys, right = OF_SUITES[case]

    assert right == is_valid(validator("suite"), {**SUITE, **keys})


STACK = {"services": {"engine": {"run": ["serve", "--port", 8000]}}}

OF_BACKENDS: dict[str, tuple[dict[str, Any], bool]] = {
    "no kind": ({"url": "http://127.0.0.1:8000/v1"}, False),
    "unknown kind": ({"kind": "urls", "url": "http://127.0.0.1:8000/v1"}, False),
    "misspelt": ({"kind": "url", "uri": "http://127.0.0.1:8000/v1"}, False),
    "key of another kind": ({"kind": "embedded", "url": "http://127.0.0.1:8000/v1"}, False),
    "wrong type": ({"kind": "embedded", "ttft_ms": "fast"}, False),
    "misspelt in a service": ({"services": {"engine": {"runs": ["x"]}}}, False),
    "filled in": ({**STACK, "here": "/tmp"}, False),
    "neither services nor a file of them": ({"kind": "stack"}, False),
    "unknown labels": ({**STACK, "labels": "ray"}, False),
    "embedded": ({"kind": "embedded"}, True),
    "one URL of metrics": ({"kind": "url", "url": "http://127.0.0.1:8000/v1", "metrics": "http://127.0.0.1:8000/metrics"}, True),
    "numbers in a command": (STACK, True),
    "numbers in variables": ({**STACK, "env": {"OMP_NUM_THREADS": 4}}, True),
    "kind of labels": ({**STACK, "labels": "dynamo"}, True),
    "labels": ({**STACK, "labels": {"kind": "dynamo", "osl": 256}}, True),
    "names of ports": ({"services": {"engine": {"run": ["x"], "ports": ["events"], "metrics": "/metrics"}}}, True),
    "included": ({"include": "engine.yaml"}, True),
    "based": ({"base": "dynamo", "settings": {"router_mode": "random"}}, True),
    "based, with less": ({"base": "dynamo", "settings": {"a": None}, "services": {"worker": None, "b": {"env": {"C": None}}}}, True),
    "a name of its own": ({"kind": "embedded", "name": "slow", "request_fields": {"seed": None}}, True),
}


@pytest.mark.parametrize("case", OF_BACKENDS)
def test_mistakes_in_a_backend(case: str) -> None:
    """Mistakes in a backend's YAML are detected. Its kind decides which keys are valid."""
    keys, right = OF_BACKENDS[case]

    assert right == is_valid(validator("backend"), keys)


def is_valid(valid: Callable[[Any], Any], value: Any) -> bool:
    try:
        valid(value)
    except fastjsonschema.JsonSchemaValueException:
        return False
    return True


def models_in(hint: Any, seen: dict[type[BaseModel], None]) -> dict[type[BaseModel], None]:
    """Returns all models within a type."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        if hint not in seen:
            seen[hint] = None
            for each in hint.model_fields.values():
                models_in(each.annotation, seen)
    else:
        for each in get_args(hint):
            models_in(each, seen)
    return seen


MODELS: dict[type[BaseModel], None] = {}
for root in (SuiteSpec, RoleFile, *BACKENDS.values()):
    models_in(root, MODELS)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_key_is_described(model: type[BaseModel]) -> None:
    """Every key of a suite.yaml and of a backend has a description that is a sentence."""
    assert [] == [name for name, field in model.model_fields.items() if not is_sentence(field.description or "")]


@pytest.mark.parametrize("kind", [*agents().values(), *tools().values()], ids=lambda kind: kind.__name__)
def test_every_option_is_described(kind: type) -> None:
    """Every option of a built-in agent and of a kind of tools has a comment that is a sentence."""
    assert [] == [each.name for each in options_of(kind) if not is_sentence(each.doc)]


@pytest.mark.parametrize("name", ["suite", "backend"])
def test_the_schema_has_every_description(name: str) -> None:
    """The schemas contain all descriptions, with the text of links instead of the links."""
    properties = [*properties_in(json.loads(schema_text(name)))]

    assert len(properties) > 100
    assert [] == [key for key, schema in properties if not is_sentence(schema.get("description", ""))]
    assert [] == [key for key, schema in properties if "](" in schema["description"]]


def properties_in(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields all keys with their schemas, except for those in conditions."""
    if isinstance(schema, list):
        for each in schema:
            yield from properties_in(each)
    elif isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
        for name, each in schema.items():
            if name in ("properties", "$defs"):
                yield from properties_in([*each.values()])
            elif name not in ("if", "default", "description"):
                yield from properties_in(each)


def is_sentence(text: str) -> bool:
    return bool(re.match(r"[A-Z`\[*]", text)) and text.endswith((".", "!"))
