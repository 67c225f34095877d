"""Fixtures: a small corpus, an engine that computes its vectors, and a retriever. All of them are real."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.records import Json
from tests import engines
from tests.web import QuietHandler, serving

pytest.importorskip("faiss", reason="NOT TESTED: the extra `retriever` is not installed: pip install 'pytest-agentbench[retriever]'")

TEXTS = {
    "lamp": "Brass lamps were made in the workshops of the old town, where smiths hammered sheets of brass into shades and stands for oil.",
    "chair": "Oak chairs last for generations: the wood is split along its grain, dried for years, and joined without any nail or screw.",
    "bridge": "Suspension bridges hang their deck from cables over towers; its weight keeps the cables under tension all the time.",
    "whale": "Blue whales feed on krill, tiny crustaceans of cold oceans, and swallow several tonnes of them on each day of summer.",
    "short": "Brass lamps.",
}


def documents() -> list[Json]:
    return [{"id": id, "contents": text, "title": id.title()} for id, text in TEXTS.items()]


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields the base URL of an engine that computes vectors."""
    with engines.engine(tmp_path_factory.mktemp("engine"), model="m") as url:
        yield f"{url}/v1"


@pytest.fixture(scope="session")
def index_dir(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of an index that `agentbench retriever build` made."""
    folder = tmp_path_factory.mktemp("index")
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(f"{json.dumps(each)}\n" for each in documents()))
    assert 0 == main(["retriever", "build", str(corpus), "--output", str(folder), "--url", engine, "--model", "m"])
    return folder


Start = Callable[..., Child]


@pytest.fixture
def start(engine: str, index_dir: Path, tmp_path: Path) -> Iterator[Start]:
    """Returns a function that starts retrievers with given settings. All of them are stopped at the end."""
    children: list[Child] = []

    def retriever(**config: Any) -> Child:
        settings = {"index_dir": str(index_dir), "embeddings": {"url": engine, "model": "m"}, **config}
        children.append(Child("pytest_agentbench.retriever", settings, tmp_path / f"retriever-{len(children)}.log"))
        return children[-1]

    yield retriever
    for child in children:
        child.stop()


@pytest.fixture
def serve(start: Start) -> Callable[..., str]:
    """Returns a function that starts a retriever with given settings, and returns its address when it is ready."""
    return lambda **config: f"http://127.0.0.1:{start(**config).ready(Listening).port}"


class Web(ThreadingHTTPServer):
    """A server with the API of Tavily."""

    asked: list[tuple[str, Json]]
    results: list[Json]
    answers: threading.Event  # it waits for this before it answers


class Handler(QuietHandler):
    server: Web

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((f"{self.path} {self.headers['Authorization']}", body))
        self.server.answers.wait()
        answer = json.dumps({"results": self.server.results}).encode()
        with contextlib.suppress(ConnectionError):  # the retriever may have closed the connection
            self.answer(200 if self.server.results else 432, answer)


@pytest.fixture
def web() -> Iterator[Web]:
    with serving(Web(("127.0.0.1", 0), Handler)) as server:
        server.answers = threading.Event()
        server.answers.set()
        server.asked, server.results = [], [{"content": "cut", "raw_content": "whole page"}, {"content": "short page", "raw_content": None}]
        yield server
