"""HTTP messages: the heads that the tap writes, requests of agents, the routes that are forwarded, and broken tool calls in requests.

A request is forwarded if its route is in a list: LLM calls, which are measured, and a few routes that generate no text. Servers and
routers interpret paths in different ways: percent-decoded, without the last slash, `//` as `/`, dots resolved, in any case. So a path must
be written exactly as in the list. Any other path is refused, because it could be an LLM call that is not measured.

A tool call in the history of a request is broken if its arguments are not a JSON object. Servers refuse such requests.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.records import Json, LLMCall
from pytest_agentbench.tap.dialects import DIALECTS, Dialect

Headers = list[tuple[bytes, bytes]]

#: Valid names and values of headers (RFC 9110, 5.1 and 5.5).
NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
VALUE = re.compile(r"[\t -~\xa0-\xff]*")

TAP_ERROR_TYPE = "agentbench_tap"  # `type` of errors that come from the tap, not from the backend

JSON_TYPE = (b"content-type", b"application/json")

#: Headers that concern one connection only (RFC 9110, 7.6.1).
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding upgrade".split()
)

#: Headers of agents' requests that are not forwarded, because the tap writes them itself or they are meant for the tap.
OWN = frozenset(
    b"host content-length accept-encoding authorization expect x-api-key http2-settings "
    b"x-agentbench-called-ns x-agentbench-stream-upgrade".split()
)

#: Headers that only the tap can set, because they depend on its connection to the backend.
FRAMING = _HOP_BY_HOP | frozenset(b"host content-length accept-encoding expect".split())

_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


def header(headers: Headers, name: bytes) -> bytes:
    """Returns the first value of a header, or b"" without one. `name` must be in lower case."""
    return next((value for each, value in headers if each.lower() == name), b"")


def end_to_end(headers: Headers, without: AbstractSet[bytes] = frozenset()) -> Headers:
    """Returns the headers that are forwarded: without hop-by-hop headers, those that `Connection` names, and those in `without`."""
    dropped = without | _HOP_BY_HOP | set(re.split(rb"[\s,]+", header(headers, b"connection").lower()))
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def request_head(method: bytes, target: str, headers: Headers) -> bytes:
    return _head(b"%b %b HTTP/1.1" % (method, target.encode()), headers)


def response_head(status: int, headers: Headers) -> bytes:
    return _head(b"HTTP/1.1 %d %b" % (status, _PHRASES.get(status, b"")), headers)


def encode_headers(headers: Mapping[str, str]) -> Headers:
    """Returns headers as they are sent, with names in lower case. Raises ValueError for an invalid header."""
    if wrong := [name for name, value in headers.items() if not (NAME.fullmatch(name) and VALUE.fullmatch(value))]:
        raise ValueError(f"{wrong[0]!r} is not a valid header: its name or value has characters that HTTP does not allow")
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


def error_body(status: int, message: str, code: str | None) -> bytes:
    """Returns an error in OpenAI's format. Its `type` and `note` say that the error and the status come from the tap."""
    note = f"the status {status} comes from agentbench's tap, not from the backend"
    return json_text.dumps({"error": {"message": message, "type": TAP_ERROR_TYPE, "code": code, "note": note}})


def _head(first: bytes, headers: Headers) -> bytes:
    return b"\r\n".join((first, *(b"%b: %b" % header for header in headers), b"\r\n"))


CALLED = b"x-agentbench-called-ns"
UPGRADE = b"x-agentbench-stream-upgrade"


@dataclass
class Request:
    """A complete request of an agent."""

    method: bytes
    path: str  # the part after the token, for example /chat/completions?x=1
    headers: Headers
    body: bytes
    received_ns: int = field(default_factory=time.monotonic_ns)

    @property
    def route(self) -> str:
        return self.path.partition("?")[0]

    @property
    def dialect(self) -> Dialect | None:
        """The API of an LLM call, or None for other requests, which are forwarded but not recorded."""
        return DIALECTS.get(self.route) if self.method == b"POST" else None

    @property
    def called_ns(self) -> int | None:
        """The time at which the agent made the call, in monotonic nanoseconds, or None if it sent no plausible time."""
        called = header(self.headers, CALLED)
        return int(called) if called.isdigit() and len(called) < 20 and int(called) <= self.received_ns else None

    def wants_upgrade(self, of_token: bool | None) -> bool:
        """Returns whether the tap may request a stream for a call that requests none.

        The setting that the pool made for the rollout (`of_token`) decides. If it is None, the request's header
        `x-agentbench-stream-upgrade` decides.
        """
        return header(self.headers, UPGRADE) == b"yes" if of_token is None else of_token


