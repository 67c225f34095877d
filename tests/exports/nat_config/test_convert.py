"""Configurations of the NeMo Agent Toolkit become suites, and no key of them disappears in silence."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.exports.nat_config.convert import convert, write
from pytest_agentbench.exports.nat_config.data import NatInputs
from pytest_agentbench.exports.nat_config.keys import NO_VALUE, UNKNOWN
from pytest_agentbench.suites.folder import load_suite
from tests.nat_configs import CONFIGS, GOLDEN, GOLDEN_CONFIGS, NINE, QUESTION, ROOT, converted, golden_text, has_data, leaves

#: The configurations in which every kind of component occurs.
VARIED = (
    *("config_dynamo_adk_e2e_test", "config_dynamo_prefix_e2e_test", "profile_rethinking_full_test", "optimize_rethinking_full_test"),
    "openai",
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which the paths of the configurations begin, with two scenarios of banking."""
    monkeypatch.chdir(tmp_path)
    banking, folder = ROOT / "scenarios" / "banking", tmp_path / "scenarios" / "banking"
    folder.mkdir(parents=True)
    (folder / "tools.json").write_bytes((banking / "tools.json").read_bytes())
    (folder / "banking.json").write_text(json.dumps(json.loads((banking / "banking.json").read_text(encoding="utf-8"))[:2]))
    return tmp_path


def keys_of(name: str) -> Any:
    return yaml.safe_load((CONFIGS / f"{name}.yml").read_text(encoding="utf-8"))


def outcome(project: Path, keys: Any, *, data: bool) -> Any:
    """Returns all that a conversion makes, or the message of the error."""
    file = project / "config.yml"
    file.write_text(yaml.safe_dump(keys))
    try:
        result = convert(file, NatInputs(questions=() if data else (QUESTION,)))
    except ConfigError as error:
        return str(error)
    return dict(result.files), result.concurrency, result.left_out, result.study


@pytest.mark.parametrize("name", GOLDEN_CONFIGS)
def test_golden(name: str) -> None:
    """A configuration becomes the suite.yaml, the backend.yaml and the command of its golden file."""
    assert (GOLDEN / f"{name}.txt").read_text(encoding="utf-8") == golden_text(name)


@pytest.mark.parametrize("name", [*NINE, "openai"])
def test_every_key_is_used_or_named(name: str) -> None:
    """Each key that is not carried over is named once, with a reason. None of the keys of the nine configurations is unknown."""
    left_out = converted(name).left_out
    paths = [".".join(path) for path in leaves(keys_of(name))]

    assert [] == [path for path, _ in left_out if not any(f"{each}.".startswith(f"{path}.") for each in paths)]
    assert [] == [each for each in left_out if not each.reason or each.reason == NO_VALUE]
    assert (["workflow.surprise"] if name == "openai" else []) == [path for path, reason in left_out if reason == UNKNOWN]
    assert len({path for path, _ in left_out}) == len(left_out)


def changed(value: Any) -> Any:
    """Returns another value of the same type."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}x"
        case list():
            return value[:-1] if value else ["other"]
        case _:
            return value


def with_change(keys: Any, path: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    """Returns a copy of nested mappings in which the value at a path was changed."""
    keys = copy.deepcopy(keys)
    inside = keys
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = change(inside[path[-1]])
    return keys


@pytest.mark.parametrize("name", VARIED)
def test_a_key_that_is_not_named_has_an_effect(name: str, project: Path) -> None:
    """If the value of a key that counts as carried over changes, the result changes, or the value is an error."""
    keys, data = keys_of(name), has_data(name)
    before = outcome(project, keys, data=data)
    left_out = [each.path for each in before[2]]
    carried = [path for path in leaves(keys) if not any(f"{'.'.join(path)}.".startswith(f"{each}.") for each in left_out)]

    assert len(carried) >= 8
    assert [] == [path for path in carried if outcome(project, with_change(keys, path, changed), data=data) == before]


def mappings(keys: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the path of each mapping in a mapping."""
    for key, value in keys.items():
        if isinstance(value, dict):
            yield (*path, str(key))
            yield from mappings(value, (*path, str(key)))


