"""The engine's HTTP server: routes, chat requests and the state that they share."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST

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
from pytest_agentbench.engine.chat import ApiError, Policy, PolicyReply, asks_for_worker, parse_chat, token_limit
from pytest_agentbench.engine.config import WHERE, EngineConfig
from pytest_agentbench.engine.embeddings import embeddings_body
from pytest_agentbench.engine.engine_metrics import Metrics, TokenClock
from pytest_agentbench.engine.prefill import Prefill
from pytest_agentbench.engine.router_routes import Load, RouterRoutes
from pytest_agentbench.engine.token_blocks import BlockCache, read_answered, read_prompt
from pytest_agentbench.errors import ConfigError, unknown_name
from pytest_agentbench.records import Json

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

    A chat request waits for a slot, then for blocks of the KV cache, then for the computation of its prompt. The times at which its
    tokens are sent count from its arrival or, if it had to wait, from the end of its last wait.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._model, self._longest = config.model, config.max_model_len
        self._policy = _load_policy(config)
        self._pace = EnginePace(config.ttft_ms, config.itl_ms, config.jitter, config.seed)
        self._slots = RequestSlots(config.max_concurrency)
        self._blocks = BlockCache(config.kv_blocks, config.block_size)
        self._prefill = Prefill(config.prefill_ms_per_1k, config.prefill_ms_per_1k2)
        self._cache_answers, self._worker_id = config.cache_answers, config.worker_id
        self._request_log = _open_log(config.request_log)
        self._metrics = Metrics(config.model)
        self._metrics.add_gauge("num_requests_running", "Requests being answered.", lambda: self._load().running)
        self._metrics.add_gauge("num_requests_waiting", "Requests that wait.", lambda: self._load().waiting)
        self._metrics.add_gauge("kv_cache_usage_perc", "Share of the cache that running requests hold, 0 to 1.", self._cache_usage)
        sizes = {"block_size": str(config.block_size), "num_gpu_blocks": str(config.kv_blocks)}
        self._metrics.add_constant("cache_config_info", "The cache's sizes.", **sizes, cache_dtype="auto", enable_prefix_caching="True")

    def application(self) -> web.Application:
        application = web.Application(client_max_size=LARGEST_BODY, middlewares=[self._counted, _errors_in_openai_shape])
        application.router.add_get("/health", self._health)
        application.router.add_get("/metrics", self._metrics_text)
        application.router.add_get("/v1/models", self._models)
        application.router.add_post("/v1/chat/completions", self._chat)
        application.router.add_post("/v1/embeddings", self._embeddings)
        for path in ("/reset_prefix_cache", "/flush_cache"):  # of vLLM and of SGLang
            application.router.add_post(path, self._reset_prefix_cache)
        longest = self._longest or self._blocks.capacity * self._blocks.size
        RouterRoutes(self._model, longest, self._blocks.capacity, self._blocks.size, self._load).add_to(application.router)
        return application

    @web.middleware
    async def _counted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        status = 500  # As in vLLM, a request whose client has disconnected counts as failed.
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            if resource := request.match_info.route.resource:
                self._metrics.count_request(resource.canonical, request.method, status)

    def _load(self) -> Load:
        waiting = self._blocks.waiting + self._prefill.waiting
        return Load(self._slots.running - waiting, self._slots.waiting + waiting, self._blocks.used)

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
        """Empties the prefix cache. vLLM has such a route in development mode only."""
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
        answer = compose(exchange.request, exchange.reply, prompt.tokens, self._name_in(exchange))
        self._refuse_too_long(prompt.tokens, len(answer.pieces), token_limit(exchange.request) or 1)
        async with self._blocks.reserve(prompt, len(answer.pieces)) as held:
            self._metrics.prompt_tokens.inc(prompt.tokens)
            self._metrics.cache_queries.inc(prompt.tokens)
            self._metrics.cache_hits.inc(held.cached)
            took_time = await self._prefill.compute(prompt.tokens - held.cached)
            begun = replace(exchange, started=_now()) if held.waited or took_time else exchange
            response = await self._send(begun, answer, held.cached)
        if self._cache_answers:
            self._blocks.keep(read_answered(exchange.request, answer.message, self._blocks.size))
        self._metrics.count_finished("abort" if exchange.reply.delivery.cut_after is not None else answer.finish_reason)
        return response

    def _name_in(self, exchange: _Exchange) -> str | None:
        """Returns the name of this engine in an answer, or None if the answer should name none."""
        if self._worker_id is not None or not asks_for_worker(exchange.request):
            return self._worker_id
        address, port = (exchange.http.get_extra_info("sockname") or ("", 0))[:2]
        return f"{address}:{port}"

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
