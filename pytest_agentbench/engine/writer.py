"""Puts an answer on the wire, streamed or whole, with the faults that a script asks for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

from aiohttp import web

from pytest_agentbench.engine.chat import ApiError
from pytest_agentbench.engine.faults import split_characters, spoil_body
from pytest_agentbench.engine.protocol import Delivery

SPLIT_GAP = 0.002  # seconds between the parts of a character, so that they arrive apart
STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


async def send_stream(http: web.Request, delivery: Delivery, due: AsyncIterator[bytes]) -> web.StreamResponse:
    """Sends what `due` yields as soon as it yields it."""
    response = web.StreamResponse(headers=STREAM_HEADERS)
    await response.prepare(http)
    async for data in due:
        if delivery.split_utf8:
            await _write_split(response, data)
        else:
            await response.write(data)
    if delivery.cut_after is not None:
        _cut(http)
    return response


async def send_whole(http: web.Request, delivery: Delivery, body: bytes, due: AsyncIterator[bytes]) -> web.StreamResponse:
    """Sends `body` when the last token of the streamed answer is due."""
    async for _ in due:
        pass
    spoilt = spoil_body(body, delivery)
    if delivery.cut_after is None and not delivery.split_utf8:
        return json_response(spoilt)
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(spoilt))})
    await response.prepare(http)
    await _write_split(response, spoilt if delivery.cut_after is None else spoilt[: len(spoilt) // 2])
    if delivery.cut_after is not None:
        _cut(http)
    return response


def json_response(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def error_response(delivery: Delivery, status: int) -> web.Response:
    response = json_response(ApiError(delivery.message, status=status).body(), status)
    if delivery.retry_after is not None:
        response.headers["Retry-After"] = str(math.ceil(delivery.retry_after))
    return response


async def _write_split(response: web.StreamResponse, data: bytes) -> None:
    for part in split_characters(data):
        await response.write(part)
        await asyncio.sleep(SPLIT_GAP)


def _cut(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.abort()