@pytest.mark.parametrize("name", VARIED)
def test_unknown_keys_are_named(name: str, project: Path) -> None:
    """A key that the conversion does not know, in any mapping, is named, or the component around it is, or it is an error."""
    keys, data = keys_of(name), has_data(name)
    for path in mappings(keys):
        result = outcome(project, with_change(keys, path, lambda inside: {**inside, "odd": 1}), data=data)
        if isinstance(result, str):
            assert "odd" in result
        elif path[-1] != "truncation_retry":  # The loader of suites checks its keys.
            assert any(f"{'.'.join(path)}.odd.".startswith(f"{each.path}.") for each in result[2]), path


def test_written_folder(project: Path) -> None:
    """The folder is a suite that loads, with its backend, its test and the tools and data of the configuration."""
    write(convert(CONFIGS / "openai.yml", NatInputs()), project / "made" / "bank")

    suite, backend = load_suite(project / "made" / "bank" / "suite.yaml"), load_backend("made/bank/backend.yaml", project)
    assert (["backend.yaml", "data.json", "suite.yaml", "test_openai.py", "tools.json"], 2) == (
        sorted(file.name for file in (project / "made" / "bank").iterdir()),
        len(suite.scenarios),
    )
    assert {19} == {len(scenario.tools) for scenario in suite.scenarios}
    assert ("https://api.openai.com/v1", "gpt-test") == (backend.model_dump()["url"], backend.model)
    with pytest.raises(ConfigError, match="bank exists; remove it, or name another folder with --output"):
        write(convert(CONFIGS / "openai.yml", NatInputs()), project / "made" / "bank")


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("workflow", "max_retries"), 9, "max_retries"),
        (("functions", "bank", "truncation_retry"), {"odd": 1}, "made/suite.yaml: wraps: agent: 'tool_calling' cannot be made"),
        (("llms", "agent_llm", "base_url"), "example", "made/backend.yaml: url: must start with http:// or https://"),
    ],
)
def test_invalid_results_are_not_written(path: tuple[str, ...], value: Any, sentence: str, project: Path) -> None:
    """If the suite or the backend would not load, the error names the file that it would be in, and nothing is left on the disk."""
    keys = with_change({"": 0, **keys_of("openai")}, path[:-1], lambda inside: {**inside, path[-1]: value})
    (project / "config.yml").write_text(yaml.safe_dump(keys))
    before = sorted(project.rglob("*"))

    with pytest.raises(ConfigError) as error:
        write(convert(project / "config.yml", NatInputs()), Path("made"))
    assert sentence in str(error.value)
    assert before == sorted(project.rglob("*"))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"llms": {}}, "config.yml: has no mapping `workflow`, so it is not a configuration of the NeMo Agent Toolkit"),
        ({"workflow": {"_type": "rewoo_agent"}}, "workflow._type: 'rewoo_agent' cannot be converted; known: react_agent,"),
        ({"workflow": {"_type": "react_agent"}}, "config.yml: workflow has no 'llm_name'; add it"),
        ({"workflow": {"_type": "react_agent", "llm_name": 3}}, "config.yml: workflow.llm_name must be a text"),
        ({"workflow": {"_type": "react_agent", "llm_name": "m"}, "llms": {"n": {}}}, "config.yml: llms: no component 'm'; known: n"),
        (
            {"workflow": {"_type": "react_agent", "llm_name": "m"}, "llms": {"m": {"_type": "nim"}}},
            "config.yml: llms.m._type: 'nim' cannot be converted; known: openai, dynamo",
        ),
        (
            {"workflow": {"_type": "react_agent", "llm_name": "m"}, "llms": {"m": {"_type": "openai", "model_name": "x"}}, "eval": 3},
            "config.yml: eval.general.dataset.file_path is missing; name the data with --data FILE, or --input TEXT",
        ),
    ],
)
def test_mistakes(keys: Any, sentence: str, project: Path) -> None:
    """A configuration that cannot be converted is an error that names the file and the key."""
    assert sentence in outcome(project, keys, data=True)
