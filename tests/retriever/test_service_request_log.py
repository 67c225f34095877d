"""The retriever's log: its lines, and that clients and errors name its path."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from pytest_agentbench.records import Json
from tests.agents.test_orchestrator import ALL, play
from tests.retriever.conftest import Web
from tests.retriever.test_service import WHALE, Serve
from tests.waits import wait_for


def lines(log: Path) -> list[Json]:
    """Returns the requests in a log."""
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Returns the path of the log of the first retriever that a test starts."""
    return tmp_path / "retriever-0.log"


def test_a_line_for_each_request(serve: Serve, web: Web, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line has the time, the scenario, the number of documents from each source, and the seconds.

    For a failed request it has the error.
    """
    monkeypatch.setenv("TAVILY_API_KEY", "tvly-test")
    url = serve(tavily={"url": f"http://127.0.0.1:{web.server_port}"})

    (hits,) = httpx.post(f"{url}/retrieve", json={"queries": [WHALE], "return_scores": True, "eid": "q\n7"}).json()
    httpx.post(f"{url}/retrieve", json={"queries": []})
    web.results = []
    httpx.post(f"{url}/retrieve", json={"queries": [WHALE, WHALE], "eid": 8})

    found, wrong, failed = lines(log)
    local = sum(hit["source"] == "local" for hit in hits)
    facts = {"scenario": "q\n7", "queries": 1, "documents": local + 2, "local": local, "tavily": 2}
    assert facts == {key: found[key] for key in found if key not in ("time", "seconds")}
    assert found["seconds"] > 0
    assert datetime.fromisoformat(found["time"]) <= datetime.now(UTC)
    assert {"time", "status", "error", "seconds"} == {*wrong}
    assert (400, "request: queries") == (wrong["status"], wrong["error"][:16])
    assert (8, 2, 502) == (failed["scenario"], failed["queries"], failed["status"])
    assert "/search: the web search answered HTTP 432" in failed["error"]


def test_a_client_that_went_away(serve: Serve, web: Web, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request of a disconnected client has a line, which says that it was cancelled."""
    monkeypatch.setenv("TAVILY_API_KEY", "tvly-test")
    web.answers.clear()
    url = serve(tavily={"url": f"http://127.0.0.1:{web.server_port}"})
    body = json.dumps({"queries": [WHALE]})
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
        client.sendall(f"POST /retrieve HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        wait_for(lambda: web.asked, "the retriever to ask the web")

    wait_for(log.read_text, "the line of the request")
    web.answers.set()
    assert ["CancelledError()"] == [line["error"] for line in lines(log)]


def test_health_names_the_log(serve: Serve, log: Path) -> None:
    """Clients of a retriever can request the path of its log."""
    assert str(log) == httpx.get(f"{serve()}/health").json()["log"]


async def test_an_agents_error_names_the_log(
    serve: Callable[..., str], log: Path, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An infra_error of a rollout ends with the path of the log."""
    monkeypatch.setenv("TAVILY_API_KEY", "tvly-test")
    web.results = []
    url = serve(tavily={"url": f"http://127.0.0.1:{web.server_port}"})

    played = await play(tmp_path, ALL, retriever=url)

    assert f"the retriever at {url}/retrieve answered HTTP 502: " in str(played.refusal)
    assert str(played.refusal).endswith(f"; its log: {log}")
    assert ["hle-7"] == [line["scenario"] for line in lines(log)]
