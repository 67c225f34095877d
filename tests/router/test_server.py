"""The router before engines: what reaches the engine, what reaches the client, and what the router learns."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import socket
import stat
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web

from pytest_agentbench.records import Json
from pytest_agentbench.router.config import RouterConfig, parse_config
from pytest_agentbench.router.server import RouterServer
from tests.engines import engine
from tests.router.conftest import StartRouter
from tests.waits import wait_for
from tests.web import listening

CHAT = "/v1/chat/completions"


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[list[str]]:
    """The addresses of two built-in engines."""
    with engine(tmp_path, worker_id="a") as a, engine(tmp_path, worker_id="b") as b:
        yield [a, b]


def metric(page: str, name: str, **labels: str) -> float:
    """Returns the sum of a metric over its series with these labels."""
    series = re.findall(rf"^{name}(\{{.*\}})? (\S+)$", page, re.MULTILINE)
    return sum(float(value) for found, value in series if all(f'{label}="{text}"' in found for label, text in labels.items()))


def test_sessions_hints_metrics_and_log(engines: list[str], start_router: StartRouter) -> None:
    """Most calls stay on their session's engine, hints of calls are in the log of decisions, and metrics and log agree."""
    router = start_router(engines)
    workers: dict[str, list[str]] = {}
    for session in [*"abcdef"] * 3:
        answer = router.chat(session, x_session_id=session, x_prefix_total_requests="3", x_prefix_osl="64")
        workers.setdefault(session, []).append(answer.json()["nvext"]["worker_id"])
    decisions = router.decisions()
    page = httpx.get(f"{router.url}/metrics").text

    stayed = sum(before == after for each in workers.values() for before, after in pairwise(each))
    assert stayed >= 8  # The router draws at random, so that a slow answer can move a session.
    assert {(2, "LOW", 3), (1, "LOW", 3), (0, "LOW", 3)} == {(each.reuse, each.osl, each.total) for each in decisions}
    assert 18 == len(decisions) == metric(page, "thompson_router_decisions_total")
    assert 18 == metric(page, "thompson_router_feedback_latency_seconds_count")
    counted = tuple(metric(page, f"thompson_router_{kind}_decisions_total") for kind in ("sticky", "switch"))
    assert (stayed, 12 - stayed) == counted
    assert (0, 0, 0) == tuple(
        metric(page, f"thompson_router_{name}") for name in ("pending_decisions", "prefix_state_size", "timeout_penalties_total")
    )
    assert all(0 < each.reward < 1 and each.output_tokens > 0 for each in decisions if each.reward is not None)
    for each in engines:
        id = each.removeprefix("http://")
        learnt = metric(page, "thompson_router_beta_alpha", worker_id=id) + metric(page, "thompson_router_beta_beta", worker_id=id)
        assert pytest.approx(2 + sum(decision.worker == id for decision in decisions)) == learnt


def test_other_requests(engines: list[str], start_router: StartRouter) -> None:
    """The list of models comes from an engine, an engine's refusal reaches the client, and a wrong hint is refused by the router."""
    router = start_router(engines)

    assert ["embedded-lexical"] == [each["id"] for each in httpx.get(f"{router.url}/v1/models").json()["data"]]
    assert 200 == httpx.get(f"{router.url}/health").status_code
    broken = httpx.post(f"{router.url}{CHAT}", content=b"{")
    assert (400, "x-worker-id") == (broken.status_code, next(name for name in broken.headers if name == "x-worker-id"))
    refused = router.chat(x_prefix_osl="long")
    assert 400 == refused.status_code
    assert "router: x-prefix-osl must be LOW, MEDIUM, HIGH or a number, not 'long'" == refused.json()["error"]["message"]
    assert [("unjudged", None)] == [(each.ending, each.reward) for each in router.decisions()]


def test_a_refused_call_is_not_repeated(tmp_path: Path, start_router: StartRouter) -> None:
    """A call that an engine refuses reaches one engine once. The client gets the refusal, and the engine no reward."""
    rules: list[Json] = [{"match": {"contains": "flood"}, "status": 503}, {"text": "Fine."}]
    with (
        engine(tmp_path, rules, request_log=str(tmp_path / "asked")) as a,
        engine(tmp_path, rules, request_log=str(tmp_path / "asked")) as b,
    ):
        router = start_router([a, b])
        statuses = [router.chat(text).status_code for text in ("flood", "flood", "Hello")]

    assert [503, 503, 200] == statuses
    assert 3 == len((tmp_path / "asked").read_text().splitlines())
    assert [("failed", False), ("failed", False), ("answered", True)] == [(each.ending, bool(each.reward)) for each in router.decisions()]


