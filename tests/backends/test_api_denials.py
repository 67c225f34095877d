"""Answers that end the readiness checks at once, answers that are retried, and the messages with advice.

The answers have texts of real servers.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.api import NeverReady
from pytest_agentbench.backends.ready import ReadinessChecks
from pytest_agentbench.backends.stack.spec import ReadySpec
from pytest_agentbench.cli import main
from pytest_agentbench.errors import BackendError
from pytest_agentbench.records import Endpoint
from tests.certificates import make, needs_openssl
from tests.web import QuietHandler, serving

pytestmark = pytest.mark.timeout(60)

MODELS = (200, {"data": [{"id": "m"}]})
CALL = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
CHAT = (200, {"choices": [{"index": 0, "message": {"content": "Hi", "tool_calls": [CALL]}, "finish_reason": "stop"}]})

Answers = Sequence[tuple[int, Any]]


class Server(ThreadingHTTPServer):
    """Serves the answers of a path in turn, repeats the last one, and counts requests."""

    def __init__(self, answers: Mapping[str, Answers]) -> None:
        self.answers: dict[str, Answers] = {"/v1/models": [MODELS], "/v1/chat/completions": [CHAT], **answers}
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores errors, because clients that do not trust the certificate disconnect."""


class Handler(QuietHandler):
    """One request."""

    server: Server

    def do_GET(self) -> None:
        answers = self.server.answers.get(self.path, [(404, {"detail": "Not Found"})])
        status, body = answers[min(self.server.asked.count(self.path), len(answers) - 1)]
        self.server.asked.append(self.path)
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.answer(status, data)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()


@contextmanager
def answering(answers: Mapping[str, Answers] | None = None, tls: ssl.SSLContext | None = None) -> Iterator[tuple[Server, str]]:
    """Runs a server. Yields it and its base URL."""
    server = Server(answers or {})
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with serving(server):
        yield server, f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}/v1"


def run_checks(endpoint: Endpoint, *, boots: bool = False) -> list[str]:
    """Returns the names of the checks that passed. The time limit is longer than any test."""
    ladder = ReadinessChecks(endpoint, ReadySpec(in_a_row=1), time.monotonic() + 600, boots=boots)
    return [rung.name for rung in ladder.run_checks()]


def refusal(endpoint: Endpoint, *, boots: bool = False) -> str:
    with pytest.raises(NeverReady) as caught:
        run_checks(endpoint, boots=boots)
    return str(caught.value)


def error(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 422])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions"])
def test_final_refusals(path: str, status: int) -> None:
    """A final refusal is requested once and quoted."""
    with answering({path: [(status, error("not for you"))]}) as (server, url):
        sentence = refusal(Endpoint(url, "m"))

    assert 1 == server.asked.count(path)
    assert f"answered {status} " in sentence
    assert ": not for you" in sentence


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions"])
@pytest.mark.parametrize("boots", [False, True])
def test_temporary_refusals(path: str, status: int, boots: bool) -> None:
    """Statuses of a server that is not ready yet, or busy, are retried."""
    well = MODELS if path.endswith("models") else CHAT
    with answering({path: [(status, "loading"), (status, "loading"), well]}) as (_, url):
        assert ["port", "models", "chat", "tools"] == run_checks(Endpoint(url, "m"), boots=boots)


@pytest.mark.parametrize(
    ("path", "unfinished"),
    [
        ("/v1/models", (404, "no such path")),
        ("/v1/models", (200, "<html>starting</html>")),
        ("/v1/models", (200, {"data": [{"id": "other"}]})),
        ("/v1/chat/completions", (404, error("the model does not exist"))),
    ],
)
def test_what_a_booting_server_lacks(path: str, unfinished: tuple[int, Any]) -> None:
    """A missing path or model is retried while a stack boots, but not for a running server."""
    well = MODELS if path.endswith("models") else CHAT
    with answering({path: [unfinished, unfinished, well]}) as (_, url):
        assert ["port", "models", "chat", "tools"] == run_checks(Endpoint(url, "m"), boots=True)
    with answering({path: [unfinished]}) as (server, url):
        refusal(Endpoint(url, "m"))

        assert 1 == server.asked.count(path)


