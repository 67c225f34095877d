"""The engine's HTTP server: routes, chat requests, embeddings and metrics.

Embeddings need no model and are deterministic. Similar texts have close vectors: for each word, with its ends marked, the runs of three
to five characters are counted. The checksum of a run determines its position in the vector and its sign. The vector has length 1.
"""

from __future__ import annotations

import asyncio
import base64
import math
import os
import struct
import time
import unicodedata
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pytest_agentbench.engine import POLICIES
from pytest_agentbench.engine.answer import (
    EngineAnswer,
    EnginePace,
    RequestSlots,
    TimedBytes,
    add_stream_faults,
    batches,
    compose,
    error_response,
    json_response,
    send_stream,
    send_whole,
    stream_events,
    whole_body,
)
from pytest_agentbench.engine.chat import ApiError, Policy, PolicyReply, check_model, parse_chat, token_limit
from pytest_agentbench.engine.config import WHERE, EngineConfig
from pytest_agentbench.engine.token_blocks import BlockCache, read_prompt, tokenise
from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.records import Json

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)  # seconds
ITL_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # seconds
FINISHED_REASONS = ("stop", "length", "abort")


class Metrics:
    """The metrics of one engine, with the names of vLLM, in a separate registry. They have the label `model_name`."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._registry = CollectorRegistry()
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self.cache_queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self.cache_hits = self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "Seconds from the arrival of a request to its first token.", TTFT_BUCKETS
        )
        self.next_token = self._histogram("inter_token_latency_seconds", "Seconds from one token to the next.", ITL_BUCKETS)
        success = Counter("vllm:request_success", "Requests that ended.", ("model_name", "finished_reason"), registry=self._registry)
        self._finished = {reason: success.labels(model, reason) for reason in FINISHED_REASONS}

    def add_gauge(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """Adds a gauge that is read when the metrics are requested."""
        Gauge(f"vllm:{name}", documentation, ("model_name",), registry=self._registry).labels(self._model).set_function(read)

    def add_constant(self, name: str, documentation: str, **labels: str) -> None:
        """Adds a gauge with the constant value 1, whose labels have the information."""
        Gauge(f"vllm:{name}", documentation, sorted(labels), registry=self._registry).labels(**labels).set(1)

    def count_finished(self, finish_reason: str) -> None:
        """Counts a finished request. As in vLLM, an answer with tool calls counts as `stop`."""
        self._finished.get(finish_reason, self._finished["stop"]).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _counter(self, name: str, documentation: str) -> Counter:
        return Counter(f"vllm:{name}", documentation, ("model_name",), registry=self._registry).labels(self._model)

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", documentation, ("model_name",), registry=self._registry, buckets=buckets).labels(self._model)


class TokenClock:
    """Measures the times at which the tokens of one request are sent."""

    def __init__(self, metrics: Metrics, arrived: float) -> None:
        self._metrics = metrics
        self._last = arrived
        self._is_first = True

    def tick(self, tokens: int) -> None:
        """Records that `tokens` are sent now. Tokens that are sent together have no time between them."""
        if not tokens:
            return
        now = time.monotonic()
        gaps = [now - self._last, *(0.0,) * (tokens - 1)]
        self._last = now
        if self._is_first:
            self._is_first = False
            self._metrics.first_token.observe(gaps.pop(0))
        for gap in gaps:
            self._metrics.next_token.observe(gap)
        self._metrics.generation_tokens.inc(tokens)


DIMENSIONS = 512
RUNS = (3, 4, 5)  # characters
FORMATS = ("float", "base64")


def embeddings_body(body: bytes, model: str) -> bytes:
    """Returns the answer to a request to /v1/embeddings. Raises ApiError if the request is invalid, or is not for `model`."""
    request = _parsed(body, model)
    texts = [request["input"]] if isinstance(request["input"], str) else request["input"]
    dimensions = request.get("dimensions") or DIMENSIONS
    is_base64 = request.get("encoding_format") == "base64"
    vectors = [embedding(text, dimensions) for text in texts]
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(vector) if is_base64 else vector}
        for index, vector in enumerate(vectors)
    ]
    tokens = sum(len(tokenise(text)) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": usage})


def embedding(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """Returns the vector of a text. All its numbers are 0 if the text has no letter or digit."""
    vector = [0.0] * dimensions
    for word in "".join(char if char.isalnum() else " " for char in unicodedata.normalize("NFKC", text).casefold()).split():
        marked = f"<{word}>"
        for size in RUNS:
            for start in range(max(1, len(marked) - size + 1)):
                number = zlib.crc32(marked[start : start + size].encode())
                vector[(number >> 1) % dimensions] += 1.0 if number & 1 else -1.0
    length = math.sqrt(math.fsum(each * each for each in vector))
    return [each / length for each in vector] if length else vector


def _parsed(body: bytes, model: str) -> Json:
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(f"The body is not valid JSON: {error}.") from None
    if not isinstance(request, dict):
        raise ApiError("The body must be a JSON object.")
    check_model(request, model)
    if not _is_input(request.get("input")):
        raise ApiError("'input' must be a string or a list of at least one string.", "input")
    if request.get("encoding_format") not in (None, *FORMATS):
        raise ApiError(f"'encoding_format' must be {' or '.join(FORMATS)}.", "encoding_format")
    dimensions = request.get("dimensions")
    if dimensions is not None and (type(dimensions) is not int or not 1 <= dimensions <= DIMENSIONS):
        raise ApiError(f"'dimensions' must be a whole number from 1 to {DIMENSIONS}.", "dimensions")
    return request


def _is_input(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value))


def _base64(vector: list[float]) -> str:
    """Encodes a vector as OpenAI's clients expect it: little-endian 32-bit floats in base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


