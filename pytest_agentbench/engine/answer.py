"""Converts replies to HTTP bodies, streamed or complete, with the faults that a script demands.

It also has the speed of the engine: when each token is due (to be sent), and how many requests run at the same time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, groupby
from random import Random
from typing import Any, NamedTuple
from uuid import uuid4

import orjson
from aiohttp import web

from pytest_agentbench.engine.chat import ApiError, Delivery, PolicyReply, ReplyCall, forced_tool, stop_texts, token_limit
from pytest_agentbench.engine.token_blocks import tokenise
from pytest_agentbench.records import Json


class TimedBytes(NamedTuple):
    """Bytes, and the time at which they must be sent."""

    data: bytes
    due: float  # seconds after the start of the request
    tokens: int = 0  # tokens of the answer in these bytes


@dataclass(frozen=True)
class EnginePace:
    """The times to the first token and between tokens of an engine. A script can set others for an answer (`Delivery`)."""

    ttft_ms: float
    itl_ms: float
    jitter: float  # maximum share by which each time varies
    seed: int

    def due(self, tokens: int, delivery: Delivery, request: bytes) -> list[float]:
        """Returns the seconds from the start of the request to each token of the answer, and one time for an answer without tokens.

        Equal requests have equal times.
        """
        ttft = self.ttft_ms if delivery.ttft_ms is None else delivery.ttft_ms
        itl = self.itl_ms if delivery.itl_ms is None else delivery.itl_ms
        gaps = [ttft / 1000] + [itl / 1000] * (tokens - 1)
        if self.jitter and (ttft or itl):
            random = Random(b"%d:%b" % (self.seed, request))
            gaps = [gap * (1 + self.jitter * random.uniform(-1, 1)) for gap in gaps]
        if delivery.stall and delivery.stall.after < len(gaps):
            gaps[delivery.stall.after] += delivery.stall.ms / 1000
        return list(accumulate(gaps))


class RequestSlots:
    """Limits the number of requests that run at the same time. The others wait in the order in which they arrived."""

    def __init__(self, limit: int | None) -> None:
        self._free = asyncio.Semaphore(limit) if limit else None
        self.running = 0
        self.waiting = 0

    async def __aenter__(self) -> bool:
        """Waits for a slot. Returns whether the request had to wait."""
        waits = self._free is not None and self._free.locked()
        if self._free is not None:
            self.waiting += 1
            try:
                await self._free.acquire()
            finally:
                self.waiting -= 1
        self.running += 1
        return waits

    async def __aexit__(self, *_: object) -> None:
        self.running -= 1
        if self._free is not None:
            self._free.release()


async def batches(events: Sequence[TimedBytes], started: float) -> AsyncIterator[list[TimedBytes]]:
    """Yields the events of a streamed answer when they must be sent, those that must be sent at the same time in one list.

    The times count from `started`, not from the event before, so delays do not add up.
    """
    now = asyncio.get_running_loop().time
    ready: list[TimedBytes] = []
    for event in events:
        wait = started + event.due - now()
        if wait > 0:
            if ready:
                yield ready
                ready = []
                wait = started + event.due - now()
            await asyncio.sleep(wait)
        ready.append(event)
    if ready:
        yield ready


DONE = b"data: [DONE]\n\n"


class Piece(NamedTuple):
    """One token of an answer, or several adjacent tokens that all belong to the text or to the same tool call."""

    text: str
    call: int | None = None  # index of the tool call; None for text
    is_name: bool = False  # whether the text is the name of the function, which opens the call
    tokens: int = 1


FILLER = Piece(" more")  # token that fills up an answer


@dataclass(frozen=True)
class EngineAnswer:
    """The content of the answer to one request."""

    pieces: list[Piece]  # one per token
    finish_reason: str
    call_ids: str  # prefix of the ids of its tool calls
    model: str
    prompt_tokens: int
    worker_id: str | None = None  # name of the engine in the answer

    @property
    def nvext(self) -> Json:
        """The field of the answer that names the engine, if the answer should name it."""
        return {} if self.worker_id is None else {"nvext": {"worker_id": self.worker_id}}

    @property
    def message(self) -> Json:
        """The message that a client has when it got the whole answer."""
        return _message(self)

    def usage(self, cached_tokens: int) -> Json:
        """Returns the usage object of the complete answer. `cached_tokens` of the prompt were in the cache."""
        return {**self.usage_after(len(self.pieces)), "prompt_tokens_details": {"cached_tokens": cached_tokens}}

    def usage_after(self, sent: int) -> Json:
        """Returns the usage object for the time at which `sent` tokens of the answer have been sent."""
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": sent, "total_tokens": self.prompt_tokens + sent}


def compose(request: Mapping[str, Any], reply: PolicyReply, prompt_tokens: int, worker_id: str | None = None) -> EngineAnswer:
    """Returns the answer with the content of `reply`, filled up and truncated to the numbers of tokens that the request demands.

    An answer that is too short for `min_tokens` gets more text before its tool calls. With `ignore_eos` an answer ends only at its limit
    or at a stop sequence.
    """
    text, stopped = _until_stop(reply.text, stop_texts(request))
    said = [Piece(token) for token in tokenise(text)]
    calls = [] if stopped else [piece for index, call in enumerate(reply.tool_calls) for piece in _call_pieces(index, call)]
    limit = token_limit(request)
    endless = bool(request.get("ignore_eos")) and not stopped and limit is not None
    fewest = limit if endless and limit else request.get("min_tokens") or 0
    pieces = [*said, *[FILLER] * (fewest - len(said) - len(calls)), *calls]
    if limit is not None and (endless or len(pieces) > limit):
        pieces, finish_reason = pieces[:limit], "length"
    else:
        finish_reason = reply.finish_reason or _finish_reason(request, pieces)
    return EngineAnswer(pieces, finish_reason, _call_ids(request), request["model"], prompt_tokens, worker_id)


def whole_body(answer: EngineAnswer, usage: Json) -> bytes:
    """Returns the answer as one JSON object, for a request that does not stream."""
    choice = {"index": 0, "message": answer.message, "logprobs": None, "finish_reason": answer.finish_reason}
    return orjson.dumps({**_envelope(answer, "chat.completion"), "choices": [choice], "usage": usage, **answer.nvext})


def stream_events(
    answer: EngineAnswer, due: Sequence[float], tokens_per_chunk: int, usage: Json | None, *, running: bool = False
) -> list[TimedBytes]:
    """Returns the answer as server-sent events, with the usage last if it is not None.

    `due` has the time at which each token must be sent; an event is sent with its last token. With `running` and a usage, each event has
    the usage so far, as in vLLM with `continuous_usage_stats`. The first event names the engine, because a stream may be cut.
    """
    envelope = _envelope(answer, "chat.completion.chunk")

    def head(sent: int) -> Json:
        return envelope if usage is None else {**envelope, "usage": answer.usage_after(sent) if running else None}

    has_text = any(piece.call is None for piece in answer.pieces)
    events = [_chunk_event({**head(0), **answer.nvext}, {"role": "assistant", "content": "" if has_text else None}, due[0])]
    sent = 0
    for piece in _chunks(answer.pieces, tokens_per_chunk):
        sent += piece.tokens
        events.append(_chunk_event(head(sent), _delta(piece, answer), due[sent - 1], piece.tokens))
    events.append(_chunk_event(head(sent), {}, due[-1], finish_reason=answer.finish_reason))
    if usage is not None:
        events.append(TimedBytes(_sse({**envelope, "choices": [], "usage": usage}), due[-1]))
    return [*events, TimedBytes(DONE, due[-1])]


def _until_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Returns the text before the first stop sequence, and whether there was one."""
    ends = [text.index(stop) for stop in stops if stop and stop in text]
    return (text[: min(ends)], True) if ends else (text, False)


