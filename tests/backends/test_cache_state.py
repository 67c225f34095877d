"""Resets of prefix caches and readings of counters, on the embedded engine and on servers that imitate others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.api import Api
from pytest_agentbench.backends.cache_state import Reset, counters, moved, reset, total_hits
from pytest_agentbench.backends.embedded import Embedded, EmbeddedSpec
from pytest_agentbench.backends.telemetry.engine_stats import CacheHits, prefix_cache
from pytest_agentbench.backends.telemetry.samples import Sources, Target
from pytest_agentbench.records import Endpoint, Json
from tests.web import QuietHandler, serving

HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
CHAT: Json = {"messages": [{"role": "user", "content": "Is there a lamp in the shop? " * 20}]}


@contextmanager
def answering(posts: Mapping[str, tuple[int, Any]], metrics: str = "") -> Iterator[tuple[str, list[str]]]:
    """Runs a server that answers these paths, and 404 to others. Yields its root URL and the posted paths."""
    asked: list[str] = []

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append(self.path)
            status, body = posts.get(self.path, (404, {}))
            self.answer(status, body.encode() if isinstance(body, str) else json.dumps(body).encode())

        def do_GET(self) -> None:
            self.answer(200, metrics.encode())

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}", asked


def endpoint(root: str) -> Endpoint:
    return Endpoint(f"{root}/v1", "m")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[Endpoint, Sources]]:
    backend = Embedded(EmbeddedSpec(kind="embedded", name="e"))
    try:
        yield backend.start(tmp_path), backend.metrics()
    finally:
        backend.stop()


def test_an_engine_is_emptied(engine: tuple[Endpoint, Sources]) -> None:
    """The second call with the same prompt hits the cache. After a reset, the next call does not."""
    where, sources = engine
    api = Api(where)

    def hit_ratio() -> float:
        before = counters(sources.targets)
        assert 200 == api.post("/chat/completions", {**CHAT, "model": where.model}).status
        return prefix_cache(moved(before, counters(sources.targets))).hit_ratio or 0.0

    assert 0 == hit_ratio()
    assert hit_ratio() > 0.5
    done = reset(where, sources)
    assert ("", 1) == (done.why_not, len(done.done))
    assert 0 == hit_ratio()


def test_sglang_is_flushed() -> None:
    """SGLang's path is tried if vLLM's does not exist."""
    with answering({"/flush_cache": (200, "Cache flushed.")}) as (root, _):
        assert Reset((f"{root}/flush_cache",)) == reset(endpoint(root), Sources())


@pytest.mark.parametrize(
    ("answer", "is_done"),
    [
        ({"cleared_workers": [{"name": "w"}], "failed_workers": []}, True),
        ({"cleared_workers": [{"name": "w"}], "failed_workers": [{"name": "v"}]}, False),
        ({"message": "No active worker groups found"}, False),
        ("OK", False),
    ],
)
def test_dynamo_says_which_workers_did_it(answer: Any, is_done: bool) -> None:
    """A 200 of Dynamo's frontend counts as a reset only if all workers cleared their blocks."""
    with answering({"/clear_kv_blocks": (200, answer)}) as (root, _):
        assert is_done == (not reset(endpoint(root), Sources()).why_not)


def test_engines_behind_a_router_are_all_reset() -> None:
    """Each server that reports cache hits is reset. The router's record of prompts stays, so the cache does not count as empty.

    If a server cannot be reset, the reason is that server.
    """
    page = f"{QUERIES} 5\n{HITS} 1\n"
    able = {"/reset_prefix_cache": (200, "")}
    with answering({}) as (router, _), answering(able, page) as (one, first), answering(able, page) as (two, second):
        targets = [Target("router", 0, f"{router}/metrics"), Target("e", 0, f"{one}/metrics"), Target("e", 1, f"{two}/metrics")]

        done = reset(endpoint(router), Sources(tuple(targets)))

        why = f"{router} is a router before the engines, and no request empties its own record of earlier prompts"
        assert Reset((f"{one}/reset_prefix_cache", f"{two}/reset_prefix_cache"), why) == done
        assert ["/reset_prefix_cache"] == first == second
        with answering({}, page) as (three, _):
            failed = reset(endpoint(router), Sources((*targets, Target("e", 2, f"{three}/metrics"))))
        assert failed.why_not.startswith(f"{three} answers neither /reset_prefix_cache nor /flush_cache")


def test_differences_of_counters() -> None:
    """Counters are subtracted for each server. One that fell started again at 0, and one that disappeared did not increase."""
    before = {("e", 0, HITS): 5.0, ("e", 1, HITS): 7.0, ("e", 0, QUERIES): 10.0}
    after = {("e", 0, HITS): 9.0, ("e", 1, HITS): 3.0, ("e", 2, HITS): 1.0}

    assert {HITS: 8.0} == moved(before, after)
    assert {} == counters([Target("e", 0, "http://127.0.0.1:9/metrics")])


def test_ratios_of_blocks_are_of_tokens() -> None:
    """The ratio of several blocks is the sum of hits divided by the sum of lookups, not a mean of ratios."""
    parts = [CacheHits(1.0, 1.0, 1.0), CacheHits(0.0, 0.0, 9.0), CacheHits(None, None, None)]

    assert CacheHits(0.1, 1.0, 10.0) == total_hits(parts)
    assert total_hits([]).hit_ratio is None