def test_no_model_yet() -> None:
    """An empty list of models is always retried, because a frontend lists none before its workers are up."""
    with answering({"/v1/models": [(200, {"data": []}), MODELS]}) as (_, url):
        assert ["port", "models", "chat", "tools"] == run_checks(Endpoint(url, "m"))


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions"])
def test_a_rejected_key(path: str, status: int) -> None:
    """The message names the variable or `api_key_env` and quotes the server, shortened and without the key that it repeats."""
    key = "zebra-crossing-17"
    with answering({path: [(status, error(f"Incorrect API key provided: {key}.\n{'x' * 999}"))]}) as (_, url):
        keyed = refusal(Endpoint(url, "m", api_key=key, api_key_env="SHOP_KEY"), boots=True)
        without = refusal(Endpoint(url, "m"))
        of_header = refusal(Endpoint(url, "m", headers={"Authorization": f"Bearer {key}"}))

    assert "Incorrect API key provided: [redacted]. xxx" in keyed
    assert "; check that the environment variable SHOP_KEY, which `api_key_env` names, has a key of this server" in keyed
    assert "; no key was sent: `api_key_env` in a backend's YAML" in without
    assert of_header.endswith("; check the key")
    assert key not in keyed
    assert len(keyed) < 600


@needs_openssl
def test_a_certificate_of_an_unknown_authority(certificates: Path, tls: ssl.SSLContext, tmp_path: Path) -> None:
    """The message says that `ca_file` is missing or is of another authority. With the right one the server is ready."""
    with answering(tls=tls) as (_, url):
        assert ["port", "models", "chat", "tools"] == run_checks(Endpoint(url, "m", ca_file=str(certificates / "ca.pem")))
        without = refusal(Endpoint(url, "m"), boots=True)
        of_another = refusal(Endpoint(url, "m", ca_file=str(make(tmp_path) / "ca.pem")))

    assert f"GET {url}/models got no answer: the server's certificate is not trusted (" in without
    assert without.endswith("); set `ca_file` in the backend's YAML to the PEM file of its authority")
    assert " does not contain its authority; use that one's PEM file" in of_another


@needs_openssl
def test_a_certificate_of_another_host(certificates: Path, tls: ssl.SSLContext) -> None:
    """The message says that the certificate is for another name, which no `ca_file` can fix."""
    with answering(tls=tls) as (_, url):
        sentence = refusal(Endpoint(url.replace("127.0.0.1", "localhost"), "m", ca_file=str(certificates / "ca.pem")))

    assert "the server's certificate is not for localhost (" in sentence
    assert sentence.endswith("); use a name from the certificate in the URL; a `ca_file` does not help")


def test_https_to_a_server_without_tls() -> None:
    """An https:// address of a server without TLS ends the checks at once."""
    with answering() as (_, url):
        sentence = refusal(Endpoint(url.replace("http:", "https:"), "m"))

    assert "the server does not speak TLS (" in sentence
    assert sentence.endswith("); check whether the URL should begin with http://")


@pytest.mark.parametrize("host", ["a..b", "nowhere.invalid"])
def test_an_invalid_host(host: str) -> None:
    """An invalid or unknown host name ends the checks at once."""
    try:
        socket.getaddrinfo("nowhere.invalid", 80)
    except socket.gaierror as unknown:
        if unknown.errno != socket.EAI_NONAME:
            pytest.skip("nobody here says which names there are")
    sentence = refusal(Endpoint(f"http://{host}:80/v1", "m"))

    assert f"no connection to {host}:80: the host '{host}' does not exist; check the URL" == sentence


def test_the_check_asks_once(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`agentbench backend check` sends one request to a server that needs a key, and escapes its answer."""
    monkeypatch.chdir(tmp_path)
    with answering({"/v1/models": [(401, error("no \x1b[31mkey"))]}) as (server, url):
        status = main(["backend", "check", url])

    assert 1 == status
    assert ["/v1/models"] == server.asked
    said = capsys.readouterr().err
    assert f"agentbench: GET {url}/models answered 401 Unauthorized: no \\x1b[31mkey; no key was sent: `api_key_env`" in said


def test_time_is_up() -> None:
    """The message after a timeout quotes the server."""
    with answering({"/v1/models": [(503, "loading")]}) as (_, url), pytest.raises(BackendError, match=r"answered 503 .*: loading"):
        list(ReadinessChecks(Endpoint(url, "m"), ReadySpec(), time.monotonic()).run_checks())