def _call_pieces(index: int, call: ReplyCall) -> list[Piece]:
    arguments = call.arguments if isinstance(call.arguments, str) else orjson.dumps(call.arguments).decode()
    return [Piece(call.name, index, is_name=True), *(Piece(token, index) for token in tokenise(arguments))]


def _finish_reason(request: Mapping[str, Any], pieces: Sequence[Piece]) -> str:
    """Returns `tool_calls` or `stop`. As with OpenAI, an answer with a call that the request forced by name ends with `stop`."""
    called = any(piece.call is not None for piece in pieces)
    return "tool_calls" if called and forced_tool(request) is None else "stop"


def _call_ids(request: Mapping[str, Any]) -> str:
    """Returns a prefix for the ids of tool calls, a hash of the messages. Turns have different ids, a repeated request has equal ones."""
    return f"call_{blake2b(orjson.dumps(request['messages']), digest_size=9).hexdigest()}"


def _envelope(answer: EngineAnswer, kind: str) -> Json:
    return {"id": f"chatcmpl-{uuid4().hex}", "object": kind, "created": int(time.time()), "model": answer.model}


def _message(answer: EngineAnswer) -> Json:
    texts = {call: list(pieces) for call, pieces in groupby(answer.pieces, key=lambda piece: piece.call)}
    content = "".join(piece.text for piece in texts.pop(None, ()))
    message: Json = {"role": "assistant", "content": content or None, "refusal": None}
    if texts:
        message["tool_calls"] = [_whole_call(answer, index, pieces) for index, pieces in enumerate(texts.values())]
    return message


def _whole_call(answer: EngineAnswer, index: int, pieces: Sequence[Piece]) -> Json:
    name, *arguments = (piece.text for piece in pieces)
    return {"id": f"{answer.call_ids}{index}", "type": "function", "function": {"name": name, "arguments": "".join(arguments)}}


