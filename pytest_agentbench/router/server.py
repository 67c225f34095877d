"""The router's HTTP server: it sends each call to an engine, and learns from the time that its answer takes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

from pytest_agentbench.router.config import RouterConfig
from pytest_agentbench.router.decisions import Decisions, RoutedCall
from pytest_agentbench.router.engine_watch import EngineWatch, WatchedEngine
from pytest_agentbench.router.forwarding import UNREACHABLE, EngineCall, error_response, read_body
from pytest_agentbench.router.hints import WrongHint, read_hints
from pytest_agentbench.router.seen_prompts import BYTES_PER_TOKEN, blocks_of, prompt_bytes
from pytest_agentbench.router.thompson import Ending
from pytest_agentbench.router.worker_routes import WorkerRoutes

LARGEST_BODY = 1 << 27  # bytes
CONNECT_LIMIT = 10.0  # time limit of a connection to an engine, seconds


class RouterServer:
    """The HTTP server. Its engines, sessions and metrics are in memory, and end with it.

    Each call has a connection of its own to its engine. So if the connection is refused, the engine has not seen the call, and the call
    goes to another engine. A call that an engine has seen is never repeated: the client gets its error.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._decisions = Decisions(config)
        self._watch = EngineWatch(config.engines, config.metrics_interval)
        self._http: aiohttp.ClientSession | None = None

    def application(self) -> web.Application:
        """Returns the web application."""
        application = web.Application(client_max_size=LARGEST_BODY)
        application.router.add_get("/health", self._health)
        application.router.add_get("/metrics", self._decisions.metrics_page)
        WorkerRoutes(self._watch, self._decisions).add_to(application.router)
        application.router.add_get("/v1/{path:.*}", self._from_any_engine)
        application.router.add_post("/v1/{path:.*}", self._route)
        application.cleanup_ctx.append(self._running)
        return application

    async def _running(self, _: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as self._http:
            self._watch.start(self._http)
            yield
            await self._watch.stop()
        self._decisions.close()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response() if self._watch.alive else error_response(503, "no engine can be reached")

    async def _from_any_engine(self, request: web.Request) -> web.StreamResponse:
        """Answers a request that is no call, such as that for the list of models, as an engine does."""
        call = EngineCall(self._client, request, await request.read())
        for id, engine in self._watch.alive.items():
            try:
                with self._watch.calling(engine):
                    return await call.forward(engine.url, id) or error_response(502, f"the engine {id} gave no answer")
            except UNREACHABLE:
                self._lost(engine)
        return error_response(503, "no engine can be reached")

    async def _route(self, request: web.Request) -> web.StreamResponse:
        """Answers a call."""
        data = await request.read()
        body = read_body(data)
        try:
            sent = read_hints(request.headers, body)
        except WrongHint as error:
            return error_response(400, str(error), "invalid_request_error")
        prompt = prompt_bytes(body)
        asked, blocks = self._decisions.asked(sent, len(prompt) // BYTES_PER_TOKEN), blocks_of(prompt)
        while (call := self._decisions.choose(asked, self._watch.loads(blocks))) is not None:
            engine = self._watch.all[str(call.routed.worker)]
            engine.prompts.add(blocks)
            try:
                return await self._forward(call, engine, EngineCall(self._client, request, data))
            except UNREACHABLE:
                self._lost(engine)
        return error_response(503, "no engine can be reached")

    async def _forward(self, call: RoutedCall, engine: WatchedEngine, engine_call: EngineCall) -> web.StreamResponse:
        ending: Ending = "disconnected"
        try:
            with self._watch.calling(engine):
                response = await engine_call.forward(engine.url, engine.id)
            ending = _ending(engine_call)
        except UNREACHABLE:
            ending = "unjudged"
            raise
        finally:
            self._decisions.end(call, ending, engine_call.tokens.count, engine_call.status)
        return response or error_response(502, f"the engine {engine.id} broke the connection before it answered")

    def _lost(self, engine: WatchedEngine) -> None:
        """Notes that an engine refuses connections, and forgets what is known of it."""
        engine.mark_dead()
        if self._watch.is_current(engine):
            self._decisions.forget(engine.id)

    @property
    def _client(self) -> aiohttp.ClientSession:
        assert self._http is not None
        return self._http


def _ending(call: EngineCall) -> Ending:
    """Returns how a call ended that its client has not ended. A refusal that is the client's fault says nothing of the engine."""
    status = call.status
    if call.is_broken or status is None or status >= 500 or status in (408, 429):
        return "failed"
    return "answered" if status < 400 else "unjudged"
