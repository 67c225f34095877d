"""Reads the values of the options about node workers."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_agentbench.errors import ConfigError, did_you_mean
from pytest_agentbench.lib.connection_security import cert_and_key

LOCAL = "local"
MOST_NODES = 1024  # larger numbers are taken for typing errors


@dataclass(frozen=True)
class NodePlace:
    """Where a session starts node workers."""

    kind: str  # `local`: on this machine
    count: int  # number of node workers


def node_place(text: str) -> NodePlace:
    """Parses `local:N`. Raises ValueError with what the value should be."""
    kind, _, count = text.partition(":")
    if kind == LOCAL and count.isdecimal() and 1 <= int(count) <= MOST_NODES:
        return NodePlace(kind, int(count))
    hint = did_you_mean(kind, [LOCAL]) if kind != LOCAL else ""
    raise ValueError(f"{LOCAL}:N, which starts N node workers on this machine, with N from 1 to {MOST_NODES}{hint}")


def checked_place(text: str) -> str:
    """Returns the text if `node_place` accepts it. Raises ValueError as it does."""
    node_place(text)
    return text


def address(text: str) -> tuple[str, int | None]:
    """Parses HOST:PORT, or HOST alone. An IPv6 address with a port needs brackets: [::1]:7100."""
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port or (":" in host and not host.endswith("]")):
        return text.strip("[]"), None
    if not port.isdecimal() or not 0 <= int(port) < 65536 or not host:
        raise ValueError("HOST:PORT, such as 10.0.0.5:7100")
    return host.strip("[]"), int(port)


def listening_address(text: str) -> tuple[str, int]:
    """Parses HOST:PORT, of which the port may be missing: then any free one is used."""
    host, port = address(text)
    return host, port or 0


def certificate(text: str) -> tuple[str, str]:
    """Parses CERT:KEY, two files in PEM format. Raises ValueError if one is missing."""
    try:
        cert, key = cert_and_key(text)
        return str(cert), str(key)  # run.json has the options
    except ConfigError as error:
        raise ValueError(f"two PEM files, CERT:KEY ({error})") from error
