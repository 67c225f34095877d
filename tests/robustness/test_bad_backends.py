"""Unusable backends: a wrong description is a usage error before anything starts, and a backend that does not start is an ERROR."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.project import WAYS, Project
from tests.web import QuietHandler, serving

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("yaml", "arguments", "sentence"),
    [
        (None, ("--agentbench-backend=nowhere",), "no backend 'nowhere'; known: *embedded*"),
        (None, ("--agentbench-backend=my/own.yaml",), "there is no backend file my/own.yaml: */my/own.yaml does not exist"),
        ("kind: dynamo\n", (), "*backends/embedded.yaml: kind must be one of embedded, url, stack, recorded, not 'dynamo'"),
        (
            "kind: embedded\npolicy: lexicla\n",
            (),
            "*backends/embedded.yaml: no policy 'lexicla' (did you mean 'lexical'?); known: careless, lexical, script",
        ),
        (
            "kind: embedded\nttft: 40\n",
            (),
            (
                "*backends/embedded.yaml: unknown key 'ttft' (did you mean 'ttft_ms'?); "
                "known keys: request_fields, context_length, name, model,*"
            ),
        ),
        ("kind: embedded\nport: [1\n", (), "*backends/embedded.yaml:3: not valid YAML: *"),
        ("kind: embedded\njitter: 2\n", (), "*backends/embedded.yaml: jitter: must be less than or equal to 1, not 2"),
        ("kind: url\n", (), "*backends/embedded.yaml: the key 'url' is missing"),
        (
            "kind: url\nurl: localhost:8000\n",
            (),
            "*backends/embedded.yaml: url: must start with http:// or https://, not 'localhost:8000'",
        ),
        (
            "kind: embedded\nthresholds: {shop: {bleu: 1}}\n",
            (),
            "threshold 'bleu': suite 'shop' does not measure this score; name one *",
        ),
    ],
)
def test_a_wrong_description_is_a_usage_error(project: Project, yaml: str | None, arguments: tuple[str, ...], sentence: str) -> None:
    """A wrong description is one sentence with the file and the fault, and exit status 4. Nothing is started or written."""
    project.suite()
    if yaml is not None:
        project.write("backends/embedded.yaml", yaml)

    result = project.run(*arguments, "scenarios/shop")

    assert 4 == result.ret
    result.stderr.fnmatch_lines([f"ERROR: {sentence}"])
    assert "Traceback" not in result.stderr.str()
    assert not (project.root / "reports").exists()


def test_a_wrong_description_with_workers(project: Project) -> None:
    """With -n, a wrong description ends the session before workers start."""
    project.suite()

    result = project.run("-n", "2", "--agentbench-backend=nowhere", "scenarios/shop")

    assert 4 == result.ret
    result.stderr.fnmatch_lines(["ERROR: no backend 'nowhere'; known: *embedded*"])


def test_reports_that_cannot_be_written(project: Project) -> None:
    """A file in the place of the reports directory is a usage error that names it."""
    project.suite()
    project.write("taken", "")

    result = project.run("--agentbench-reports=taken", "scenarios/shop")

    assert 4 == result.ret
    result.stderr.fnmatch_lines(["ERROR: *taken*"])
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


@WAYS
def test_a_port_that_is_taken(project: Project, way: tuple[str, ...]) -> None:
    """If the engine's port is in use, an ERROR names the port, there is no mean, and run.json has the reason."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        project.backend(port=port)
        project.suite(scenarios=3, thresholds={"tsq": 0.5, "tsq.mean": 0.5})

        result = project.run(*way, "scenarios/shop")

    assert 1 <= result.parseoutcomes().get("errors", 1) <= (3 if way else 1)
    assert 6 == result.ret
    result.stdout.fnmatch_lines(
        ["shop*: infra_error: the backend 'embedded' is not available: *", f"* cannot listen on port {port} of 127.0.0.1: *"]
    )
    run = project.run_json
    assert ("NOT MEASURED", 6, None) == (run["verdict"], run["exit_status"], run["suites"]["shop"]["scores"]["tsq"]["mean"])
    assert str(port) in run["backend"]["failure"]


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (None, "*backends/embedded.script.yaml: No such file or directory"),
        (
            "- text: hello\n- txet: hello\n",
            "*backends/embedded.script.yaml: rule 2: unknown key 'txet' (did you mean 'text'?); known keys: *",
        ),
        ("- text: [\n", "*backends/embedded.script.yaml:2: not valid YAML: *"),
    ],
)
def test_an_engine_that_dies_before_it_is_ready(project: Project, script: str | None, sentence: str) -> None:
    """If the engine dies before it is ready, an ERROR has the command, the exit code and the end of the engine's log."""
    project.suite(scenarios=2)
    file = project.root / "backends/embedded.script.yaml"
    file.unlink() if script is None else file.write_text(script)

    result = project.run("scenarios/shop")

    result.assert_outcomes(errors=1)
    assert 6 == result.ret
    result.stdout.fnmatch_lines(
        [
            "*is not available: `python -m pytest_agentbench.engine` died before it was ready (exit code 2); the end of engine.log:",
            f"    {sentence}",
        ]
    )


