"""Backends that answer from a recording: what the recording brings, what is refused, and a server that starts again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.doctor import checks
from pytest_agentbench.backends.recorded import Recorded, RecordedSpec, recording_facts
from pytest_agentbench.backends.spec import SessionTerms, load_backend
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.recordings.recording import trim
from pytest_agentbench.records import Json
from tests.recordings.made_recordings import MadeCall, asking, made, saying

pytestmark = pytest.mark.timeout(120)

FACTS: Json = {
    "format": "agentbench.recording/1",
    "run": "20260101-000000",
    "command": ["pytest", "scenarios/shop"],
    "model": "big",
    "thresholds": {"shop": {"tsq": 0.5, "tsq.mean": 0.7}},
    "prices": {"currency": "USD", "input": 1.0, "output": 2.0},
    "roles": {"search": {"url": "http://fast/v1", "model": "fast"}},
    "context_length": 4096,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A trimmed recording of one call."""
    trim(made(tmp_path, [MadeCall(asking("Hi"), saying("Hello"))]), FACTS, tmp_path / "shop.cassette", str)
    return tmp_path / "shop.cassette"


def loaded(name: str, root: Path, **changes: Any) -> RecordedSpec:
    spec = load_backend(name, root, [*changes.items()])
    assert isinstance(spec, RecordedSpec)
    return spec


def test_it_brings_what_the_backend_had(file: Path, tmp_path: Path) -> None:
    """Model, thresholds, prices, roles and context length are those of the recorded backend."""
    spec = loaded(f"recorded:{file.name}", tmp_path)

    assert (str(file), "recorded", "at_once") == (spec.run, spec.name, spec.pace)
    assert ("big", FACTS["thresholds"], 4096) == (spec.model, spec.thresholds, spec.context_length)
    assert (1.0, "fast") == (spec.prices.input if spec.prices else None, spec.roles["search"].model)


def test_the_yaml_goes_first(file: Path, tmp_path: Path) -> None:
    """Keys of a YAML replace what the recording brings. Its path is relative to the YAML."""
    (tmp_path / "backends").mkdir()
    keys = {"kind": "recorded", "run": f"../{file.name}", "model": "own", "thresholds": {"bank": {"tsq": 0.1}}, "note": "mine"}
    (tmp_path / "backends/ci.yaml").write_text(json.dumps(keys))

    spec = loaded("ci", tmp_path, pace="recorded")

    assert (str(file), "ci", "own", "recorded") == (spec.run, spec.name, spec.model, spec.pace)
    assert {**FACTS["thresholds"], "bank": {"tsq": 0.1}} == spec.thresholds
    backend = spec.make(SessionTerms())
    assert backend.note == "mine; answers of the recorded run 20260101-000000; no model was called"
    assert ("recorded", "20260101-000000") == (backend.description["kind"], backend.description["run"])


def run_json(**changes: Any) -> Json:
    backend = {"kind": "url", "served_model": "big (answered by big-2)", "url": "http://secret/v1", "prices": FACTS["prices"]}
    suites = {"shop": {"variant": "default", "thresholds": {"tsq": 0.5}}, "shop-b": {"variant": "b", "thresholds": {"tsq": 0.5}}}
    return {"id": "r1", "command": ["pytest"], "backend": {**backend, **changes}, "suites": suites}


def test_facts_of_a_run(tmp_path: Path) -> None:
    """A run directory has the same facts in its run.json, and no address of a server."""
    (tmp_path / "messages.jsonl").touch()
    (tmp_path / "run.json").write_text(json.dumps(run_json()))

    facts = recording_facts(tmp_path)

    assert ("r1", "big", {"shop": {"tsq": 0.5}}, FACTS["prices"]) == tuple(facts[name] for name in ("run", "model", "thresholds", "prices"))
    assert "secret" not in json.dumps(facts)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no messages.jsonl, so it cannot be played; record a run with --agentbench-keep=all"),
        ({"messages.jsonl": "", "run.json": json.dumps(run_json(kind="ab"))}, "compares arms, which cannot be played"),
        (
            {"messages.jsonl": "", "run.json": json.dumps({**run_json(), "settings": {"keep": "calls"}})},
            "made with --agentbench-keep=calls",
        ),
        ({"messages.jsonl": "", "run.json": json.dumps(run_json(served_model=None))}, "is not a run that can be played"),
        ({"messages.jsonl": ""}, "run.json"),
    ],
)
def test_runs_that_cannot_be_played(files: dict[str, str], message: str, tmp_path: Path) -> None:
    """Each is refused with a sentence, before anything starts."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    with pytest.raises(ConfigError, match=message):
        recording_facts(tmp_path)


@pytest.mark.parametrize(("text", "message"), [(None, "there is no recording"), ("hello\n", "is not a recording of format")])
def test_files_that_cannot_be_played(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "x").write_text(text)

    with pytest.raises(ConfigError, match=message):
        load_backend("recorded:x", tmp_path)


def test_doctor(file: Path, tmp_path: Path) -> None:
    """The doctor says which run the recording is of, and what is missing if the file was removed since."""
    spec = loaded(f"recorded:{file.name}", tmp_path)
    assert ["ok"] == [each.state for each in checks(spec) if each.name == "recording"]

    file.unlink()
    assert ["missing"] == [each.state for each in checks(spec) if each.name == "recording"]


def test_it_serves_and_counts(file: Path, tmp_path: Path) -> None:
    """The server lists the recorded model first. What it has played is known after it was stopped."""
    backend = loaded(f"recorded:{file.name}", tmp_path).make(SessionTerms())
    assert isinstance(backend, Recorded)
    try:
        endpoint = backend.start(tmp_path)
        assert ("big", ["big", "m"], True) == (endpoint.model, backend.models, endpoint.plays_roles)
        assert endpoint.url.startswith("http://127.0.0.1:")
    finally:
        backend.stop()

    assert backend.played is not None
    assert ("20260101-000000", 1, 0) == tuple(backend.played[name] for name in ("run", "calls", "missed"))