def _chunks(pieces: Sequence[Piece], size: int) -> list[Piece]:
    """Joins the tokens of an answer to the chunks of a stream, of at most `size` tokens.

    A chunk contains only text, only the name of a tool call, or only arguments of one tool call.
    """
    if size == 1:
        return list(pieces)
    chunks: list[Piece] = []
    for piece in pieces:
        last = chunks[-1] if chunks else None
        if last and last.call == piece.call and last.tokens < size and not last.is_name and not piece.is_name:
            chunks[-1] = Piece(last.text + piece.text, piece.call, tokens=last.tokens + 1)
        else:
            chunks.append(piece)
    return chunks


def _delta(piece: Piece, answer: EngineAnswer) -> Json:
    if piece.call is None:
        return {"content": piece.text}
    if not piece.is_name:
        return {"tool_calls": [{"index": piece.call, "function": {"arguments": piece.text}}]}
    opening = {"index": piece.call, "id": f"{answer.call_ids}{piece.call}", "type": "function"}
    return {"tool_calls": [{**opening, "function": {"name": piece.text, "arguments": ""}}]}


def _chunk_event(envelope: Json, delta: Json, due: float, tokens: int = 0, finish_reason: str | None = None) -> TimedBytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return TimedBytes(_sse({**envelope, "choices": [choice]}), due, tokens)


def _sse(data: Json) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(data)


BROKEN_EVENT = b'data: {"id": "chatcmpl-broken", "choices": [{"delta": {"content": "\n\n'
ERROR = orjson.dumps(
    {"error": {"message": "the script ends this answer with an error", "type": "server_error", "param": None, "code": None}}
)


def add_stream_faults(events: Sequence[TimedBytes], delivery: Delivery) -> list[TimedBytes]:
    """Returns the events of a streamed answer with the faults that `delivery` demands, such as an event that is not JSON."""
    faulty = list(events)
    if delivery.malformed_json_after is not None:
        place = _place(faulty, delivery.malformed_json_after)
        faulty.insert(place, TimedBytes(BROKEN_EVENT, faulty[place - 1].due))
    if delivery.error_event_after is not None:
        place = _place(faulty, delivery.error_event_after)
        due = faulty[place - 1].due
        faulty[place:] = [TimedBytes(b"data: %b\n\n" % ERROR, due), TimedBytes(DONE, due)]
    if delivery.cut_after is not None:
        del faulty[_place(faulty, delivery.cut_after) :]
    return [] if delivery.empty else faulty


def add_body_faults(body: bytes, delivery: Delivery) -> bytes:
    """Returns the body of an answer without streaming, with the faults that `delivery` demands.

    The numbers of tokens after which faults should occur are ignored, because the body is not divided into tokens.
    """
    if delivery.empty:
        return b""
    if delivery.error_event_after is not None:
        return ERROR
    return body if delivery.malformed_json_after is None else body[: len(body) // 2]


def split_characters(data: bytes) -> list[bytes]:
    """Splits data after the first byte of each multi-byte character."""
    ends = [index + 1 for index, byte in enumerate(data) if byte >= 0xC0]  # 0xC0 and above: first byte of a multi-byte character
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]


def _place(events: Sequence[TimedBytes], tokens: int) -> int:
    """Returns the index in `events` at which a fault after `tokens` tokens is inserted: behind the event that completes that number.

    If the answer has fewer tokens, it is the index behind the last one. For 0 tokens it is the index behind the first event, which
    contains the role.
    """
    sent, place = 0, 1
    for index, event in enumerate(events[1:], start=1):
        if sent >= tokens:
            break
        if event.tokens:
            sent, place = sent + event.tokens, index + 1
    return place


SPLIT_GAP = 0.002  # seconds between the parts of a character, so that they arrive separately
STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


async def send_stream(http: web.Request, delivery: Delivery, due: AsyncIterator[bytes]) -> web.StreamResponse:
    """Sends a streamed answer. `due` yields data when it must be sent.

    Makes the faults of the connection that `delivery` demands: characters that are divided, and a connection that is closed.
    """
    response = web.StreamResponse(headers=STREAM_HEADERS)
    await response.prepare(http)
    async for data in due:
        if delivery.split_utf8:
            await _write_split(response, data)
        else:
            await response.write(data)
    if delivery.cut_after is not None:
        _abort(http)
    return response


async def send_whole(http: web.Request, delivery: Delivery, body: bytes, due: AsyncIterator[bytes]) -> web.StreamResponse:
    """Sends an answer without streaming at the time at which a streamed answer would end: when the iterator `due` ends.

    The answer has the faults that `delivery` demands.
    """
    async for _ in due:
        pass
    faulty = add_body_faults(body, delivery)
    if delivery.cut_after is None and not delivery.split_utf8:
        return json_response(faulty)
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(faulty))})
    await response.prepare(http)
    await _write_split(response, faulty if delivery.cut_after is None else faulty[: len(faulty) // 2])
    if delivery.cut_after is not None:
        _abort(http)
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


def _abort(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.abort()
