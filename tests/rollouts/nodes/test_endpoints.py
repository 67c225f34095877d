"""Endpoints reach nodes without secrets in clear, with their certificate authority, and with a share of the rate limit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import codec
from pytest_agentbench.records import Endpoint
from pytest_agentbench.rollouts.nodes.endpoints import for_nodes, loopback_problem, on_node, secrets_problem
from pytest_agentbench.suites.suite import PoolSuite

KEYED = Endpoint("http://gpu:8000/v1", "m", "ours", api_key="hush-hush", api_key_env="OUR_KEY", requests_per_minute=90)
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def test_secrets_in_clear(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A message that others can read does not contain the key. The node reads it from the variable of the same name."""
    message = for_nodes(KEYED, 3, in_clear=True)
    monkeypatch.setenv("OUR_KEY", "of the node\n")

    assert "hush" not in json.dumps(codec.plain(message))
    assert replace(KEYED, api_key="of the node", requests_per_minute=30) == on_node(message, tmp_path, "n1")


def test_secrets_over_tls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Over an encrypted connection, or within one machine, the key is sent, and the environment of the node is not read."""
    monkeypatch.setenv("OUR_KEY", "of the node")
    message = for_nodes(replace(KEYED, headers={"x-team": "red"}), 1, in_clear=False)

    assert replace(KEYED, headers={"x-team": "red"}) == on_node(message, tmp_path, "n1")


def test_a_missing_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If the variable is not set or empty on the node, the error names node, backend and variable."""
    monkeypatch.delenv("OUR_KEY", raising=False)
    match = "the node n1 needs the key of the backend 'ours' in the environment variable OUR_KEY, which is not set there"
    with pytest.raises(ConfigError, match=match):
        on_node(for_nodes(KEYED, 1, in_clear=True), tmp_path, "n1")
    monkeypatch.setenv("OUR_KEY", " ")
    with pytest.raises(ConfigError, match=match):
        on_node(for_nodes(KEYED, 1, in_clear=True), tmp_path, "n1")


@pytest.mark.parametrize(
    ("endpoint", "what"),
    [
        (replace(KEYED, headers={"X-Team": "red", "authorization": "Basic hush"}), r"has headers \(X-Team, authorization\), whose values"),
        (replace(KEYED, api_key_env=None), "has an API key that is not in an environment variable"),
    ],
)
def test_secrets_without_a_variable(endpoint: Endpoint, what: str) -> None:
    """Secrets that a node cannot read from its environment are refused in clear. The sentence says what would work, and not the secret."""
    with pytest.raises(ConfigError, match=rf"{what}.*--agentbench-nodes-tls=CERT:KEY, or .* `api_key_env`") as error:
        for_nodes(endpoint, 1, in_clear=True)

    assert str(error.value) == secrets_problem(endpoint)
    assert "hush" not in str(error.value)
    assert "" == secrets_problem(KEYED)


def test_the_certificate_authority(tmp_path: Path) -> None:
    """The certificates of a `ca_file` travel and become a file on the node. A private key in the same file does not travel."""
    file = tmp_path / "ca.pem"
    key = "-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----\n"
    file.write_text(f"# ours\n{PEM}{key}{PEM}")
    message = for_nodes(replace(KEYED, ca_file=str(file)), 1, in_clear=False)
    file.unlink()
    there = on_node(message, tmp_path, "n1").ca_file

    assert "hush\n" not in str(message)
    assert there is not None
    assert f"{PEM}\n{PEM}" == Path(there).read_text()
    assert there == on_node(message, tmp_path, "n1").ca_file


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), ("hello", "contains no certificate; it must be a PEM file")])
def test_a_wrong_certificate_authority(tmp_path: Path, content: str | None, why: str) -> None:
    """A `ca_file` that does not exist or has no certificate is an error on the controller, before a node gets it."""
    file = tmp_path / "ca.pem"
    if content:
        file.write_text(content)
    with pytest.raises(ConfigError, match=f"ca_file .*/ca.pem .*{why}"):
        for_nodes(replace(KEYED, ca_file=str(file)), 1, in_clear=False)


def test_without_a_rate_limit() -> None:
    """An endpoint without a rate limit has none on the nodes."""
    assert for_nodes(replace(KEYED, requests_per_minute=None), 2, in_clear=False).requests_per_minute is None


@pytest.mark.parametrize(
    ("url", "is_local"),
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://127.8.0.1/v1", True),
        ("https://localhost/v1", True),
        ("http://[::1]:80/v1", True),
        ("http://0.0.0.0:80/v1", True),
        ("http://10.0.0.1:80/v1", False),
        ("https://localhost.example.com/v1", False),
        ("https://gpu/v1", False),
    ],
)
def test_loopback(url: str, is_local: bool) -> None:
    """A sentence names an address of the backend, of a role, or in a suite that only this machine reaches."""
    suite = PoolSuite("hle", Path(), (), {"kind": "orchestrator", "retriever": url}, {"v": {"tools": [{"url": url}]}})
    role = replace(KEYED, roles={"judge": {"url": url, "model": "j"}})
    problems = [loopback_problem(replace(KEYED, url=url)), loopback_problem(role), loopback_problem(KEYED, [suite])]

    assert [is_local] * 3 == [f" has the address {url}: node workers on other" in problem for problem in problems]
    assert [is_local] * 3 == [*map(bool, problems)]
