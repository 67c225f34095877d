"""A stack's YAML, and the expansion of its templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.backends.labels_spec import LabelsSpec
from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.backends.stack.registry import spec_hash
from pytest_agentbench.backends.stack.spec import MetricsSpec, StackSpec, dependencies
from pytest_agentbench.backends.stack.templates import expand
from pytest_agentbench.errors import ConfigError

ENGINE: dict[str, Any] = {"run": ["serve", "--port", "{port}"]}


def write(root: Path, name: str = "mine", **keys: Any) -> Path:
    file = root / "backends" / f"{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(keys))
    return file


def load(root: Path, **keys: Any) -> StackSpec:
    write(root, **keys)
    spec = load_backend("mine", root)
    assert isinstance(spec, StackSpec)
    return spec


def fault(root: Path, **keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(root, **keys)
    return str(caught.value).removeprefix(f"{root / 'backends' / 'mine.yaml'}: ")


def test_short_forms(tmp_path: Path) -> None:
    """A YAML with services is a stack. Numbers in commands become texts. Metrics may be a path, and labels a kind."""
    services = {"engine": {"run": ["serve", "--port", 8000], "metrics": "/metrics", "ports": ["system"], "env": {"DEPTH": 3}}}
    spec = load(tmp_path, services=services, labels="dynamo")
    engine = spec.services["engine"]

    assert ("stack", "engine", str(tmp_path / "backends")) == (spec.kind, spec.front, spec.here)
    assert (["serve", "--port", "8000"], {"DEPTH": "3"}, {"system": 0}) == (engine.run, engine.env, engine.ports)
    assert (MetricsSpec(), LabelsSpec(kind="dynamo")) == (engine.metrics, spec.labels)


def test_included_services(tmp_path: Path) -> None:
    """Services of included files come first. Equal names are refused, and so are keys other than services."""
    write(tmp_path, "retriever", services={"retriever": ENGINE})
    both = load(tmp_path, include="retriever.yaml", services={"engine": ENGINE})
    twice = fault(tmp_path, include=["retriever.yaml"], services={"retriever": ENGINE})
    write(tmp_path, "retriever", services={}, model="big")
    more = fault(tmp_path, include=["retriever.yaml"], services={"engine": ENGINE})

    assert ["retriever", "engine"] == list(both.services)
    assert "the service 'retriever' is defined twice, here or in an included file; rename one" == twice
    assert more.endswith("retriever.yaml: 'model' cannot be in a file that others include; only services can")


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"services": {}}, "services: must have at least 1 item"),
        ({"services": {"engine": {}}}, "services.engine: must have `run` (a command), `image` (a container) or `kubernetes` (a manifest)"),
        ({"services": {"Engine": ENGINE}}, "'Engine' cannot be a name here: small letters, digits, - and _"),
        ({"services": {"port": ENGINE}}, "'port' cannot be a name here"),
        ({"services": {"engine": ENGINE}, "settings": {"model": "x"}}, "'model' cannot be a name here"),
        ({"services": {"engine": ENGINE}, "endpoint": "front"}, "endpoint 'front' is not a service; services: engine"),
        ({"services": {"engine": {**ENGINE, "after": ["etcd"]}}}, "services.engine.after: 'etcd' is not a service; services: engine"),
        ({"services": {"engine": {**ENGINE, "gpus": [0, 1], "replicas": 2}}}, "services.engine: only a single replica can have a list"),
        ({"services": {"engine": {**ENGINE, "gpus": -1}}}, "services.engine: gpus must be a count (0 or more), or a list of GPUs"),
        ({"services": {"engine": {**ENGINE, "metrics": {"port": "system"}}}}, "services.engine: port 'system' is not a port of this"),
        ({"services": {"engine": {**ENGINE, "port": 8000, "replicas": 2}}}, "services.engine: only a single replica can have a fixed port"),
        (
            {"services": {"engine": {**ENGINE, "port": 8000}, "other": {**ENGINE, "ports": {"http": 8000}}}},
            "services.other: services.engine has port 8000, too; remove the numbers, and each gets a free one",
        ),
        (
            {"services": {"engine": {"run": ["serve", "{prot}"]}}},
            "services.engine: {prot} is unknown; known: {engine.host}, {engine.port}, {engine.url}",
        ),
        ({"services": {"engine": ENGINE}, "python": "{nowhere}"}, "services.engine: {nowhere} is unknown"),
        ({"services": {"engine": ENGINE}, "kv_events": "{run}/events"}, "kv_events: {run} is unknown; known: {run_dir}"),
        ({"services": {"a": {**ENGINE, "after": ["b"]}, "b": {**ENGINE, "after": ["a"]}}}, "these services wait for each other: a, b"),
        (
            {"services": {"engine": {**ENGINE, "gpu": 1}}},
            "unknown key 'services.engine.gpu' (did you mean 'gpus'?); known keys: run, image",
        ),
    ],
)
def test_faulty_stacks(tmp_path: Path, keys: dict[str, Any], sentence: str) -> None:
    """Each fault is one sentence with the key, the mistake and what is valid."""
    assert fault(tmp_path, **keys).startswith(sentence)


def test_needs_are_seen_in_templates() -> None:
    """A service depends on the services in its templates and in `after`."""
    services = {
        "front": {"run": ["front", "{engine.url}"], "after": ["etcd"]},
        "engine": {"run": ["engine", "{engine.port}", '{"a": {"etcd.url": 1}}']},
        "etcd": {"run": ["etcd"], "env": {"MODEL": "{model}"}},
    }

    assert {"front": {"engine", "etcd"}, "engine": set(), "etcd": set()} == dependencies(
        StackSpec.model_validate({"name": "x", "services": services})
    )


def test_templates() -> None:
    """Known templates are expanded. The error for an unknown one lists the known ones. Other braces stay."""
    values = {"port": "8000", "engine.url": "http://x", "max_model_len": "4096"}

    assert "8000 http://x 4096 {} {1} {{}}" == expand("{port} {engine.url} {max_model_len} {} {1} {{}}", values, "x.yaml")
    with pytest.raises(ConfigError, match=r"^x.yaml: \{prot\} is unknown; known: \{engine.url\}, \{max_model_len\}, \{port\}$"):
        expand("{prot}", values, "x.yaml")


TEXTS = st.text("ab {}:", max_size=4)


@given(st.recursive(st.none() | st.integers() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)))
def test_json_passes_unharmed(value: Any) -> None:
    """In the JSON of an option, only a name in braces is a template."""
    written = json.dumps({"option": value})
    names = dict.fromkeys(("a", "b", "aa", "ab", "ba", "bb", "aaa", "aab", "aba", "abb", "baa", "bab", "bba", "bbb"), "x")
    if not any(f"{{{name}}}" in written for name in names):
        assert written == expand(written, {}, "x.yaml")


def test_what_makes_another_stack() -> None:
    """The hash of a spec depends on its settings and on all that is started, but not on names and notes."""
    spec = StackSpec.model_validate({"name": "a", "services": {"engine": ENGINE}})

    assert spec_hash(spec) == spec_hash(spec.model_copy(update={"name": "b", "note": "other words", "warm_up": 3}))
    assert spec_hash(spec) != spec_hash(spec.model_copy(update={"settings": {"depth": 3}}))
