"""The service that chooses workers for another program: what it answers, counts, logs and forgets."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.records import Json
from pytest_agentbench.router.config import RuleConfig, parse_config
from pytest_agentbench.router.decision_log import LoggedDecision, read_decisions
from pytest_agentbench.router.find_worker import WorkerFinder
from tests.web import listening

IDLE: Json = {"gpu": 0.1, "overlap": 0.5}
WORKERS: Json = {"17226649115680169137": IDLE, "821821783930004283": IDLE}  # instances of Dynamo's workers


class Service(NamedTuple):
    """A service that answers."""

    url: str
    http: aiohttp.ClientSession
    log: Path

    async def post(self, path: str, message: Any) -> tuple[int, Json]:
        async with self.http.post(f"{self.url}/{path}", json=message) as answer:
            return answer.status, await answer.json()

    async def find(self, *annotations: str, workers: Json = WORKERS, **keys: Any) -> Json:
        """Returns the answer to a question for a worker."""
        question = {"workers": workers, "nvext": {"annotations": annotations}, "tokens": 100, **keys}
        status, found = await self.post("find_worker", question)
        assert 200 == status, found
        return found

    async def end(self, decision: int, ending: str = "answered", tokens: int = 5) -> None:
        assert (200, {}) == await self.post("feedback", {"decision": decision, "ending": ending, "tokens": tokens})

    async def metric(self, name: str) -> float:
        async with self.http.get(f"{self.url}/metrics") as answer:
            page = await answer.text()
        return sum(float(value) for value in re.findall(rf"^thompson_router_{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE))

    def decisions(self) -> list[LoggedDecision]:
        return [*read_decisions(self.log)]


@asynccontextmanager
async def served(folder: Path, **config: Any) -> AsyncIterator[Service]:
    log = folder / "decisions.jsonl"
    finder = WorkerFinder(parse_config({"decisions": str(log), **config}, RuleConfig))
    async with listening(finder.application()) as url, aiohttp.ClientSession() as http:
        yield Service(url, http, log)


async def test_a_session_with_hints(tmp_path: Path) -> None:
    """The calls of a session go to one of the workers. Its hints, overlaps and ends are in the log, which agrees with the metrics."""
    async with served(tmp_path, constants={"lints_spread": 0, "beta_weight": 0}) as service:
        for ending in ("answered", "answered", "disconnected"):
            found = await service.find("prefix_id:first", "prefix_id:s", "total_requests:3", "osl:64", "iat:20")
            await service.end(found["decision"], ending)
        decisions = service.decisions()
        counts = [await service.metric(name) for name in ("decisions_total", "sticky_decisions_total", "pending_decisions")]

    (worker,) = {each.worker for each in decisions}
    assert worker in WORKERS
    assert [("s", 3, reuse, "LOW", "LOW", 100, 0.5, 0.1, 5) for reuse in (2, 1, 0)] == [
        (each.prefix, each.total, each.reuse, each.osl, each.iat, each.prompt_tokens, each.overlap, each.gpu, each.output_tokens)
        for each in decisions
    ]
    assert ["answered", "answered", "disconnected"] == [each.ending for each in decisions]
    assert [3, 2, 0] == counts
    assert all(each.reward is not None and WORKERS.keys() == each.scores.keys() for each in decisions)


async def test_a_worker_that_accepts_no_call(tmp_path: Path) -> None:
    """A call that needs another worker is counted once, and the worker that did not accept it is not judged."""
    async with served(tmp_path) as service:
        first = await service.find("prefix_id:s", "total_requests:5")
        others = {worker: IDLE for worker in WORKERS if worker != first["worker"]}
        second = await service.find("prefix_id:s", "total_requests:5", workers=others, instead_of=first["decision"])
        await service.end(second["decision"])
        decisions = service.decisions()

    assert [*others] == [second["worker"]]
    assert [(first["worker"], 4, "unjudged", False), (second["worker"], 4, "answered", True)] == [
        (each.worker, each.reuse, each.ending, each.reward is not None) for each in decisions
    ]


async def test_open_calls_are_bounded(tmp_path: Path) -> None:
    """The oldest open call is forgotten, so that its end changes nothing."""
    async with served(tmp_path, constants={"max_pending": 2}) as service:
        found = [await service.find() for _ in range(3)]
        for each in found:
            await service.end(each["decision"])
        decisions = service.decisions()

    assert [each["decision"] for each in found[1:]] == [each.decision for each in decisions]


@pytest.mark.parametrize(
    ("path", "message", "status", "error"),
    [
        ("find_worker", {"workers": WORKERS, "nvext": {"annotations": ["osl:long"]}, "tokens": 1}, 400, "osl must be LOW, MEDIUM, HIGH"),
        ("find_worker", {"workers": WORKERS, "nvext": {}, "token": 1}, 400, "unknown key 'token' (did you mean 'tokens'?)"),
        ("find_worker", {"workers": {}, "nvext": {}, "tokens": 1}, 503, "no worker is alive"),
        ("feedback", {"decision": 1, "ending": "lost"}, 400, "ending"),
    ],
)
async def test_wrong_questions(tmp_path: Path, path: str, message: Json, status: int, error: str) -> None:
    """What cannot be answered gets a status and a sentence that says why."""
    async with served(tmp_path) as service:
        answered, said = await service.post(path, message)

    assert status == answered
    assert error in said["error"]


def test_the_process(tmp_path: Path) -> None:
    """The process serves with the settings of the router except those of engines, which are unknown keys."""
    child, wrong = (
        Child("pytest_agentbench.router.find_worker", settings, tmp_path / name)
        for name, settings in (("a.log", {"preset": "nat"}), ("b.log", {"engines": "http://127.0.0.1:1"}))
    )
    try:
        port = child.ready(Listening).port
        with pytest.raises(Exception, match="unknown key 'engines'"):
            wrong.ready(Listening)
    finally:
        child.stop()
        wrong.stop()

    assert port