LARGEST_BODY = 1 << 26  # bytes
EXIT_CODE = 70  # exit code if a script ends the process


@dataclass(frozen=True)
class _Exchange:
    """A running request and its reply."""

    http: web.Request
    request: Json
    reply: PolicyReply
    arrived: float  # seconds, time.monotonic()
    started: float  # start of the due times of tokens, seconds, time.monotonic()


class Engine:
    """A server with one model, one policy, and the state that requests share: slots, KV cache and metrics.

    A chat request waits for a slot, then for blocks of the KV cache. The times at which its tokens are
    sent count from its arrival or, if it had to wait, from the end of its last wait.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._model, self._longest = config.model, config.max_model_len
        self._policy = _load_policy(config)
        self._pace = EnginePace(config.ttft_ms, config.itl_ms, config.jitter, config.seed)
        self._slots = RequestSlots(config.max_concurrency)
        self._blocks = BlockCache(config.kv_blocks, config.block_size)
        self._request_log = _open_log(config.request_log)
        self._metrics = Metrics(config.model)
        self._metrics.add_gauge("num_requests_running", "Requests being answered.", lambda: self._slots.running - self._blocks.waiting)
        self._metrics.add_gauge("num_requests_waiting", "Requests that wait.", lambda: self._slots.waiting + self._blocks.waiting)
        self._metrics.add_gauge("kv_cache_usage_perc", "Share of the cache that running requests hold, 0 to 1.", self._cache_usage)
        sizes = {"block_size": str(config.block_size), "num_gpu_blocks": str(config.kv_blocks)}
        self._metrics.add_constant("cache_config_info", "The cache's sizes.", **sizes, cache_dtype="auto", enable_prefix_caching="True")

    def application(self) -> web.Application:
        application = web.Application(client_max_size=LARGEST_BODY, middlewares=[_errors_in_openai_shape])
        application.router.add_get("/health", self._health)
        application.router.add_get("/metrics", self._metrics_text)
        application.router.add_get("/v1/models", self._models)
        application.router.add_post("/v1/chat/completions", self._chat)
        application.router.add_post("/v1/embeddings", self._embeddings)
        application.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        return application

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _metrics_text(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "pytest-agentbench", "max_model_len": self._longest}
        return json_response(orjson.dumps({"object": "list", "data": [model]}))

    async def _embeddings(self, http: web.Request) -> web.Response:
        return json_response(embeddings_body(await http.read(), self._model))

    async def _reset_prefix_cache(self, _: web.Request) -> web.Response:
        """Empties the prefix cache. vLLM has this route in development mode only."""
        self._blocks.clear()
        return web.Response()

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        arrived = _now()
        body = await http.read()
        self._log(body)
        request = parse_chat(body, self._model)
        reply = self._policy.reply(request)
        if reply.delivery.exit:
            os._exit(EXIT_CODE)
        if reply.delivery.status is not None:
            return error_response(reply.delivery, reply.delivery.status)
        try:
            async with self._slots as waited:
                # The time that a request waits for its slot is added to its own time.
                return await self._answer(_Exchange(http, request, reply, arrived, _now() if waited else arrived))
        except (asyncio.CancelledError, ConnectionError):  # The client has disconnected.
            self._metrics.count_finished("abort")
            raise

    async def _answer(self, exchange: _Exchange) -> web.StreamResponse:
        prompt = read_prompt(exchange.request, self._blocks.size)
        answer = compose(exchange.request, exchange.reply, prompt.tokens)
        self._refuse_too_long(prompt.tokens, len(answer.pieces), token_limit(exchange.request) or 1)
        async with self._blocks.reserve(prompt, len(answer.pieces)) as held:
            self._metrics.prompt_tokens.inc(prompt.tokens)
            self._metrics.cache_queries.inc(prompt.tokens)
            self._metrics.cache_hits.inc(held.cached)
            begun = replace(exchange, started=_now()) if held.waited else exchange
            response = await self._send(begun, answer, held.cached)
        self._metrics.count_finished("abort" if exchange.reply.delivery.cut_after is not None else answer.finish_reason)
        return response

    def _refuse_too_long(self, prompt: int, answer: int, limit: int) -> None:
        """Raises ApiError if a request is too long for the model, as in vLLM, or for the whole cache, where it would wait for ever."""
        if self._longest is not None and prompt + limit > self._longest:
            raise ApiError(
                f"This model's maximum context length is {self._longest} tokens. However, your request has {prompt} input tokens plus "
                f"{limit} 'max_tokens'. Please reduce one or the other.",
                "max_tokens",
            )
        if not self._blocks.fits(prompt + answer):
            most = self._blocks.capacity * self._blocks.size
            raise ApiError(f"This model's maximum context length is {most} tokens, and {prompt + answer} are needed.", "messages")

    async def _send(self, exchange: _Exchange, answer: EngineAnswer, cached: int) -> web.StreamResponse:
        http, request, delivery = exchange.http, exchange.request, exchange.reply.delivery
        due = self._pace.due(max(1, len(answer.pieces)), delivery, await http.read())
        usage = answer.usage(cached)
        options = request.get("stream_options") or {}
        stream_usage, running = usage if options.get("include_usage") else None, bool(options.get("continuous_usage_stats"))
        events = stream_events(answer, due, delivery.tokens_per_chunk, stream_usage, running=running)
        clock = TokenClock(self._metrics, exchange.arrived)
        if request.get("stream"):
            return await send_stream(http, delivery, _timed(add_stream_faults(events, delivery), exchange.started, clock))
        return await send_whole(http, delivery, whole_body(answer, usage), _timed(events, exchange.started, clock))

    def _cache_usage(self) -> float:
        """Returns the share of the KV cache in use, rounded up to a multiple of 0.0001, because some routers read 6.1e-05 as 6.1."""
        return math.ceil(self._blocks.used / self._blocks.capacity * 10_000) / 10_000

    def _log(self, body: bytes) -> None:
        if self._request_log is None:
            return
        try:
            line = orjson.dumps(orjson.loads(body))
        except orjson.JSONDecodeError:
            line = orjson.dumps(body.decode(errors="replace"))
        self._request_log.write(line + b"\n")


async def _timed(events: Sequence[TimedBytes], started: float, clock: TokenClock) -> AsyncIterator[bytes]:
    """Yields the bytes of a streamed answer's events when they must be sent, and records the times of the tokens in `clock`."""
    async for batch in batches(events, started):
        clock.tick(sum(event.tokens for event in batch))
        yield b"".join(event.data for event in batch)


def _load_policy(config: EngineConfig) -> Policy:
    if config.policy not in POLICIES:
        raise ConfigError(f"{WHERE}: {unknown_name('policy', config.policy, POLICIES)}")
    module, _, name = POLICIES[config.policy].partition(":")
    policy = getattr(import_module(module), name)
    settings: Mapping[str, Sequence[Any]] = {"script": (Path(config.script or ""),), "careless": (config.error_rate, config.seed)}
    return cast("Policy", policy(*settings.get(config.policy, ())))


def _open_log(path: str | None) -> BinaryIO | None:
    try:
        return Path(path).open("ab", buffering=0) if path else None
    except OSError as error:
        raise ConfigError(f"{WHERE}: request_log {path!r} cannot be written: {error.strerror}") from None


def _now() -> float:
    return asyncio.get_running_loop().time()


@web.middleware
async def _errors_in_openai_shape(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return json_response(error.body(), error.status)
    except web.HTTPException as error:  # aiohttp's own errors: unknown path, wrong method, or body too large.
        answer = ApiError(f"{request.method} {request.path}: {error.reason}.", status=error.status)
        return json_response(answer.body(), error.status)
