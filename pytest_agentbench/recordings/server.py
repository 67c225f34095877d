"""The HTTP server of a recording. It answers LLM calls with the recorded replies, and all others with 404."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from pytest_agentbench.lib import codec, json_text
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.recordings.recording import RecordedCall, Recording
from pytest_agentbench.recordings.streams import stream_events
from pytest_agentbench.recordings.tape import CallPlace, NotRecorded, Tape
from pytest_agentbench.records import NOT_RECORDED, Json, RolloutKey
from pytest_agentbench.runs.conversations import NotKept
from pytest_agentbench.tap.dialects import DIALECTS
from pytest_agentbench.tap.routing_hints import PLACE

LARGEST_BODY = 1 << 28  # bytes
AT_ONCE, RECORDED = "at_once", "recorded"
STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class Player:
    """Answers HTTP requests with recorded replies. `pace` is `at_once`, or `recorded` to keep the recorded time of each reply."""

    def __init__(self, recording: Recording, model: str, pace: str = AT_ONCE, command: str = "", run: str = "") -> None:
        """`model` is the name of the recorded model, `command` the command that made the recording (for messages), `run` the run's id."""
        self._recording, self._model, self._pace = recording, model, pace
        self._advice = f"; to record again, run `{command}`" if command else ""
        self._tape = Tape(recording, Redactor(), run)

    def application(self) -> web.Application:
        application = web.Application(client_max_size=LARGEST_BODY)
        application.router.add_get("/health", self._health)
        application.router.add_get("/v1/playback", self._playback)
        application.router.add_get("/v1/models", self._models)
        application.router.add_route("*", "/{path:.*}", self._answer)
        return application

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _playback(self, _: web.Request) -> web.Response:
        return _json(200, codec.plain(self._tape.playback))

    async def _models(self, _: web.Request) -> web.Response:
        names = [self._model, *sorted(self._tape.models - {self._model})]
        return _json(200, {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "recording"} for name in names]})

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        begun = asyncio.get_running_loop().time()
        path, body = http.path_qs.removeprefix("/v1"), json_text.json_object(await http.read())
        if http.method != "POST" or http.path.removeprefix("/v1") not in DIALECTS or body is None:
            return _refusal(f"a recording answers only LLM calls, and not {http.method} {http.path}")
        try:
            call = self._tape.find(path, body, _place(http))
            reply = self._recording.reply(call)
        except NotRecorded as error:
            return _refusal(f"{error}{self._advice}")
        except NotKept as error:
            return _refusal(f"the request was recorded, but its reply was not: {error}{self._advice}")
        if call.status != 200:
            await self._wait(begun + call.end_s)
            return _failure(call, reply)
        if body.get("stream"):
            return await self._stream(http, call, reply, body, begun)
        await self._wait(begun + call.end_s)
        return _json(200, reply)

    async def _stream(self, http: web.Request, call: RecordedCall, reply: Any, body: Json, begun: float) -> web.StreamResponse:
        pieces = max(1, call.pieces) if self._pace == RECORDED else 1
        events = [*stream_events(http.path.removeprefix("/v1"), reply, body, pieces)]
        response = web.StreamResponse(headers=STREAM_HEADERS)
        await response.prepare(http)
        step = (call.end_s - call.first_s) / max(1, len(events) - 1)
        for number, event in enumerate(events):
            await self._wait(begun + call.first_s + number * step)
            await response.write(event)
        return response

    async def _wait(self, until: float) -> None:
        if self._pace == RECORDED:
            await asyncio.sleep(max(0.0, until - asyncio.get_running_loop().time()))


def _place(http: web.Request) -> CallPlace | None:
    """Returns the rollout and role that make a request, from the header that the tap adds. Returns None without that header."""
    if (text := http.headers.get(PLACE)) is None:
        return None
    suite, scenario, variant, trial, role = json.loads(text)
    return CallPlace(RolloutKey(suite, scenario, variant, trial), role)


def _json(status: int, value: Any, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=json_text.dumps(value), content_type="application/json", headers=headers)


def _failure(call: RecordedCall, reply: Any) -> web.Response:
    """Returns the HTTP response to a recorded call that the backend answered with an error."""
    headers = {} if call.retry_after_s is None else {"Retry-After": f"{call.retry_after_s:g}"}
    if isinstance(reply, str):
        return web.Response(status=call.status, text=reply, headers=headers)
    return _json(call.status, reply, headers)


def _refusal(message: str) -> web.Response:
    """Returns a 404 in a form that clients of all APIs understand."""
    return _json(404, {"type": "error", "error": {"message": message, "type": NOT_RECORDED, "param": None, "code": NOT_RECORDED}})
