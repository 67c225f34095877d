"""The HTTP server of a recording. It answers LLM calls with the recorded replies, and all others with 404.

Streams are made of complete answers, in each API. The tap assembles the same answers from them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aiohttp import web

from pytest_agentbench.lib import codec, json_text
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.recordings.recording import RecordedCall, Recording
from pytest_agentbench.recordings.tape import CallPlace, NotRecorded, Tape
from pytest_agentbench.records import NOT_RECORDED, Json, RolloutKey
from pytest_agentbench.runs.conversations import NotKept
from pytest_agentbench.tap.dialects import DIALECTS
from pytest_agentbench.tap.routing_hints import PLACE

Events = Iterator[bytes]
DONE = b"data: [DONE]\n\n"

#: Fields of answers that contain the output.
_OUTPUT = ("choices", "output", "content")


def stream_events(route: str, reply: Any, request: Json, pieces: int = 1) -> Events:
    """Yields the server-sent events of an answer as bytes. The output is divided into about `pieces` events."""
    length = sum(map(len, _texts([reply.get(name) for name in _OUTPUT])))
    yield from _STREAMS[route](reply, request, max(1, -(-length // pieces)))


def _texts(value: Any) -> Iterator[str]:
    """Yields all strings in a JSON value, also in nested lists and objects, but no keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _slices(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


def _chat(reply: Json, request: Json, size: int) -> Events:
    def chunk(index: int, delta: Json, finish_reason: str | None = None, **rest: Any) -> bytes:
        return _data({**head, "choices": [{"index": index, "delta": delta, **rest, "finish_reason": finish_reason}]})

    head = {**_head(reply), "object": "chat.completion.chunk"}
    for place, choice in enumerate(reply["choices"]):
        index, message = choice.get("index", place), choice["message"]
        rest = {name: value for name, value in choice.items() if name not in ("index", "message", "finish_reason")}
        yield chunk(index, {name: value for name, value in message.items() if not isinstance(value, str | list | dict) or name == "role"})
        for name, value in message.items():
            if isinstance(value, str) and name != "role":
                yield from (chunk(index, {name: piece}) for piece in _slices(value, size) or [""])
            elif name == "tool_calls":
                for number, call in enumerate(value or ()):
                    yield from (chunk(index, {"tool_calls": [piece]}) for piece in _pieces_of_call({"index": number, **call}, size))
            elif isinstance(value, list | dict):
                yield chunk(index, {name: value})
        yield chunk(index, {}, choice.get("finish_reason"), **rest)
    yield from _usage(head, reply, request)


def _pieces_of_call(call: Json, size: int) -> Iterator[Json]:
    """Yields the parts of a tool call in the events of a stream: the first has its id and its name, the others its arguments."""
    function = call.get("function")
    if not isinstance(function, dict):  # a custom tool
        yield call
        return
    yield {**call, "function": {**function, "arguments": ""}}
    for piece in _slices(function.get("arguments") or "", size):
        yield {"index": call["index"], "function": {"arguments": piece}}


def _completions(reply: Json, request: Json, size: int) -> Events:
    head = {**_head(reply), "object": "text_completion"}
    for place, choice in enumerate(reply["choices"]):
        rest = {"index": place, **choice, "text": "", "finish_reason": None}
        for piece in _slices(choice.get("text") or "", size):
            yield _data({**head, "choices": [{"index": rest["index"], "text": piece, "finish_reason": None}]})
        yield _data({**head, "choices": [{**rest, "finish_reason": choice.get("finish_reason")}]})
    yield from _usage(head, reply, request)


def _head(reply: Json) -> Json:
    return {name: value for name, value in reply.items() if name not in ("choices", "usage")}


def _usage(head: Json, reply: Json, request: Json) -> Events:
    options = request.get("stream_options")
    if reply.get("usage") and isinstance(options, dict) and options.get("include_usage"):
        yield _data({**head, "choices": [], "usage": reply["usage"]})
    yield DONE


def _responses(reply: Json, request: Json, size: int) -> Events:
    del request
    count = iter(range(1 << 30))

    def event(kind: str, **fields: Any) -> bytes:
        return _named(kind, {"type": kind, "sequence_number": next(count), **fields})

    begun = {**reply, "status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for index, item in enumerate(reply.get("output") or ()):
        at = {"item_id": item.get("id") or "", "output_index": index}
        yield event("response.output_item.added", output_index=index, item=_opened_item(item))
        for number, part in enumerate(item.get("content") or () if item.get("type") == "message" else ()):
            where = {**at, "content_index": number}
            yield event("response.content_part.added", **where, part={**part, **_emptied(part, ("text", "refusal"))})
            for name, kind in (("text", "response.output_text"), ("refusal", "response.refusal")):
                if isinstance(part.get(name), str):
                    more: Json = {"logprobs": []} if name == "text" else {}
                    yield from (event(f"{kind}.delta", **where, delta=piece, **more) for piece in _slices(part[name], size))
                    yield event(f"{kind}.done", **where, **{name: part[name]}, **more)
            yield event("response.content_part.done", **where, part=part)
        for number, part in enumerate(item.get("summary") or () if item.get("type") == "reasoning" else ()):
            where = {**at, "summary_index": number}
            yield event("response.reasoning_summary_part.added", **where, part={**part, **_emptied(part, ("text",))})
            text, kind = str(part.get("text") or ""), "response.reasoning_summary_text"
            yield from (event(f"{kind}.delta", **where, delta=piece) for piece in _slices(text, size))
            yield event(f"{kind}.done", **where, text=text)
            yield event("response.reasoning_summary_part.done", **where, part=part)
        for number, part in enumerate(item.get("content") or () if item.get("type") == "reasoning" else ()):
            where, text = {**at, "content_index": number}, str(part.get("text") or "")
            yield from (event("response.reasoning_text.delta", **where, delta=piece) for piece in _slices(text, size))
            yield event("response.reasoning_text.done", **where, text=text)
        for name, kind in (("arguments", f"response.{item.get('type')}_arguments"), ("input", "response.custom_tool_call_input")):
            if isinstance(item.get(name), str):
                yield from (event(f"{kind}.delta", **at, delta=piece) for piece in _slices(item[name], size))
                yield event(f"{kind}.done", **at, **{name: item[name]}, **({"name": item.get("name")} if name == "arguments" else {}))
        yield event("response.output_item.done", output_index=index, item=item)
    yield event(f"response.{reply.get('status') if reply.get('status') in ('incomplete', 'failed') else 'completed'}", response=reply)


def _opened_item(item: Json) -> Json:
    """Returns an output item of the Responses API as the first event about it contains it: without its content."""
    lists: Json = {name: [] for name in ("content", "summary") if isinstance(item.get(name), list)}
    status = {"status": "in_progress"} if "status" in item else {}
    return {**item, **_emptied(item, ("arguments", "input")), **lists, **status}


def _emptied(value: Json, names: tuple[str, ...]) -> Json:
    return {name: "" for name in names if isinstance(value.get(name), str)}


def _messages(reply: Json, request: Json, size: int) -> Events:
    del request

    def event(kind: str, **fields: Any) -> bytes:
        return _named(kind, {"type": kind, **fields})

    usage = reply.get("usage") or {}
    begun = {**reply, "content": [], "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 0}}
    yield event("message_start", message=begun)
    for index, block in enumerate(reply.get("content") or ()):
        opened, deltas = _block(block, size)
        yield event("content_block_start", index=index, content_block=opened)
        yield from (event("content_block_delta", index=index, delta=delta) for delta in deltas)
        yield event("content_block_stop", index=index)
    ended = {name: reply.get(name) for name in ("stop_reason", "stop_sequence")}
    yield event("message_delta", delta=ended, usage={"output_tokens": usage.get("output_tokens", 0)})
    yield event("message_stop")


def _block(block: Json, size: int) -> tuple[Json, list[Json]]:
    """Returns a content block of the Messages API as its first event contains it, and the deltas that follow.

    Text, thinking and the input of tool calls are in the deltas, in pieces. Any other block is complete in that event and has no deltas.
    """

    def pieces(name: str, kind: str, text: str) -> list[Json]:
        return [{"type": kind, name: piece} for piece in _slices(text, size)]

    match block:
        case {"type": "text", "text": str(text)}:
            cited = [{"type": "citations_delta", "citation": each} for each in block.get("citations") or ()]
            return {**block, "text": "", **({"citations": []} if cited else {})}, [*pieces("text", "text_delta", text), *cited]
        case {"type": "thinking", "thinking": str(text)}:
            signature = [{"type": "signature_delta", "signature": block["signature"]}] if block.get("signature") else []
            opened = {**block, "thinking": "", **({"signature": ""} if "signature" in block else {})}
            return opened, [*pieces("thinking", "thinking_delta", text), *signature]
        case {"input": dict(given)} if str(block.get("type", "")).endswith("tool_use"):
            return {**block, "input": {}}, pieces("partial_json", "input_json_delta", json_text.dumps(given).decode())
        case _:
            return block, []


def _data(value: Json) -> bytes:
    return b"data: %b\n\n" % json_text.dumps(value)


def _named(kind: str, value: Json) -> bytes:
    return b"event: %b\n%b" % (kind.encode(), _data(value))


_STREAMS: Mapping[str, Callable[[Any, Json, int], Events]] = {
    "/chat/completions": _chat,
    "/completions": _completions,
    "/responses": _responses,
    "/messages": _messages,
}


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
