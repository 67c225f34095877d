"""HTTP messages: their heads as the tap writes them, requests of agents, which of these are relayed, and broken tool calls in them.

What is on the list of routes is an LLM call, which is measured, or one of a few requests besides that ask nothing of the model. Servers,
and routers before them, read a path each in its own way: decoded, without its last slash, `//` as `/`, dots resolved, whatever its case.
So what is relayed is on a list and written as it is there; all else is refused, or a call could reach the model unmeasured.

A tool call that a request repeats is broken if its arguments are not a JSON object; servers refuse to read it.
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

#: What the name and the value of a header may be (RFC 9110, 5.1 and 5.5).
NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
VALUE = re.compile(r"[\t -~\xa0-\xff]*")

TAP_ERROR_TYPE = "agentbench_tap"  # the type of errors that no backend has said

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


def encode_headers(headers: Mapping[str, str]) -> Headers:
    """Headers as they are sent, names in lower case; raises ValueError for what cannot be one."""
    if wrong := [name for name, value in headers.items() if not (NAME.fullmatch(name) and VALUE.fullmatch(value))]:
        raise ValueError(f"{wrong[0]!r} is no header")
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


def error_body(status: int, message: str, code: str | None) -> bytes:
    """An error in OpenAI's shape; `type` and `note` say that it is the tap's, and so is the status."""
    note = f"the status {status} is of agentbench's tap, not of the backend"
    return json_text.dumps({"error": {"message": message, "type": TAP_ERROR_TYPE, "code": code, "note": note}})


def _head(first: bytes, headers: Headers) -> bytes:
    return b"\r\n".join((first, *(b"%b: %b" % header for header in headers), b"\r\n"))


CALLED = b"x-agentbench-called-ns"
UPGRADE = b"x-agentbench-stream-upgrade"


@dataclass
class Request:
    """A complete request of an agent."""

    method: bytes
    path: str  # behind the token, e.g. /chat/completions?x=1
    headers: Headers
    body: bytes
    received_ns: int = field(default_factory=time.monotonic_ns)

    @property
    def route(self) -> str:
        return self.path.partition("?")[0]

    @property
    def dialect(self) -> Dialect | None:
        """Of an LLM call; None of any other request, which is relayed and not recorded."""
        return DIALECTS.get(self.route) if self.method == b"POST" else None

    @property
    def called_ns(self) -> int | None:
        """When the agent made the call, if it says so and can be believed."""
        called = header(self.headers, CALLED)
        return int(called) if called.isdigit() and len(called) < 20 and int(called) <= self.received_ns else None

    def wants_upgrade(self, of_token: bool | None) -> bool:
        """Whether an answer that is to come whole may travel as a stream; what the rollout's token says counts more."""
        return header(self.headers, UPGRADE) == b"yes" if of_token is None else of_token


#: What a GET or HEAD may begin with, and go on with as it likes: models, and answers that are still being made.
READABLE = ("models", "responses")

#: What a POST may ask that is no call.
UNMEASURED = (
    *("/embeddings", "/rerank", "/score", "/classify", "/pooling", "/moderations"),
    *("/tokenize", "/detokenize", "/messages/count_tokens", "/responses/input_tokens"),
)


def split_target(target: str) -> tuple[str, str]:
    """(token, path behind it without /v1) of /r/TOKEN/v1/chat/completions; an empty token for any other path."""
    parts = target.split("/", 3)
    if len(parts) < 4 or parts[0] or parts[1] != "r":
        return "", target
    rest = "/" + parts[3]
    return parts[2], rest[3:] if rest[:4] in ("/v1", "/v1/", "/v1?") else rest


def refusal(method: bytes, route: str) -> tuple[int, str] | None:
    """(HTTP status, sentence) for a request that is not relayed; `route` is its path behind the address, without a query."""
    if method == b"POST" and (route in DIALECTS or route in UNMEASURED):
        return None
    if method in (b"GET", b"HEAD") and _is_read(route):
        return None
    status = 405 if route in DIALECTS or route in UNMEASURED or _is_read(route) else 404
    known = f"POST {', '.join(DIALECTS)} are LLM calls, written exactly so; besides, GET /models and POST {', '.join(UNMEASURED)} pass"
    request = f"{method.decode()} {beginning(route, 200)}"
    return status, f"{request} is not relayed, because it would not be measured: behind OPENAI_BASE_URL, {known}"


def refusal_record(request: Request, sentence: str, kind: str = "refused") -> LLMCall:
    """The record of a request that is not relayed."""
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


#: Statuses with which servers refuse what a request says.
REFUSALS = frozenset({400, 422})


def holds_broken_arguments(body: bytes) -> bool:
    """Whether a request of any dialect gives back tool calls whose arguments are no JSON object."""
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
