"""Backends of which each node worker boots a copy: `placement: per-node`."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from pytest_agentbench.backends.ab import Arms
from pytest_agentbench.backends.per_node import NOWHERE, OnNodes, refuse_placement
from pytest_agentbench.backends.spec import SessionTerms, load_backend
from pytest_agentbench.errors import ConfigError
from pytest_agentbench.suites.arms import parse_arms


def on_nodes(root: Path, **keys: object) -> OnNodes:
    """Returns what a session has in place of the backend `mine`, whose YAML is written."""
    file = root / "backends/mine.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"kind": "embedded", "placement": "per-node", **keys}))
    terms = SessionTerms()
    spec = load_backend("mine", root)
    return OnNodes(spec.make(terms), spec.model, "mine", (), terms)


def test_the_session_boots_nothing(tmp_path: Path) -> None:
    """In the session, nothing starts. The backend has the name, the thresholds and the identity of the YAML, and an address of nobody."""
    backend = on_nodes(tmp_path, thresholds={"shop": {"tsq": 0.5}})
    watching = threading.Thread(target=backend.watch, args=(lambda _: True,))

    assert ("mine", {"shop": {"tsq": 0.5}}) == (backend.name, backend.thresholds)
    assert NOWHERE == backend.start(tmp_path).url
    assert {} == backend.processes
    watching.start()
    backend.stop()
    watching.join(10)
    assert not watching.is_alive()


def test_the_copy_of_a_node(tmp_path: Path) -> None:
    """A node boots the backend from its own YAML. Other settings, or no YAML, are refused in a sentence that names both sides."""
    backend = on_nodes(tmp_path).node_backend
    there, empty = tmp_path / "there", tmp_path / "empty"
    for folder in (there, empty):
        folder.mkdir()
    on_nodes(there, seed=7)

    assert "mine" == backend.make(tmp_path, "n1").name
    with pytest.raises(ConfigError, match=rf"the backend 'mine' of the node n1 \(in {there}\) has other settings than that of the session"):
        backend.make(there, "n1")
    with pytest.raises(ConfigError, match="no backend 'mine'"):
        backend.make(empty, "n1")


def test_sessions_that_cannot_use_it(tmp_path: Path) -> None:
    """Without node workers, with arms that are backends, and with another cache policy, it is refused."""
    backend, arms = on_nodes(tmp_path), parse_arms("a=mine,b=mine")

    refuse_placement(backend, (), "carry", uses_nodes=True)
    with pytest.raises(ConfigError, match="it needs node workers; add --agentbench-nodes=local:N"):
        refuse_placement(backend, (), "carry", uses_nodes=False)
    with pytest.raises(ConfigError, match="a and b need another backend each"):
        refuse_placement(Arms({"a": lambda: backend, "b": lambda: backend}), arms, "carry", uses_nodes=True)
    with pytest.raises(ConfigError, match="--agentbench-cache=cold changes the cache of one backend"):
        refuse_placement(backend, (), "cold", uses_nodes=True)
