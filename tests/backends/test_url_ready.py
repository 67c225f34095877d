"""`ready` of a server that agentbench did not start: the session waits for its model and for Dynamo's workers."""

from __future__ import annotations

import json
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.url import AttachedReadySpec, Url, UrlSpec
from pytest_agentbench.errors import BackendError
from tests.waits import wait_for
from tests.web import QuietHandler, serving

pytestmark = pytest.mark.timeout(60)


class Frontend(ThreadingHTTPServer):
    """Answers like Dynamo's frontend: no model without a worker, and the workers of each type over two namespaces."""

    def __init__(self) -> None:
        self.workers: dict[str, int] = {}
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(QuietHandler):
    """One request."""

    server: Frontend

    def do_GET(self) -> None:
        workers = self.server.workers
        types = {kind: {"workers": count} for kind, count in workers.items()}
        bodies = {
            "/v1/models": {"object": "list", "data": [{"id": "large"}] if workers else []},
            "/v1/models/large/ready": {"namespaces": {"a": {"worker_types": types}, "b": {"worker_types": {}}}},
        }
        self.answer(200 if self.path in bodies else 404, json.dumps(bodies.get(self.path, {})).encode())


def attached(url: str, **ready: Any) -> Url:
    return Url(UrlSpec(kind="url", name="mine", url=url, ready=AttachedReadySpec(**ready)))


def test_workers_are_waited_for() -> None:
    """The start waits until the model is listed and Dynamo lists as many workers as required, and shows what is missing."""
    with serving(Frontend()) as frontend:
        backend = attached(frontend.url, workers={"prefill": 4, "decode": 2})
        models: list[str] = []
        starting = threading.Thread(target=lambda: models.append(backend.start(Path()).model))
        starting.start()
        wait_for(lambda: "lists no model" in backend.status, "the wait for the model")
        frontend.workers = {"prefill": 1, "decode": 2}
        wait_for(lambda: backend.status.endswith("ready workers: 1 of 4 prefill"), "the wait for workers")
        assert backend.status.startswith("readiness check `workers`: ")
        frontend.workers = {"prefill": 4, "decode": 2}
        starting.join()

    assert ["large"] == models


def test_workers_that_never_come() -> None:
    """After `ready.timeout` the start fails, and says what is missing."""
    with serving(Frontend()) as frontend:
        frontend.workers = {"decode": 1}
        with pytest.raises(BackendError, match=r"^not ready in time, check `workers` failed: .*; ready workers: 1 of 2 decode$"):
            attached(frontend.url, workers={"decode": 2}, timeout="500ms").start(Path())


def test_a_server_that_does_not_run_yet() -> None:
    """A server that does not listen yet is waited for. The end of the session ends the wait."""
    backend = attached("http://127.0.0.1:9/v1")
    errors: list[str] = []

    def start() -> None:
        try:
            backend.start(Path())
        except BackendError as error:
            errors.append(str(error))

    starting = threading.Thread(target=start)
    starting.start()
    wait_for(lambda: "nothing listens on 127.0.0.1:9" in backend.status, "the wait for the server")
    backend.stop()
    starting.join()

    assert ["the session ended while it waited for the server"] == errors
