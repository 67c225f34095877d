"""Engines that join and leave a router that runs."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import httpx

from pytest_agentbench.records import Json
from tests.engines import engine
from tests.router.conftest import RouterProcess, StartRouter
from tests.waits import wait_for


def workers(router: RouterProcess) -> dict[str, Json]:
    answer: Json = httpx.get(f"{router.url}/workers").json()
    assert answer["total"] == len(answer["workers"])
    return {each["id"]: each for each in answer["workers"]}


def ready(router: RouterProcess, id: str) -> bool:
    return bool(workers(router)[id]["is_healthy"])


def test_join_and_leave(tmp_path: Path, start_router: StartRouter) -> None:
    """An engine gets calls when it has joined and answers, and none after it has left. What was learnt about it ends with it."""
    with engine(tmp_path, worker_id="a") as a, engine(tmp_path, worker_id="b") as b:
        first, second = a.removeprefix("http://"), b.removeprefix("http://")
        router = start_router([a])
        added = httpx.post(f"{router.url}/workers", json={"url": b})
        wait_for(lambda: ready(router, second), "the engine that joined")
        both = {router.chat(str(index)).json()["nvext"]["worker_id"] for index in range(30)}
        again = httpx.post(f"{router.url}/workers", json={"url": b})
        removed = httpx.delete(f"{router.url}{added.headers['location']}")
        rest = {router.chat(str(index)).json()["nvext"]["worker_id"] for index in range(10)}
        page = httpx.get(f"{router.url}/metrics").text
        last = httpx.delete(f"{router.url}/workers/{quote(a, safe='')}")
        empty = router.chat().status_code

    assert 202 == added.status_code
    assert {"status": "accepted", "worker_id": second, "url": b, "location": f"/workers/{second}"} == added.json()
    assert ({"a", "b"}, {"a"}) == (both, rest)
    assert (409, 202, 202, 503) == (again.status_code, removed.status_code, last.status_code, empty)
    assert f'beta_alpha{{worker_id="{first}"}}' in page
    assert f'beta_alpha{{worker_id="{second}"}}' not in page
    assert {} == workers(router)


def test_an_engine_that_does_not_answer_yet(tmp_path: Path, start_router: StartRouter) -> None:
    """An engine that joins before it answers gets no calls until then."""
    with engine(tmp_path) as gone:
        pass
    with engine(tmp_path) as a:
        router = start_router([a])
        httpx.post(f"{router.url}/workers", json={"url": gone})
        statuses = [router.chat(str(index)).status_code for index in range(5)]
        listed = {each["url"]: (each["status"], each["load"]) for each in workers(router).values()}

    assert [200] * 5 == statuses
    assert {a: ("ready", 0), gone: ("not_ready", 0)} == listed


def test_wrong_requests(start_router: StartRouter) -> None:
    """A body without a usable URL is refused with what is wrong, and an engine that is not there cannot leave."""
    router = start_router(["http://127.0.0.1:1"])
    bodies = ("{", "{}", '{"url": "engine"}', '{"url": "http://127.0.0.1:1", "cost": 2}')
    answers = [httpx.post(f"{router.url}/workers", content=body) for body in bodies]
    texts = [answer.json()["error"]["message"] for answer in answers]
    unknown = httpx.delete(f"{router.url}/workers/127.0.0.1:2")
    message = unknown.json()["error"]["message"]

    assert [400] * 4 == [answer.status_code for answer in answers]
    assert texts[0].startswith("router: POST /workers: not valid JSON: ")
    assert "router: POST /workers: the key 'url' is missing" == texts[1]
    assert "must be the URL of an engine without a path, such as http://127.0.0.1:8001" in texts[2]
    assert "'cost'" in texts[3]
    assert (404, "router: there is no engine 127.0.0.1:2; GET /workers lists them") == (unknown.status_code, message)
