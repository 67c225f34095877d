"""Sends a call to an engine and its answer to the client, each part as it arrives, and counts the tokens of the answer."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

#: Headers that concern one connection and are not passed on.
OWN = frozenset({"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"})

#: Headers of requests that are not passed on: aiohttp writes those that are needed for the body, which it has decompressed.
OF_REQUESTS = OWN | {"host", "expect", "content-length", "content-encoding"}

#: Headers that aiohttp would add to a request.
ADDED = ("accept", "accept-encoding", "content-type", "user-agent")

#: Errors that mean that an engine has not seen a call.
UNREACHABLE = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)

WORKER = "x-worker-id"  # header of an answer that names the engine

TAIL = 16_384  # bytes at the end of an answer in which `usage` is searched
USED = re.compile(rb'"(?:completion_tokens|output_tokens)"\s*:\s*(\d+)')
EVENT = b"data:"


class AnswerTokens:
    """Counts the output tokens of an answer while it passes: those in its `usage`, or else the events of a stream."""

    def __init__(self) -> None:
        self._tail = b""
        self._events = 0

    def take(self, data: bytes) -> None:
        """Takes the next part of an answer."""
        self._events += data.count(EVENT)
        self._tail = (self._tail + data)[-TAIL:]

    @property
    def count(self) -> int:
        """The number of tokens, or 0 if it is not known."""
        used = USED.findall(self._tail)
        return int(used[-1]) if used else self._events


class EngineCall:
    """One call at one engine. `status` is that of the engine's answer, and `is_broken` says whether the engine broke it off."""

    def __init__(self, http: aiohttp.ClientSession, request: web.Request, body: bytes) -> None:
        self._http, self._request, self._body = http, request, body
        self._begun: web.StreamResponse | None = None  # the answer to the client
        self.status: int | None = None
        self.tokens = AnswerTokens()
        self.is_broken = False

    async def forward(self, engine: str, id: str) -> web.StreamResponse | None:
        """Sends the call to an engine, and its answer to the client. Returns None if the engine gave no answer.

        Raises:
            UNREACHABLE: The engine has not seen the call.
        """
        url, headers = URL(f"{engine}{self._request.raw_path}", encoded=True), passed_on(self._request.headers, OF_REQUESTS)
        try:
            async with self._http.request(
                self._request.method, url, data=self._body, headers=headers, skip_auto_headers=ADDED, allow_redirects=False
            ) as answer:
                self.status = answer.status
                return await self._send(answer, id)
        except UNREACHABLE:
            raise
        except (aiohttp.ClientError, OSError):
            client = self._request.transport
            if client is None or client.is_closing():
                raise  # The client has disconnected.
            self.is_broken = True
            if self._begun is not None:
                client.abort()  # The client sees that its answer is not complete.
            return self._begun

    async def _send(self, answer: aiohttp.ClientResponse, id: str) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=passed_on(answer.headers, OWN))
        response.headers[WORKER] = id
        self._begun = response
        await response.prepare(self._request)
        async for data in answer.content.iter_any():
            self.tokens.take(data)
            await response.write(data)
        await response.write_eof()
        return response


def passed_on(headers: CIMultiDictProxy[str], without: Collection[str]) -> CIMultiDict[str]:
    """Returns the headers of a message without some, and without those that its header `connection` names."""
    named = {name.strip().lower() for name in headers.get("connection", "").split(",")}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in without and name.lower() not in named)


def read_body(data: bytes) -> Mapping[str, Any]:
    """Returns the JSON object in a request body, or an empty one. The engine answers what is wrong with a body."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) else {}


def error_response(status: int, message: str, kind: str = "router_error") -> web.Response:
    """Returns an error in the format of OpenAI's API."""
    body = {"error": {"message": f"router: {message}", "type": kind, "param": None, "code": status}}
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
