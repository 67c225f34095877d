"""Hints in the key `labels` of a backend."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.hints_spec import WITHDRAWN
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.url import UrlSpec
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.metrics.call_hints import HintRow
from pytest_agentbench.tap.hint_table import write_table

ROWS = (HintRow("", 1, 24, 13.75, 24.0, 31.0, 205.4), HintRow("judge", 1, 3, 0.0, 5.0, 6.0, None))
SESSION = {"kind": "session", "headers": ["x"]}


def load(root: Path, labels: Any) -> UrlSpec:
    file = root / "mine.yaml"
    file.write_text(json.dumps({"kind": "url", "url": "http://x", "labels": labels}))
    spec = load_backend(str(file), root)
    assert isinstance(spec, UrlSpec)
    return spec


def test_hints(tmp_path: Path) -> None:
    """The labels in the form for the tap contain exactly the hints that the YAML names, those of roles as well."""
    told = {"priority": 0, "strict_priority": 1, "osl": 64, "speculative_prefill": True}
    labels = {"kind": "dynamo", **told, "total_requests": 10, "iat": 250, "prefix": "{suite}"}
    roles = {"judge": {"priority": -1, "speculative_prefill": False}, "search": {"osl": 8, "prefix": "{role}"}}

    assert {**labels, "roles": roles} == load(tmp_path, {**labels, "roles": roles}).labels.model_dump(exclude_defaults=True)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ({**SESSION, "priority": 1}, "`priority` is a hint for dynamo, not for 'session'; remove it, or change `kind`"),
        ({"kind": "thunderagent", "osl": 64}, "`osl` is a hint for dynamo and session, not for 'thunderagent'"),
        ({**SESSION, "speculative_prefill": True}, "`speculative_prefill` is a hint for dynamo, not for 'session'"),
        ({"iat": 250}, "`iat` is a hint for dynamo and session, not for 'none'"),
        ({**SESSION, "roles": {"judge": {"priority": 1}}}, "roles.judge: `priority` is a hint for dynamo, not for 'session'"),
        ({"kind": "dynamo", "strict_priority": -1}, "labels.strict_priority: must be greater than or equal to 0, not -1"),
        ({"kind": "dynamo", "priority": "high"}, "labels.priority: must be a whole number"),
        ({"kind": "dynamo", "total_requests": 0}, "labels.total_requests: must be greater than 0"),
        ({"kind": "dynamo", "prefix": ""}, "labels.prefix: must not be empty"),
        ({"kind": "dynamo", "prefix": "{sute}"}, "labels.prefix: no part 'sute' (did you mean 'suite'?)"),
        ({"kind": "dynamo", "prefix": "{"}, "labels.prefix: is not a template"),
        ({"kind": "dynamo", "roles": {"judge": {"headers": ["x"]}}}, "unknown key 'labels.roles.judge.headers'"),
    ],
)
def test_faulty_hints(tmp_path: Path, labels: Any, sentence: str) -> None:
    """A hint that the kind of stack cannot take, and one with a wrong value, is refused before anything starts."""
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load(tmp_path, labels)


@pytest.mark.parametrize("name", WITHDRAWN)
@pytest.mark.parametrize("role", [None, "judge"])
def test_withdrawn_hints(tmp_path: Path, name: str, role: str | None) -> None:
    """A hint that stacks no longer take is refused with what to do instead."""
    hints: Any = {name: 1} if role is None else {"roles": {role: {name: 1}}}
    with pytest.raises(ConfigError, match=re.escape(f"{name!r} is not a hint: {WITHDRAWN[name]}")):
        load(tmp_path, {"kind": "dynamo", **hints})


def test_a_table(tmp_path: Path) -> None:
    """The file of a table is relative to the YAML. Its rows are in the labels for the tap."""
    write_table(tmp_path / "hints.json", "a run", ROWS)
    labels = load(tmp_path, {"kind": "dynamo", "table": "hints.json"}).running_endpoint().labels

    assert {"kind": "dynamo", "table": [asdict(row) for row in ROWS]} == labels


def test_a_table_of_a_base(tmp_path: Path) -> None:
    """A stack that is based on a YAML in another folder has the table beside that one."""
    (tmp_path / "base").mkdir()
    write_table(tmp_path / "base" / "hints.json", "a run", ROWS)
    base = {"services": {"engine": {"run": ["serve"]}}, "labels": {"kind": "dynamo", "table": "hints.json"}}
    (tmp_path / "base" / "one.yaml").write_text(json.dumps(base))
    (tmp_path / "mine.yaml").write_text(json.dumps({"base": "base/one.yaml"}))
    spec = load_backend(str(tmp_path / "mine.yaml"), tmp_path)

    assert [asdict(row) for row in ROWS] == spec.labels.of_endpoint()["table"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ({"kind": "dynamo", "table": "none.json"}, "none.json: no such file; write one with `agentbench hints learn RUN -o FILE`"),
        ({"kind": "thunderagent", "table": "mine.yaml"}, "`table` is a key of the kinds dynamo and session, not of 'thunderagent'"),
    ],
)
def test_faulty_tables(tmp_path: Path, labels: Any, sentence: str) -> None:
    """A missing table, and one that the kind of stack cannot use, is refused before anything starts."""
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load(tmp_path, labels)
