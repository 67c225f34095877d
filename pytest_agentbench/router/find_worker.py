"""Chooses workers for a program that sends the calls itself, such as `backends/dynamo_processor.py`.

`python -m pytest_agentbench.router.find_worker` starts it. The settings are on stdin or an argument, as for the router before engines.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, TypeVar

import orjson
from aiohttp import web
from pydantic import NonNegativeInt

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import Spec, validate
from pytest_agentbench.lib.web_process import run_service, serve
from pytest_agentbench.lib.wire import raise_limit
from pytest_agentbench.records import Json
from pytest_agentbench.router.config import WHERE, RuleConfig, parse_config
from pytest_agentbench.router.decisions import AskedCall, Decisions, RoutedCall
from pytest_agentbench.router.features import WorkerLoad
from pytest_agentbench.router.hints import WrongHint, read_hints
from pytest_agentbench.router.thompson import Ending

LARGEST_BODY = 1 << 24  # bytes

Message = TypeVar("Message", bound=Spec)


class WantedWorker(Spec):
    """The question for a worker."""

    workers: dict[str, WorkerLoad]  # the workers that are alive
    nvext: Json  # hints of the call, as in a request for an OpenAI-compatible API
    tokens: NonNegativeInt  # tokens of the prompt
    instead_of: int | None = None  # decision whose worker could not be reached, so that this call needs another one


class Feedback(Spec):
    """The end of a call."""

    decision: int  # number of the decision
    ending: Ending
    tokens: NonNegativeInt = 0  # output tokens, 0 if they are not known


class FoundWorker(NamedTuple):
    """The answer to a question for a worker."""

    decision: int
    worker: str


class WorkerFinder:
    """The HTTP server. POST /find_worker takes a WantedWorker, and POST /feedback a Feedback, as JSON.

    A call is open from its decision to its feedback. The number of open calls is limited by `max_pending`; the oldest is forgotten first.
    """

    def __init__(self, config: RuleConfig) -> None:
        self._decisions = Decisions(config)
        self._open: dict[int, RoutedCall] = {}
        self._most = config.rule().max_pending

    def application(self) -> web.Application:
        """Returns the web application."""
        application = web.Application(client_max_size=LARGEST_BODY)
        application.router.add_get("/health", self._health)
        application.router.add_get("/metrics", self._decisions.metrics_page)
        application.router.add_post("/find_worker", self._find_worker)
        application.router.add_post("/feedback", self._feedback)
        application.cleanup_ctx.append(self._running)
        return application

    async def _running(self, _: web.Application) -> AsyncIterator[None]:
        yield
        self._decisions.close()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _find_worker(self, request: web.Request) -> web.Response:
        """Answers with a FoundWorker. 400: the question or a hint in it cannot be read. 503: no worker is alive."""
        try:
            wanted = await _read(request, WantedWorker)
            asked = self._asked(wanted)
        except (ConfigError, WrongHint) as error:
            return _error(400, str(error))
        if (call := self._decisions.choose(asked, wanted.workers)) is None:
            return _error(503, "no worker is alive")
        while len(self._open) >= self._most:
            del self._open[next(iter(self._open))]
        self._open[call.routed.decision] = call
        return _json(FoundWorker(call.routed.decision, str(call.routed.worker))._asdict())

    def _asked(self, wanted: WantedWorker) -> AskedCall:
        """Returns the call of a question. One that could not reach its worker is not counted again."""
        if wanted.instead_of is not None and (call := self._open.pop(wanted.instead_of, None)) is not None:
            self._decisions.end(call, "unjudged", 0)
            return call.asked
        return self._decisions.asked(read_hints({}, {"nvext": wanted.nvext}), wanted.tokens)

    async def _feedback(self, request: web.Request) -> web.Response:
        """Learns from the end of a call. The end of a call that is not open changes nothing."""
        try:
            feedback = await _read(request, Feedback)
        except ConfigError as error:
            return _error(400, str(error))
        if (call := self._open.pop(feedback.decision, None)) is not None:
            self._decisions.end(call, feedback.ending, feedback.tokens)
        return _json({})


async def _read(request: web.Request, kind: type[Message]) -> Message:
    try:
        return validate(kind, orjson.loads(await request.read()), request.path)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{request.path}: not JSON: {error}") from None


def _error(status: int, message: str) -> web.Response:
    return _json({"error": message}, status)


def _json(body: Json, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


async def finder(settings: Any) -> None:
    raise_limit()
    config = parse_config(settings, RuleConfig)
    await serve(WorkerFinder(config).application(), WHERE, config.host, config.port)


if __name__ == "__main__":
    sys.exit(run_service(WHERE, finder))
