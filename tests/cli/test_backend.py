"""`agentbench backend check` with an agent's file: reading the file, and testing its server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.cli.backend import follow
from tests.engines import engine
from tests.web import QuietHandler, serving

Capture = pytest.CaptureFixture[str]

MODEL = "a-model"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a server that has one model."""
    with engine(tmp_path_factory.mktemp("engine"), model=MODEL) as address:
        yield f"{address}/v1"


def config(folder: Path, **settings: Any) -> str:
    file = folder / "agent_config.json"
    file.write_text(json.dumps(settings))
    return str(file)


def test_an_agent(url: str, tmp_path: Path, capsys: Capture) -> None:
    """If the agent's file names the server, no other argument is needed: the check lists the model, chats and calls a tool."""
    file = config(tmp_path, agent_name="mine", model=MODEL, api_base=url, temperature=0.6, max_tokens=64)

    status = main(["backend", "check", "--agent", file])

    read, unused, *proofs = capsys.readouterr().out.splitlines()
    assert 0 == status
    assert f"✓ agent    model {MODEL}, temperature 0.6, max_tokens 64" == read
    assert f"{file}: not used: agent_name" == unused
    assert ["port", "models", "chat", "tools", "speed"] == [line.split()[1] for line in proofs]


def test_a_model_that_the_server_lacks(url: str, tmp_path: Path, capsys: Capture) -> None:
    """If the server does not have the agent's model, the error lists its models."""
    status = main(["backend", "check", url, "--agent", config(tmp_path, model="another")])

    assert (1, f"agentbench: {url} does not serve 'another'; it lists: {MODEL}") == (status, capsys.readouterr().err.splitlines()[-1])


class ShortContext(QuietHandler):
    """A server with a small context, which refuses a large max_tokens like vLLM."""

    def do_GET(self) -> None:
        self.answer(200, json.dumps({"data": [{"id": MODEL}]}).encode())

    def do_POST(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["max_tokens"]
        self.answer(400, json.dumps({"error": {"message": f"'max_tokens' is too large: {wanted}"}}).encode())


def test_sampling_parameters_that_the_server_refuses(tmp_path: Path, capsys: Capture) -> None:
    """The check sends the agent's sampling parameters, so that a refusal is known before a run."""
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), ShortContext)) as server:
        url = f"http://127.0.0.1:{server.server_port}/v1"
        status = main(["backend", "check", url, "--agent", config(tmp_path, model=MODEL, max_tokens=8192)])

    assert (1, True) == (status, "'max_tokens' is too large: 8192" in capsys.readouterr().err)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_iterations": 0}, "agent_config.json: agent: 'terminal' cannot be made from its settings: max_iterations must be"),
        ({"temperature": "hot"}, "agent_config.json: agent: temperature must be "),
        (
            {"model": MODEL},
            "no server is given; pass a running stack, a backend or a URL, or --agent with an agent_config.json that has api_base",
        ),
    ],
)
def test_faults(tmp_path: Path, capsys: Capture, settings: dict[str, Any], sentence: str) -> None:
    """Invalid settings, and a missing server, are errors before any request is sent."""
    status = main(["backend", "check", "--agent", config(tmp_path, **settings)])

    assert (4, True) == (status, sentence in capsys.readouterr().err)


def test_new_lines_of_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """`logs --follow` prints only complete new lines, redacted, under the name of their file, also those before the stack stopped.

    The log of a service that starts later is followed from its beginning.
    """
    monkeypatch.setenv("SHOP_API_KEY", "zebra-42-quartz-lantern")
    engine_log, router_log, late_log = (tmp_path / f"{name}.log" for name in ("engine", "router", "worker"))
    engine_log.write_text("known\n")
    router_log.write_text("known\n")
    looks = iter([("one\ntw", "", "", True), ("o zebra-42-quartz-lantern\n", "three\n", "four\n", False)])

    def goes_on() -> bool:
        *texts, more = next(looks)
        for log, text in zip((engine_log, router_log, late_log), texts, strict=True):
            with log.open("a") as file:
                file.write(str(text))
        return bool(more)

    follow(tmp_path, "*.log", {log: log.stat().st_size for log in (engine_log, router_log)}, goes_on)

    lines = capsys.readouterr().out.splitlines()
    assert [f"==> {engine_log}", "one", "two [redacted]", f"==> {router_log}", "three", f"==> {late_log}", "four"] == lines


def test_a_status_that_is_watched(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """`status --watch` prints the list once with the time, again only if it changes, and ends with Ctrl-C."""
    looks = iter([None, None])

    def interrupted(_seconds: float) -> None:
        if next(looks, "interrupt"):
            raise KeyboardInterrupt

    assert 0 == main(["backend", "status"])
    once = capsys.readouterr().out.splitlines()
    monkeypatch.setattr("time.sleep", interrupted)

    assert 130 == main(["backend", "status", "--watch"])
    at, *lines = capsys.readouterr().out.splitlines()
    assert 2 == at.count(":")
    assert once == lines
