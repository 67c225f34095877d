"""The key `labels` of a backend: a session's id for any router."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.labels_spec import LabelsSpec
from pytest_agentbench.backends.spec import BackendSpec, load_backend
from pytest_agentbench.errors import ConfigError

KEYS: dict[str, Any] = {
    "url": {"kind": "url", "url": "http://x"},
    "stack": {"kind": "stack", "services": {"engine": {"run": ["serve"]}}},
}


def load(root: Path, kind: str, labels: Any) -> BackendSpec:
    file = root / "mine.yaml"
    file.write_text(json.dumps({**KEYS[kind], "labels": labels}))
    return load_backend(str(file), root)


@pytest.mark.parametrize("kind", KEYS)
def test_a_session(tmp_path: Path, kind: str) -> None:
    """Servers that already run and stacks both take the headers and fields that get a session's id."""
    keys: dict[str, Any] = {"kind": "session", "headers": ["x-session-id"], "fields": ["vllm_xargs.agentic_context.program_id", "user"]}

    assert LabelsSpec(**keys) == load(tmp_path, kind, keys).labels  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ("session", "labels: kind 'session' needs `headers` or `fields` that get the id, for example `headers: [x-session-id]`"),
        ({"kind": "session", "headers": [], "fields": []}, "labels: kind 'session' needs `headers` or `fields`"),
        ({"kind": "session", "headers": [""]}, "labels.headers: '' is not a valid header"),
        ({"kind": "session", "headers": ["x session"]}, "labels.headers: 'x session' is not a valid header"),
        ({"kind": "session", "headers": ["Content-Length"]}, "labels.headers: 'content-length' cannot carry the id of a session"),
        ({"kind": "session", "headers": ["Authorization"]}, "labels.headers: 'authorization' cannot carry the id of a session"),
        ({"kind": "session", "fields": [""]}, "must be a field of the request body, with dots between nested names, not ''"),
        ({"kind": "session", "fields": ["a..b"]}, "must be a field of the request body, with dots between nested names, not 'a..b'"),
        ({"kind": "session", "fields": ["messages.0"]}, "must be a field of the request body"),
        ({"kind": "session", "fields": ["model"]}, "labels.fields: 'model' is a field that requests have anyway"),
        ({"kind": "session", "fields": ["a.b", "a"]}, "labels.fields: 'a' and 'a.b' cannot both be set"),
        ({"kind": "dynamo", "headers": ["x"]}, "`headers` and `fields` are keys of `kind: session`, not of 'dynamo'"),
        ({"fields": ["user"]}, "`headers` and `fields` are keys of `kind: session`, not of 'none'"),
    ],
)
@pytest.mark.parametrize("kind", KEYS)
def test_faulty_labels(tmp_path: Path, kind: str, labels: Any, sentence: str) -> None:
    """Missing, invalid and impossible places for a session's id are refused before anything starts."""
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load(tmp_path, kind, labels)
