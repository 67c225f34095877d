"""Readiness of an endpoint, against a small HTTP server on 127.0.0.1."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.ready import listed_models
from pytest_agentbench.backends.url import Url, UrlSpec
from pytest_agentbench.errors import BackendError, ConfigError
from pytest_agentbench.lib.connection_security import of_key
from pytest_agentbench.records import Endpoint
from tests.web import QuietHandler, serving

pytestmark = pytest.mark.timeout(60)

HINT = "; is it the base URL of an OpenAI-compatible server? It usually ends in /v1"
NO_LIST = "answered 200 OK, but with no list of models"
TWO_MODELS = json.dumps({"object": "list", "data": [{"id": "small"}, {"id": "big"}]})


class Server(ThreadingHTTPServer):
    """Answers /v1/models with a given body, and records the keys of requests."""

    def __init__(self, status: int, body: str) -> None:
        self.status, self.body = status, body.encode()
        self.authorizations: list[str | None] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(QuietHandler):
    """One request."""

    server: Server

    def do_GET(self) -> None:
        self.server.authorizations.append(self.headers.get("Authorization"))
        self.answer(self.server.status if self.path == "/v1/models" else 404, self.server.body)


@contextmanager
def listing(body: str = TWO_MODELS, status: int = 200) -> Iterator[Server]:
    """Runs a server during a test."""
    with serving(Server(status, body)) as server:
        yield server


@contextmanager
def saying(answer: bytes) -> Iterator[str]:
    """Yields the URL of a server that answers every connection with the same bytes, HTTP or not."""

    def answer_all() -> None:
        try:
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)
        except OSError:
            return  # the client has closed the connection

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=answer_all)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def backend(url: str, **keys: Any) -> Url:
    return Url(UrlSpec(kind="url", name="mine", url=url, **keys))


def refusal(url: str, **keys: Any) -> str:
    """Returns the error of a backend that does not start."""
    with pytest.raises(BackendError) as caught:
        backend(url, **keys).start(Path())
    return str(caught.value)


def test_models_are_listed() -> None:
    """The models are in the server's order. Without a key, none is sent."""
    with listing() as server:
        assert ["small", "big"] == listed_models(Endpoint(server.url, ""))
        assert [None] == server.authorizations


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (404, "", "answered 404 Not Found" + HINT),
        (401, '{"error": {"message": "no key"}}', "answered 401 Unauthorized: no key; " + of_key(None, sent=False)),
        (503, "busy\n now", "answered 503 Service Unavailable: busy now" + HINT),
        *((200, body, f"{NO_LIST}: {body}{HINT}") for body in ("<html>", "{}", "[]", '{"data": null}', '{"data": [{}]}')),
        (200, "", f"{NO_LIST}: nothing{HINT}"),
        (200, '{"data": []}', "lists no model; see the log of the server"),
    ],
)
def test_answers_without_a_list_of_models(status: int, body: str, sentence: str) -> None:
    """The message has the address and the answer."""
    with listing(body, status) as server:
        assert f"GET {server.url}/models {sentence}" == refusal(server.url)


@pytest.mark.parametrize("answer", [b"", b"220 mail.example.org ESMTP\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"])
def test_servers_without_http(answer: bytes) -> None:
    """A server that closes the connection, uses another protocol or stops in the middle is not an endpoint."""
    with saying(answer) as url:
        assert refusal(url).startswith(f"GET {url}/models got no answer: ")


def test_the_proxy_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy of the environment is ignored, because the tap connects directly, too."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with listing() as server:
        assert ["small", "big"] == listed_models(Endpoint(server.url, ""))


def test_a_port_without_a_server() -> None:
    """The message for a port without a server says that the connection was refused."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"

    assert (
        f"GET {url}/models got no answer: {ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))}{HINT}"
        == refusal(url)
    )


def test_an_invalid_ca_file(tmp_path: Path) -> None:
    """A certificate authority that is missing or invalid is named."""
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")

    assert f"ca_file {tmp_path}/no.pem cannot be used: No such file or directory; it must be a PEM file" == refusal(
        "https://127.0.0.1:9", ca_file=f"{tmp_path}/no.pem"
    )
    assert refusal("https://127.0.0.1:9", ca_file=str(broken)).startswith(f"ca_file {broken} cannot be used: ")


def test_a_url_backend_starts() -> None:
    """The endpoint has the given model, or else the first listed one. The watch ends with the session."""
    with listing() as server:
        mine = backend(server.url)

        assert Endpoint(server.url, "small", "mine") == mine.start(Path())
        assert Endpoint(server.url, "big", "mine") == backend(server.url, model="big").start(Path())
        mine.stop()
        assert mine.watch(lambda _: False) is None


def test_a_model_that_is_not_served() -> None:
    """A model that the server does not list is refused with the listed ones."""
    with listing() as server:
        assert f"{server.url} does not serve 'huge'; it lists: small, big" == refusal(server.url, model="huge")


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is read from the variable in the YAML, without a trailing line break, and sent."""
    monkeypatch.setenv("SHOP_KEY", "hush\n")
    with listing() as server:
        endpoint = backend(server.url, api_key_env="SHOP_KEY").start(Path())

        # A slow server gets the request more than once, so only different keys count.
        assert ("hush", {"Bearer hush"}) == (endpoint.api_key, set(server.authorizations))
    assert "hush" not in repr(endpoint)


@pytest.mark.parametrize("value", [None, "", " \n"])
def test_a_missing_key(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """A missing or empty key is an error before any request."""
    monkeypatch.delenv("SHOP_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("SHOP_KEY", value)
    with listing() as server:
        with pytest.raises(ConfigError, match=r"^backend 'mine' needs its key in the environment variable SHOP_KEY, which is not set$"):
            backend(server.url, api_key_env="SHOP_KEY").start(Path())

        assert [] == server.authorizations
