"""Reads the values of the options about node workers."""

from __future__ import annotations

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.connection_security import cert_and_key


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
