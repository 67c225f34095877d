"""Heads of HTTP messages as the tap writes them: what belongs to one connection ends there."""

from __future__ import annotations

import re
from http import HTTPStatus

from pytest_agentbench.tap import jsontext

Headers = list[tuple[bytes, bytes]]

JSON_TYPE = (b"content-type", b"application/json")

#: Headers that concern one connection only (RFC 9110, 7.6.1).
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding upgrade".split()
)

#: Headers of a request that the tap writes itself, or keeps to itself.
_OWN = frozenset(
    b"host content-length accept-encoding authorization expect x-api-key http2-settings "
    b"x-agentbench-called-ns x-agentbench-stream-upgrade".split()
)

_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


def header(headers: Headers, name: bytes) -> bytes:
    """The first value of a header, whose name is given in lower case; empty without one."""
    return next((value for each, value in headers if each.lower() == name), b"")


def end_to_end(headers: Headers, without: frozenset[bytes] = frozenset()) -> Headers:
    """The headers that travel on: neither those of the connection, nor those that it names."""
    dropped = without | _HOP_BY_HOP | set(re.split(rb"[\s,]+", header(headers, b"connection").lower()))
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def request_head(method: bytes, target: str, headers: Headers, own: Headers) -> bytes:
    """The head of a request as the backend gets it; `own` are the tap's headers."""
    return _head(b"%b %b HTTP/1.1" % (method, target.encode()), [*own, *end_to_end(headers, _OWN)])


def response_head(status: int, headers: Headers) -> bytes:
    return _head(b"HTTP/1.1 %d %b" % (status, _PHRASES.get(status, b"")), headers)


def error_body(message: str, code: str | None) -> bytes:
    """An error in OpenAI's shape; `type` says that it is the tap's."""
    return jsontext.dumps({"error": {"message": message, "type": "agentbench_tap", "code": code}})


def _head(first: bytes, headers: Headers) -> bytes:
    return b"\r\n".join((first, *(b"%b: %b" % header for header in headers), b"\r\n"))
