"""Heads of HTTP messages as the tap writes them: what belongs to one connection ends there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from http import HTTPStatus

from pytest_agentbench.lib import json_text

Headers = list[tuple[bytes, bytes]]

#: What the name and the value of a header may be (RFC 9110, 5.1 and 5.5).
NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
VALUE = re.compile(r"[\t -~\xa0-\xff]*")

OURS = "agentbench_tap"  # the type of errors that no backend has said

JSON_TYPE = (b"content-type", b"application/json")

#: Headers that concern one connection only (RFC 9110, 7.6.1).
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding upgrade".split()
)

#: Headers of a request that the tap writes itself, or keeps to itself.
OWN = frozenset(
    b"host content-length accept-encoding authorization expect x-api-key http2-settings "
    b"x-agentbench-called-ns x-agentbench-stream-upgrade".split()
)

#: Headers that nobody but the tap can know.
FRAMING = _HOP_BY_HOP | frozenset(b"host content-length accept-encoding expect".split())

_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


def header(headers: Headers, name: bytes) -> bytes:
    """The first value of a header, whose name is given in lower case; empty without one."""
    return next((value for each, value in headers if each.lower() == name), b"")


def end_to_end(headers: Headers, without: AbstractSet[bytes] = frozenset()) -> Headers:
    """The headers that travel on: neither those of the connection, nor those that it names."""
    dropped = without | _HOP_BY_HOP | set(re.split(rb"[\s,]+", header(headers, b"connection").lower()))
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def request_head(method: bytes, target: str, headers: Headers) -> bytes:
    return _head(b"%b %b HTTP/1.1" % (method, target.encode()), headers)


def response_head(status: int, headers: Headers) -> bytes:
    return _head(b"HTTP/1.1 %d %b" % (status, _PHRASES.get(status, b"")), headers)


def written(headers: Mapping[str, str]) -> Headers:
    """Headers as they are sent, names in lower case; raises ValueError for what cannot be one."""
    if wrong := [name for name, value in headers.items() if not (NAME.fullmatch(name) and VALUE.fullmatch(value))]:
        raise ValueError(f"{wrong[0]!r} is no header")
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


def error_body(status: int, message: str, code: str | None) -> bytes:
    """An error in OpenAI's shape; `type` and `note` say that it is the tap's, and so is the status."""
    note = f"the status {status} is of agentbench's tap, not of the backend"
    return json_text.dumps({"error": {"message": message, "type": OURS, "code": code, "note": note}})


def _head(first: bytes, headers: Headers) -> bytes:
    return b"\r\n".join((first, *(b"%b: %b" % header for header in headers), b"\r\n"))
