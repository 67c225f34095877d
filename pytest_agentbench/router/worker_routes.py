"""The paths by which engines join and leave a router that runs. vllm-router and smg have the same: `/workers` and `/workers/ID`."""

from __future__ import annotations

import orjson
from aiohttp import web

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib.config import Spec, validate
from pytest_agentbench.records import Json
from pytest_agentbench.router.config import EngineUrl
from pytest_agentbench.router.decisions import Decisions
from pytest_agentbench.router.engine_watch import EngineWatch, WatchedEngine
from pytest_agentbench.router.forwarding import error_response

WHERE = "POST /workers"


class NewWorker(Spec):
    """The body of a request that adds an engine."""

    url: EngineUrl


class WorkerRoutes:
    """Answers requests that list, add or remove engines.

    An engine is named by its id, which is its host and port, or by its URL.
    """

    def __init__(self, watch: EngineWatch, decisions: Decisions) -> None:
        self._watch, self._decisions = watch, decisions

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Adds the paths to an application."""
        router.add_get("/workers", self._list)
        router.add_post("/workers", self._join)
        router.add_get("/workers/{worker:.+}", self._show)
        router.add_delete("/workers/{worker:.+}", self._leave)

    async def _list(self, _: web.Request) -> web.Response:
        workers = [_description(engine) for engine in self._watch.all.values()]
        return web.json_response({"workers": workers, "total": len(workers)})

    async def _show(self, request: web.Request) -> web.Response:
        engine = self._watch.all.get(_id(request))
        return _unknown(request) if engine is None else web.json_response(_description(engine))

    async def _join(self, request: web.Request) -> web.Response:
        try:
            new = validate(NewWorker, orjson.loads(await request.read()), WHERE)
        except orjson.JSONDecodeError as error:
            return error_response(400, f"{WHERE}: not valid JSON: {error}", "invalid_request_error")
        except ConfigError as error:
            return error_response(400, str(error), "invalid_request_error")
        if (engine := self._watch.join(new.url)) is None:
            return error_response(409, f"the engine {new.url} is there already", "invalid_request_error")
        location = f"/workers/{engine.id}"
        body = {"status": "accepted", "worker_id": engine.id, "url": engine.url, "location": location}
        return web.json_response(body, status=202, headers={"Location": location})

    async def _leave(self, request: web.Request) -> web.Response:
        if (engine := await self._watch.leave(_id(request))) is None:
            return _unknown(request)
        self._decisions.forget(engine.id)
        return web.json_response({"status": "accepted", "worker_id": engine.id}, status=202)


def _id(request: web.Request) -> str:
    return request.match_info["worker"].partition("://")[2] or request.match_info["worker"]


def _unknown(request: web.Request) -> web.Response:
    return error_response(404, f"there is no engine {_id(request)}; GET /workers lists them", "invalid_request_error")


def _description(engine: WatchedEngine) -> Json:
    status = "draining" if engine.is_leaving else "ready" if engine.is_alive else "not_ready"
    return {"id": engine.id, "url": engine.url, "is_healthy": status == "ready", "status": status, "load": engine.calls}
