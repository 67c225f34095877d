"""A retriever process with its index and a real server of vectors: its results, the documents that it leaves out, and its errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from pytest_agentbench.backends.spec import load_backend
from pytest_agentbench.cli.requirements import PlannedSessions
from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.records import Json
from tests.retriever.conftest import Web, documents

Serve = Callable[..., str]
LAMP, WHALE = "How were brass lamps made by smiths?", "What do blue whales feed on in cold oceans?"


def ids(answer: httpx.Response) -> list[list[str]]:
    return [[document["id"] for document in each] for each in answer.json()]


def test_several_queries(serve: Serve) -> None:
    """Each query gets its own documents, unchanged, the nearest first. Documents that are too far away or too short are left out."""
    url = serve()

    answer = httpx.post(f"{url}/retrieve", json={"queries": [LAMP, WHALE, "zzz qqq"]})

    assert [["lamp"], ["whale"], []] == [each[:1] for each in ids(answer)]
    assert documents()[0] == answer.json()[0][0]
    assert "short" not in ids(answer)[0]
    assert {"status": "ok", "documents": 5}.items() < httpx.get(f"{url}/health").json().items()


def test_requirements_of_planned_sessions(serve: Serve, tmp_path: Path) -> None:
    """The requirements of a planned session include the retriever: whether it runs, and its number of documents."""
    agent = {"kind": "orchestrator", "run_code": False, "retriever": serve()}
    roles: Json = {role: {} for role in ("search", "reasoner", "answer")}
    suite = {
        "name": "exam",
        "dataset": {"format": "hle", "file": "data.jsonl"},
        "agent": agent,
        "roles": roles,
        "scorers": ["judged_answer"],
    }
    question = {"id": "1", "question": "?", "answer": "7", "answer_type": "exactMatch", "category": "Math"}
    (tmp_path / "suite.yaml").write_text(json.dumps(suite), encoding="utf-8")
    (tmp_path / "data.jsonl").write_text(json.dumps(question), encoding="utf-8")
    needs = PlannedSessions(str(tmp_path), "", (), {"embedded": load_backend("embedded", tmp_path)}, 1).requirements()

    assert [] == needs.missing
    assert [f"retriever: {agent['retriever']} answers, 5 documents"] == [line for line in needs.lines if line.startswith("retriever")]


def test_scores(serve: Serve) -> None:
    """With `return_scores`, each result is {document, score, source}. Results are sorted by score, and there are at most `topk`."""
    url = serve(least_score=-1.0, least_characters=0)

    (hits,) = httpx.post(f"{url}/retrieve", json={"queries": [LAMP], "topk": 3, "return_scores": True}).json()

    assert {"document", "score", "source"} == {*hits[0]}
    assert ({"local"}, 3) == ({hit["source"] for hit in hits}, len(hits))
    assert sorted((hit["score"] for hit in hits), reverse=True) == [hit["score"] for hit in hits]
    assert {"lamp", "short"} == {hit["document"]["id"] for hit in hits[:2]}


def test_a_list_for_each_question(serve: Serve, tmp_path: Path) -> None:
    """A question only gets documents of its list, whatever is nearer. A question without a list gets none."""
    (tmp_path / "allowed.json").write_text(json.dumps({"q1": ["whale", "chair"], "7": ["lamp"]}))
    url = serve(allowed=str(tmp_path / "allowed.json"), least_score=-1.0)

    answers = [httpx.post(f"{url}/retrieve", json={"queries": [LAMP], "eid": eid}) for eid in ("q1", 7, "q2", None)]

    assert [{"whale", "chair"}, {"lamp"}, set(), set()] == [{*ids(answer)[0]} for answer in answers]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"queries": []}, "request: queries"),
        ({"queries": [" "]}, "request: queries"),
        ({"queries": ["a"], "topk": 0}, "request: topk"),
        ({"query": "a"}, "request: "),
        ([], "request"),
    ],
)
def test_invalid_requests(serve: Serve, body: object, message: str) -> None:
    """An invalid request is an HTTP 400 that names the wrong key."""
    answer = httpx.post(f"{serve()}/retrieve", json=body)

    assert 400 == answer.status_code
    assert answer.json()["detail"].startswith(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index_dir": "/nowhere"}, "/nowhere/eval.jsonl"),
        ({"embeddings": {"url": "http://127.0.0.1:9/v1", "model": "m"}}, "http://127.0.0.1:9/v1/embeddings: no embeddings: "),
        ({"embeddings": {"url": "http://127.0.0.1:9/v1", "model": "m", "api_key": "NO_SUCH_KEY"}}, "export NO_SUCH_KEY="),
        ({"topk": 3}, "retriever config: unknown key 'topk'"),
    ],
)
def test_invalid_settings(start: Callable[..., Child], tmp_path: Path, change: Json, message: str) -> None:
    """If the settings cannot work, the process ends with an error of one sentence."""
    child = start(**change)

    assert 2 == child.process.wait(30)
    assert message in (tmp_path / "retriever-0.log").read_text()


def test_the_retriever_ends_with_its_stdin(start: Callable[..., Child]) -> None:
    """The retriever ends when its stdin closes, because that means that its parent process has ended."""
    child = start()
    child.ready(Listening)
    assert child.process.stdin is not None

    child.process.stdin.close()

    assert 0 == child.process.wait(30)


def test_the_web_is_searched_if_documents_are_few(serve: Serve, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a key, and fewer than three documents, pages of the web follow them with the scores -1 and -2.

    If the web search fails, the answer is 502.
    """
    monkeypatch.setenv("TAVILY_API_KEY", "tvly-test")
    url = serve(tavily={"url": f"http://127.0.0.1:{web.server_port}"})

    (hits,) = httpx.post(f"{url}/retrieve", json={"queries": [WHALE], "return_scores": True}).json()

    pages = [hit for hit in hits if hit["source"] == "tavily"]
    assert ["local", "tavily", "tavily"] == [hit["source"] for hit in hits][-3:]
    assert [({"content": "whole page"}, -1), ({"content": "short page"}, -2)] == [(hit["document"], hit["score"]) for hit in pages]
    ((place, asked),) = web.asked
    assert "/search Bearer tvly-test" == place
    assert (WHALE, "advanced", 20) == (asked["query"], asked["search_depth"], asked["max_results"])
    web.results = []
    refused = httpx.post(f"{url}/retrieve", json={"queries": [WHALE]})
    assert 502 == refused.status_code
    assert "/search: the web search answered HTTP 432" in refused.json()["detail"]


def test_no_web_without_need_or_key(serve: Serve, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """The web is not searched if enough documents are near, or if no key is set."""
    address = f"http://127.0.0.1:{web.server_port}"
    monkeypatch.delenv("TAVILY_API_KEY", raising=False)
    keyless = serve(tavily={"url": address})
    monkeypatch.setenv("TAVILY_API_KEY", "tvly-test")
    enough = serve(tavily={"url": address}, least_score=-1.0)

    for url in (keyless, enough):
        assert 200 == httpx.post(f"{url}/retrieve", json={"queries": [WHALE]}).status_code

    assert [] == web.asked