def test_without_any_engine(start_router: StartRouter) -> None:
    """If no engine can be reached, calls fail with 503, and so does the health check."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        router = start_router([f"http://127.0.0.1:{taken.getsockname()[1]}"])
        answer = router.chat()

        assert (503, "router: no engine can be reached") == (answer.status_code, answer.json()["error"]["message"])
        assert 503 == httpx.get(f"{router.url}/health").status_code
        assert 503 == httpx.get(f"{router.url}/v1/models").status_code


def application(handle: Any) -> web.Application:
    """Returns an engine that answers chats with a handler, and has no metrics."""
    app = web.Application()
    app.router.add_post(CHAT, handle)
    return app


def router_before(engine_url: str, **config: Any) -> web.Application:
    return RouterServer(parse_config({"engines": engine_url, **config}, RouterConfig)).application()


async def test_bytes_and_headers_pass_unchanged() -> None:
    """Body, query and headers reach the engine as they were sent, and its answer the client, also if it is compressed."""
    seen: dict[str, Any] = {}
    packed = gzip.compress(b'{"a":  1}')

    async def handle(request: web.Request) -> web.Response:
        seen.update(body=await request.read(), headers=request.headers.copy(), path=request.raw_path)
        headers = {"content-encoding": "gzip", "content-type": "application/json", "x-request-id": "7"}
        return web.Response(body=packed, status=201, headers=headers)

    sent = {"authorization": "Bearer k", "x-mine": "1", "accept-encoding": "gzip", "connection": "x-hop", "x-hop": "1"}
    async with (
        listening(application(handle)) as url,
        listening(router_before(url)) as router,
        aiohttp.ClientSession(auto_decompress=False) as http,
        http.post(f"{router}{CHAT}?a=%20b", data=b'{"b" :1}', headers=sent) as answer,
    ):
        body = await answer.read()

    assert (b'{"b" :1}', f"{CHAT}?a=%20b", packed) == (seen["body"], seen["path"], body)
    assert ("Bearer k", "1", "gzip", None) == tuple(
        seen["headers"].get(name) for name in ("authorization", "x-mine", "accept-encoding", "x-hop")
    )
    assert (201, "gzip", "7", url.removeprefix("http://")) == (
        answer.status,
        *(answer.headers[name] for name in ("content-encoding", "x-request-id", "x-worker-id")),
    )


async def test_streams_are_not_held_back() -> None:
    """The client gets each event of a stream before the engine sends the next one. No socket of the router delays small packets."""
    received = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for index in range(5):
            received.clear()
            await response.write(b"data: %d\n\n" % index)
            await received.wait()
        await response.write_eof()
        return response

    async with listening(application(handle)) as url, listening(router_before(url)) as router, aiohttp.ClientSession() as http:
        events, options = [], set[int]()
        async with asyncio.timeout(30), http.post(f"{router}{CHAT}", json={"stream": True}) as answer:
            async for event in answer.content.iter_any():
                events.append(event)
                options |= {*nodelay_options(int(router.rpartition(":")[2]), int(url.rpartition(":")[2]))}
                received.set()

    assert [b"data: %d\n\n" % index for index in range(5)] == events
    assert {1} == options


def nodelay_options(router: int, engine: int) -> Iterator[int]:
    """Yields TCP_NODELAY of the sockets of this process on which the router talks to a client or to the engine."""
    for descriptor in (int(path.name) for path in Path("/proc/self/fd").iterdir()):
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as each:
                if each.family == socket.AF_INET and (each.getsockname()[1] == router or each.getpeername()[1] == engine):
                    each.getpeername()
                    yield int(bool(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
        except OSError:  # It is closed, or a listening socket.
            continue


async def test_a_client_that_disconnects(tmp_path: Path) -> None:
    """The engine sees that a client has disconnected, and the call is judged at once. The next calls are answered."""
    gone = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        try:
            await asyncio.sleep(60)
        finally:
            gone.set()
        return response

    log = tmp_path / "log"
    runner = web.AppRunner(application(handle), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    front = web.AppRunner(router_before(f"http://127.0.0.1:{runner.addresses[0][1]}", decisions=str(log)), handler_cancellation=True)
    await front.setup()
    await web.TCPSite(front, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession() as http:
            answer = await http.post(f"http://127.0.0.1:{front.addresses[0][1]}{CHAT}", json={})
            await answer.content.readany()
            answer.close()
            async with asyncio.timeout(30):
                await gone.wait()
            logged = await asyncio.to_thread(wait_for, log.read_text, "the decision")
    finally:
        await front.cleanup()
        await runner.cleanup()

    assert '"ending":"disconnected","status":200' in logged
    assert '"reward":0.5' in logged


async def test_an_engine_that_breaks_off(tmp_path: Path) -> None:
    """If an engine breaks off its answer, the client sees that it is not complete. Without an answer, the client gets 502. Both fail."""

    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        if (await request.json()).get("stream"):
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"data: 1\n\n")
        request.transport.abort()
        return web.Response()

    log = tmp_path / "log"
    async with (
        listening(application(handle)) as url,
        listening(router_before(url, decisions=str(log))) as router,
        aiohttp.ClientSession() as http,
    ):
        async with http.post(f"{router}{CHAT}", json={"stream": True}) as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        async with http.post(f"{router}{CHAT}", json={}) as answer:
            refused = await answer.json()
        assert 502 == answer.status

    assert "broke the connection before it answered" in refused["error"]["message"]
    assert 2 == log.read_text().count('"ending":"failed"')
    assert 2 == log.read_text().count('"reward":0.0')
