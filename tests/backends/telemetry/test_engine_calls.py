"""Calls of each engine: counters of real engines and literal pages in, literal numbers out."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from pytest_agentbench.backends.telemetry.engine_calls import (
    CALL_NAMES,
    EngineCalls,
    calls_between,
    calls_now,
    engine_calls,
)
from pytest_agentbench.backends.telemetry.engine_stats import tally
from pytest_agentbench.backends.telemetry.readings import read_now
from pytest_agentbench.backends.telemetry.samples import Sample, Series, Target
from tests.engines import engine
from tests.web import QuietHandler, serving

SGLANG, DYNAMO = "sglang:num_requests_total", "dynamo_component_requests_total"
FINISHED, HTTP = "vllm:request_success_total", "http_requests_total"


def ask(url: str) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        answer.read()


def test_counts_of_engines_now(tmp_path: Path) -> None:
    """The difference of two readings is the number of calls of each engine. Replicas that do not answer are left out."""
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    with engine(folders[0], model="m") as first, engine(folders[1], model="m") as second:
        targets = [Target("engine", number, f"{url}/metrics") for number, url in enumerate((first, second, "http://127.0.0.1:1"))]
        ask(first)
        before = calls_now(targets)
        ask(second)
        ask(second)
        after = calls_now(targets)

    assert {("engine", 0): 1, ("engine", 1): 0} == before
    assert {("engine", 0): 0, ("engine", 1): 2} == calls_between(before, after)


def test_an_engine_that_was_restarted_between() -> None:
    """A count that fell began at 0 again. An engine that has only one of the two counts is left out."""
    before, after = {("engine", 0): 9, ("engine", 1): 9}, {("engine", 0): 4, ("engine", 2): 5}

    assert {("engine", 0): 4} == calls_between(before, after)


class Page(QuietHandler):
    """Answers with the text that its server has for a path."""

    def do_GET(self) -> None:
        self.answer(200, PAGES[self.path].encode(), "text/plain")


PAGES = {
    "/vllm": f'{FINISHED}{{finished_reason="stop"}} 3\n{FINISHED}{{finished_reason="abort"}} 1\n'
    f'{HTTP}{{handler="/v1/chat/completions",method="POST",status="2xx"}} 4\n'
    f'{HTTP}{{handler="/v1/chat/completions",method="POST",status="5xx"}} 2\n'
    f'{HTTP}{{handler="/v1/chat/completions/render",method="POST",status="2xx"}} 50\n'
    f'{HTTP}{{handler="/health",method="GET",status="2xx"}} 70\n',
    "/sglang": f'{SGLANG}{{model_name="m",is_streaming="true"}} 5\n{SGLANG}{{model_name="m",is_streaming="false"}} 2\n',
    "/new": "sglang:num_running_reqs 0\n",
    "/dynamo": f'{DYNAMO}{{dynamo_component="backend",dynamo_endpoint="generate"}} 8\n'
    f'{DYNAMO}{{dynamo_component="backend",dynamo_endpoint="clear_kv_blocks"}} 30\n',
    "/dynamo-vllm": f'{DYNAMO}{{dynamo_component="backend",dynamo_endpoint="generate"}} 8\n{FINISHED} 7\n',
    "/router": f'{HTTP}{{handler="/v1/chat/completions",method="POST",status="2xx"}} 99\n',
}


@contextmanager
def pages() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.mark.parametrize(
    ("paths", "calls"),
    [
        (("/vllm",), [6]),
        (("/sglang", "/new"), [7, 0]),
        (("/new",), []),
        (("/dynamo",), [8]),
        (("/dynamo-vllm",), [7]),
        (("/router",), []),
    ],
    ids=["refused calls of vLLM", "an engine without a call", "no counter at all", "Dynamo", "vLLM in Dynamo", "not an engine"],
)
def test_counters_of_each_kind(paths: tuple[str, ...], calls: list[int]) -> None:
    """Only LLM calls count, refused ones of vLLM included. A replica without a counter is an engine if another one of its service is."""
    with pages() as url:
        found = calls_now(Target("engine", number, url + path) for number, path in enumerate(paths))

    assert {("engine", number): each for number, each in enumerate(calls)} == found


def samples(*looks: tuple[int, int, Mapping[str, float] | None]) -> list[Sample]:
    """Makes samples of the service `engine` from (round, replica, name -> value). None is a sample that failed."""
    made, seen = [], set()
    for number, replica, values in looks:
        source = ("engine", replica)
        series = {Series(source, name, ()): value for name, value in (values or {}).items()}
        made.append(
            Sample(number, number, source, replica not in seen or not number, series, failed="" if values is not None else "refused")
        )
        seen.add(replica)
    return made


def test_calls_of_a_session() -> None:
    """Counts begin with the first sample, so that checks at boot are not in them. An engine that died is marked."""
    looks = samples(
        (0, 0, {FINISHED: 4}), (0, 1, {FINISHED: 4}), (0, 2, {}), (1, 0, {FINISHED: 9}), (1, 1, {FINISHED: 1}), (2, 1, {FINISHED: 3})
    )

    assert (
        EngineCalls("engine", 0, "vllm", 5),
        EngineCalls("engine", 1, "vllm", 3, restarted=True),
        EngineCalls("engine", 2, "vllm", 0),
    ) == engine_calls(tally(looks, None))


def test_a_stack_that_was_booted_again() -> None:
    """The checks of the second boot do not count. Engines that died before it are marked, and those that were stopped in order are not."""
    looks = samples(
        *((0, 0, {FINISHED: 4}), (0, 1, {FINISHED: 4}), (1, 0, {FINISHED: 9}), (1, 1, {FINISHED: 9}), (2, 1, None)),
        *((0, 0, {FINISHED: 12}), (0, 1, {FINISHED: 12}), (1, 0, {FINISHED: 13}), (1, 1, {FINISHED: 13})),
    )

    assert (EngineCalls("engine", 0, "vllm", 6), EngineCalls("engine", 1, "vllm", 6, restarted=True)) == engine_calls(tally(looks, None))


def test_readings_have_only_the_series_asked_for() -> None:
    """A replica whose page has none of them is there without series."""
    with pages() as url:
        found = read_now([Target("a", 0, f"{url}/new"), Target("b", 0, f"{url}/router")], CALL_NAMES)

    assert {("a", 0): 0, ("b", 0): 1} == {source: len(series) for source, series in found.items()}
