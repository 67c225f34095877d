"""Templates that become several words of a command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.stack.instances import Factory, instances_of
from pytest_agentbench.backends.stack.spec import dependencies
from pytest_agentbench.backends.stack.templates import expand, expand_words
from pytest_agentbench.errors import ConfigError
from tests.backends.stack.test_spec import ENGINE, fault, load

VALUES = {"engine.urls": "http://a:1,http://a:2", "flags": "", "port": "8000"}


@pytest.mark.parametrize(
    ("words", "expanded"),
    [
        (["serve", "{engine.urls*}", "--port", "{port}"], ["serve", "http://a:1", "http://a:2", "--port", "8000"]),
        (["serve", "{flags*}", "{flags}"], ["serve", ""]),
        (["{port*}", "{engine.urls}"], ["8000", "http://a:1,http://a:2"]),
        (["{engine.urls *}", "{*}"], ["{engine.urls *}", "{*}"]),
    ],
)
def test_words(words: list[str], expanded: list[str]) -> None:
    """A word that is one template with a star becomes the parts between the commas, and an empty value becomes no word."""
    assert expanded == expand_words(words, VALUES, "x")


@pytest.mark.parametrize("text", ["--urls={engine.urls*}", "{engine.urls*} ", "{port}{engine.urls*}"])
def test_a_star_inside_a_text(text: str) -> None:
    """A star in a word with other text is refused, because several words cannot be there."""
    sentence = (
        f"services.x: {{engine.urls*}} becomes several words, so it has to be a word of its own in `run` or `entrypoint`, not {text!r}"
    )
    for refused in (lambda: expand_words([text], VALUES, "services.x"), lambda: expand(text, VALUES, "services.x")):
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            refused()


def test_an_unknown_list() -> None:
    """An unknown name is an error that lists the known ones, also with a star."""
    with pytest.raises(ConfigError, match=r"^x: \{engin.urls\} is unknown; known: \{engine.urls\}, \{flags\}, \{port\}$"):
        expand_words(["{engin.urls*}"], VALUES, "x")


def test_a_router_before_replicas(tmp_path: Path) -> None:
    """A router gets the URL of each engine as a word, and starts after the engines."""
    router: dict[str, Any] = {"run": ["route", "--worker-urls", "{engine.urls*}", "--policy", "{policy}"]}
    spec = load(tmp_path, services={"engine": {**ENGINE, "replicas": 3}, "router": router}, settings={"policy": "round_robin"})
    ports = iter(range(9001, 9005))
    instances = instances_of(spec, tmp_path, lambda: next(ports))
    command = Factory(spec, tmp_path, instances).command(instances[-1])

    assert ["route", "--worker-urls", *(f"http://127.0.0.1:{port}" for port in (9001, 9002, 9003)), "--policy", "round_robin"] == command
    assert {"engine"} == dependencies(spec)["router"]


def test_metrics_of_all_services(tmp_path: Path) -> None:
    """A service for monitoring gets the metrics of each replica as a word, and waits for none of them."""
    engine = {**ENGINE, "replicas": 2, "ports": ["system"], "metrics": {"port": "system"}}
    router = {"run": ["route"], "metrics": "/numbers"}
    services = {"watch": {"run": ["watch", "{metrics*}"]}, "engine": engine, "router": router}
    spec = load(tmp_path, services=services)
    ports = iter(range(9001, 9010))
    instances = instances_of(spec, tmp_path, lambda: next(ports))
    command = Factory(spec, tmp_path, instances).command(instances[0])

    expected = [
        "engine/0=http://127.0.0.1:9003/metrics",
        "engine/1=http://127.0.0.1:9005/metrics",
        "router/0=http://127.0.0.1:9006/numbers",
    ]
    assert ["watch", *expected] == command
    assert set() == dependencies(spec)["watch"]


@pytest.mark.parametrize(
    "router",
    [
        {"run": ["route", "--worker-urls={engine.urls*}"]},
        {"run": ["route"], "env": {"URLS": "{engine.urls*}"}},
        {"run": ["route"], "ready": {"http": "{engine.urls*}"}},
        {"image": "x", "container": {"entrypoint": ["sh {engine.urls*}"]}},
    ],
)
def test_a_star_in_the_wrong_place(tmp_path: Path, router: dict[str, Any]) -> None:
    """A list where only one text can be is refused when the YAML is read."""
    assert fault(tmp_path, services={"engine": ENGINE, "router": router}).startswith(
        "services.router: {engine.urls*} becomes several words, so it has to be a word of its own"
    )
