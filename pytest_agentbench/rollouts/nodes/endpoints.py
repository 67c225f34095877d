"""Endpoints of a backend on their way to node workers: their secrets, their certificate authority, their share of a rate limit.

The pool sends `for_nodes`, and a node worker uses `on_node` of what it gets.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.json_text import texts_in
from pytest_agentbench.records import Endpoint
from pytest_agentbench.suites.suite import PoolSuite

TLS_OPTION = "--agentbench-nodes-tls=CERT:KEY"
CERTIFICATE = re.compile(r"-----BEGIN (?P<kind>(?:TRUSTED )?CERTIFICATE)-----[^-]+-----END (?P=kind)-----\n?")


def for_nodes(endpoint: Endpoint, nodes: int, *, in_clear: bool) -> Endpoint:
    """Returns an endpoint as it is sent to each of `nodes` node workers.

    `in_clear` says that others can read the connection: it is neither encrypted nor within this host. Raises ConfigError if secrets of the
    endpoint cannot be sent then, or if its certificate authority cannot be read.
    """
    endpoint = share_of(_with_authority(endpoint), nodes)
    return without_secrets(endpoint) if in_clear else endpoint


def on_node(endpoint: Endpoint, folder: Path, node: str) -> Endpoint:
    """Returns an endpoint from `for_nodes` as this node uses it. Writes its certificate authority to a file in `folder`.

    Raises ConfigError if its API key is not in the environment of the node.
    """
    endpoint = with_secrets(endpoint, node)
    if endpoint.ca_file is None:
        return endpoint
    file = folder / f"authority-{hashlib.sha256(endpoint.ca_file.encode()).hexdigest()[:16]}.pem"
    file.write_text(endpoint.ca_file)
    return replace(endpoint, ca_file=str(file))


def secrets_problem(endpoint: Endpoint) -> str:
    """Returns a sentence if an endpoint has secrets that a node worker cannot read from its own environment, else an empty text."""
    if endpoint.headers:
        what = f"headers ({', '.join(sorted(endpoint.headers))}), whose values may be secrets"
    elif endpoint.api_key and not endpoint.api_key_env:
        what = "an API key that is not in an environment variable"
    else:
        return ""
    return (
        f"the backend {endpoint.backend!r} has {what}, and the connections to node workers are not encrypted: encrypt them with "
        f"{TLS_OPTION}, or replace the secret in the backend's YAML by `api_key_env`, the name of a variable that is set on each node"
    )


def without_secrets(endpoint: Endpoint) -> Endpoint:
    """Returns an endpoint without its API key, for a connection that others can read. The name of the variable with the key stays.

    Raises ConfigError for secrets that a node cannot read from its own environment.
    """
    if problem := secrets_problem(endpoint):
        raise ConfigError(problem)
    return replace(endpoint, api_key=None)


def with_secrets(endpoint: Endpoint, node: str) -> Endpoint:
    """Returns an endpoint with its API key, which is read from the environment of this node if it was not sent.

    Raises ConfigError if the variable is not set.
    """
    if endpoint.api_key or not endpoint.api_key_env:
        return endpoint
    if not (key := os.environ.get(endpoint.api_key_env, "").strip()):
        raise ConfigError(
            f"the node {node} needs the key of the backend {endpoint.backend!r} in the environment variable {endpoint.api_key_env}, which "
            f"is not set there; set it where the node worker starts, or have it sent over encrypted connections ({TLS_OPTION})"
        )
    return replace(endpoint, api_key=key)


def share_of(endpoint: Endpoint, nodes: int) -> Endpoint:
    """Returns an endpoint with the share of its rate limit that each of `nodes` node workers may use."""
    rate = endpoint.requests_per_minute
    return endpoint if rate is None else replace(endpoint, requests_per_minute=rate / max(1, nodes))


def loopback_problem(endpoint: Endpoint, suites: Iterable[PoolSuite] = ()) -> str:
    """Returns a sentence if the backend, or a server that suites name, has an address that other machines do not reach, else nothing."""
    named = [("the backend", endpoint.url), *((f"the role {name}", url) for name, role in endpoint.roles.items() for url in _urls(role))]
    for suite in suites:
        settings = (suite.agent, suite.variants, suite.roles, suite.tools, suite.scorers)
        named += [(f"the suite {suite.name}", url) for url in dict.fromkeys(_urls(settings))]
    local = [f"{what} has the address {url}" for what, url in named if _is_of_this_host(url)]
    if not local:
        return ""
    return (
        f"{'; '.join(local)}: node workers on other machines do not reach it. Name the server by an address that they reach, for example "
        "with --agentbench-backend=URL; for a stack, set `host:` of its service"
    )


def _with_authority(endpoint: Endpoint) -> Endpoint:
    """Returns an endpoint whose `ca_file` is not the path, but the certificates in the file, without anything else that is there."""
    if endpoint.ca_file is None:
        return endpoint
    try:
        text = Path(endpoint.ca_file).read_text()
    except (OSError, ValueError) as error:
        raise ConfigError(f"ca_file {endpoint.ca_file} cannot be sent to node workers: {error}") from error
    if not (certificates := [match.group() for match in CERTIFICATE.finditer(text)]):
        raise ConfigError(f"ca_file {endpoint.ca_file} contains no certificate; it must be a PEM file")
    return replace(endpoint, ca_file="\n".join(certificates))


def _urls(settings: Any) -> Iterator[str]:
    return (text for text in texts_in(settings) if text.startswith(("http://", "https://")))


def _is_of_this_host(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or host.endswith(".localhost") or is_local_address(host)
    except ValueError:  # Not a URL
        return False


def is_local_address(host: str) -> bool:
    """Returns whether an address is one under which only this machine reaches itself. False for names of hosts."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def is_readable(writer: asyncio.StreamWriter) -> bool:
    """Returns whether others can read a connection: it is not encrypted, and it leads to another machine."""
    peer = writer.get_extra_info("peername")
    return writer.get_extra_info("ssl_object") is None and not (peer and is_local_address(peer[0]))