#: First path segments that GET and HEAD requests may have, with any segments after them: models, and answers that are still being made.
READABLE = ("models", "responses")

#: Routes of POST requests that are forwarded although they are not LLM calls.
UNMEASURED = (
    *("/embeddings", "/rerank", "/score", "/classify", "/pooling", "/moderations"),
    *("/tokenize", "/detokenize", "/messages/count_tokens", "/responses/input_tokens"),
)


def split_target(target: str) -> tuple[str, str]:
    """Splits a path such as /r/TOKEN/v1/chat/completions into TOKEN and the rest without /v1. Other paths have an empty token."""
    parts = target.split("/", 3)
    if len(parts) < 4 or parts[0] or parts[1] != "r":
        return "", target
    rest = "/" + parts[3]
    return parts[2], rest[3:] if rest[:4] in ("/v1", "/v1/", "/v1?") else rest


def refusal(method: bytes, route: str) -> tuple[int, str] | None:
    """Returns the HTTP status and a sentence for a request that is not forwarded, or None if it is.

    `route` is the path below the rollout's address, without the query.
    """
    if method == b"POST" and (route in DIALECTS or route in UNMEASURED):
        return None
    if method in (b"GET", b"HEAD") and _is_read(route):
        return None
    status = 405 if route in DIALECTS or route in UNMEASURED or _is_read(route) else 404
    known = f"LLM calls (POST {', '.join(DIALECTS)}, written exactly so), GET /models and POST {', '.join(UNMEASURED)}"
    request = f"{method.decode()} {beginning(route, 200)}"
    return status, f"{request} is not forwarded, because it would not be measured. Below OPENAI_BASE_URL, the tap forwards {known}"


def refusal_record(request: Request, sentence: str, kind: str = "refused") -> LLMCall:
    """Returns the record (an LLMCall with an error) of a request that the tap does not forward. `sentence` is the reason."""
    return LLMCall(
        received_ns=request.received_ns,
        sent_ns=None,
        ended_ns=time.monotonic_ns(),
        called_ns=request.called_ns,
        dialect=DIALECTS[request.route].name if request.route in DIALECTS else "",
        request_bytes=len(request.body),
        request_crc=zlib.crc32(request.body),
        error_kind=kind,
        error=sentence,
    )


def _is_read(route: str) -> bool:
    first, *others = unquote(route).split("/")[1:] or [""]
    return first in READABLE and route.startswith(f"/{first}") and not {"", ".", ".."}.intersection(others)


#: Statuses with which servers reject the content of a request.
REFUSALS = frozenset({400, 422})


def holds_broken_arguments(body: bytes) -> bool:
    """Returns whether the history of a request, in any API, has a tool call whose arguments are not a JSON object."""
    return not all(map(_is_object, _arguments(json_text.json_object(body) or {})))


def _arguments(request: Json) -> Iterator[Any]:
    for message in (*_objects(request.get("messages")), *_objects(request.get("input"))):
        if message.get("type") == "function_call":  # Responses
            yield message.get("arguments")
        if message.get("role") != "assistant":
            continue
        functions = [*_objects([call.get("function") for call in _objects(message.get("tool_calls"))])]
        yield from (function.get("arguments") for function in (*functions, *_objects([message.get("function_call")])))  # Chat Completions
        yield from (block.get("input") for block in _objects(message.get("content")) if block.get("type") == "tool_use")  # Messages


def _objects(value: Any) -> Iterator[Json]:
    return (each for each in value if isinstance(each, dict)) if isinstance(value, list) else iter(())


def _is_object(arguments: Any) -> bool:
    if isinstance(arguments, str):
        return json_text.json_object(arguments.encode(errors="surrogatepass")) is not None
    return isinstance(arguments, dict)