class Answer(QuietHandler):
    """Answers every GET with the status and body of the server."""

    def do_GET(self) -> None:
        assert isinstance(self.server, Answering)
        self.answer(self.server.status, self.server.body)


class Answering(http.server.ThreadingHTTPServer):
    """A web server that is not a model server."""

    status, body = 200, b""


@contextmanager
def web_server(status: int, body: bytes) -> Iterator[str]:
    """Yields the base URL of a server that gives this answer to every request."""
    server = Answering(("127.0.0.1", 0), Answer)
    server.status, server.body = status, body
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}/v1"


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (404, b"not here", "answered 404 Not Found: not here; is it the base URL of an OpenAI-compatible server? It usually ends in /v1"),
        (401, b"no key", "answered 401 Unauthorized: no key; no key was sent: `api_key_env` in a backend's YAML"),
        (200, b"<html>welcome</html>", "answered 200 OK, but with no list of models: "),
        (200, b'{"data": "none"}', "answered 200 OK, but with no list of models: "),
        (200, b'{"object": "list", "data": []}', "lists no model"),
        (200, b'{"data": [{"id": "other"}]}', "does not serve 'wanted'; it lists: other"),
    ],
)
def test_a_url_without_a_model_server(project: Project, status: int, body: bytes, sentence: str) -> None:
    """If a URL is not that of a model server, the tests are ERRORs with the request and the answer."""
    project.suite(scenarios=1)
    with web_server(status, body) as url:
        project.write("backends/remote.yaml", json.dumps({"kind": "url", "url": url, "model": "wanted"}))

        result = project.run("--agentbench-backend=remote", "scenarios/shop")

    result.assert_outcomes(errors=1)
    assert 6 == result.ret
    result.stdout.fnmatch_lines([f"*the backend 'remote' is not available: *{url}* {sentence.split(' ', maxsplit=1)[0]} *"])
    assert sentence in result.stdout.str()


def test_a_url_where_nothing_listens(project: Project) -> None:
    """If nothing listens at the URL, the message has the URL and says that the connection was refused.

    A server without HTTP is reported, too.
    """
    project.suite(scenarios=1)
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        threading.Thread(target=_greet, args=(other,), daemon=True).start()

        spoke = project.run(f"--agentbench-backend=http://127.0.0.1:{port}/v1", "scenarios/shop")

    silent = project.run(f"--agentbench-backend=http://127.0.0.1:{port}/v1", "scenarios/shop")

    for result, why in ((spoke, "*220 mail*"), (silent, "*refused*")):
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines([f"*the backend 'url' is not available: GET http://127.0.0.1:{port}/v1/models got no answer: {why}"])


def _greet(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"220 mail.example\r\n")


def test_a_missing_key_or_certificate(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a backend's key or certificate is missing, the message names the environment variable or the file."""
    monkeypatch.delenv("SHOP_KEY", raising=False)
    project.suite(scenarios=1)
    with web_server(200, b'{"data": [{"id": "m"}]}') as url:
        project.write("backends/keyed.yaml", json.dumps({"kind": "url", "url": url, "api_key_env": "SHOP_KEY"}))
        project.write("backends/signed.yaml", json.dumps({"kind": "url", "url": url, "ca_file": "missing.pem"}))

        keyed = project.run("--agentbench-backend=keyed", "scenarios/shop")
        signed = project.run("--agentbench-backend=signed", "scenarios/shop")

    keyed.assert_outcomes(errors=1)
    keyed.stdout.fnmatch_lines(["*backend 'keyed' needs its key in the environment variable SHOP_KEY, which is not set"])
    signed.assert_outcomes(errors=1)
    signed.stdout.fnmatch_lines(["*the backend 'signed' is not available: *missing.pem*"])
