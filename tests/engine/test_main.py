"""The engine as a child process: how it starts, what it refuses, and how it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from pytest_agentbench.engine.config import EngineConfig
from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening

StartEngine = Callable[..., Child]


def _refusal(child: Child) -> str:
    """Returns the message of a child process that refused its settings. It must be one sentence, and the exit code 2."""
    assert 2 == child.process.wait(30)
    (line,) = child.log.read_text().splitlines()
    return line


def test_says_where_it_serves(start_engine: StartEngine) -> None:
    """The ready line has the port, and the engine answers there."""
    port = start_engine().ready(Listening).port

    assert 200 == httpx.get(f"http://127.0.0.1:{port}/health").status_code


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {"ttft": 3},
            f"unknown key 'ttft' (did you mean 'ttft_ms'?); known keys: {', '.join(EngineConfig.model_fields)}",
        ),
        ({"jitter": 1.5}, "jitter: must be less than or equal to 1, not 1.5"),
        ({"ttft_ms": -1}, "ttft_ms: must be greater than or equal to 0, not -1"),
        ({"policy": "lexicla"}, "no policy 'lexicla' (did you mean 'lexical'?); known: careless, lexical, script"),
    ],
)
def test_refuses_faulty_settings(start_engine: StartEngine, config: dict[str, Any], sentence: str) -> None:
    """A faulty setting leads to one sentence that names the key, and exit code 2."""
    assert f"engine config: {sentence}" == _refusal(start_engine(**config))


def test_script_and_policy_go_together(start_engine: StartEngine) -> None:
    """A script without its policy is refused, and so is the policy without a script."""
    for config in ({"policy": "script"}, {"script": "rules.yaml"}):
        said = _refusal(start_engine(**config))

        assert said.startswith("engine config: script must name a file if policy is 'script', and must be absent otherwise")


@pytest.mark.parametrize("line", [b"", b"{policy: lexical}\n"])
def test_refuses_a_line_that_is_not_json(line: bytes) -> None:
    """Invalid JSON on stdin leads to one sentence and exit code 2."""
    done = subprocess.run([sys.executable, "-m", "pytest_agentbench.engine"], input=line, capture_output=True, timeout=30, check=False)
    (said,) = done.stderr.decode().splitlines()

    assert (2, b"") == (done.returncode, done.stdout)
    assert said.startswith("engine config: stdin must begin with a line of JSON: ")


def test_settings_as_an_argument() -> None:
    """An engine with its settings as an argument serves until SIGTERM, whatever happens to stdin."""
    command = [sys.executable, "-m", "pytest_agentbench.engine", '{"model": "mine"}']
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        port = json.loads(engine.stdout.readline())["port"]
        models = httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False).json()["data"]
        engine.terminate()
        status = engine.wait(30)

    assert ["mine"] == [model["id"] for model in models]
    assert 0 == status


def test_refuses_an_argument_that_is_not_json() -> None:
    """Invalid JSON in the argument leads to a sentence that names the argument."""
    command = [sys.executable, "-m", "pytest_agentbench.engine", "lexical"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)

    assert 2 == done.returncode
    assert done.stderr.startswith("engine config: the argument must be a line of JSON: ")


def test_names_a_port_that_is_taken(start_engine: StartEngine) -> None:
    """If the port is in use, the message names it."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = _refusal(start_engine(port=port))

    assert said.startswith(f"engine config: cannot listen on port {port} of 127.0.0.1: ")


def test_names_a_request_log_that_cannot_be_written(start_engine: StartEngine, tmp_path: Path) -> None:
    """A request log in a missing folder is refused at the start, not at the first request."""
    path = str(tmp_path / "missing" / "log.jsonl")

    assert f"engine config: request_log {path!r} cannot be written: No such file or directory" == _refusal(start_engine(request_log=path))


def test_ends_with_stdin(start_engine: StartEngine) -> None:
    """When stdin is closed, the engine ends with exit code 0, even while it answers."""
    child = start_engine(ttft_ms=60_000)
    port = child.ready(Listening).port
    assert child.process.stdin is not None
    request = {"model": "embedded-lexical", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=request, timeout=60):
        child.process.stdin.close()

        assert 0 == child.process.wait(30)
        assert "" == child.log.read_text()


def test_ends_with_sigterm(start_engine: StartEngine) -> None:
    """SIGTERM ends the engine with exit code 0."""
    child = start_engine()
    child.ready(Listening)
    child.process.send_signal(signal.SIGTERM)

    assert 0 == child.process.wait(30)


def test_logs_every_request(serve: Callable[..., str], tmp_path: Path) -> None:
    """The request log has a line for each body, including broken ones."""
    path = tmp_path / "requests.jsonl"
    url = f"{serve(request_log=str(path))}/v1/chat/completions"
    body = {"model": "embedded-lexical", "messages": [{"role": "user", "content": "Grüße"}]}
    httpx.post(url, json=body)
    httpx.post(url, content=b'{"model": ')

    assert [body, '{"model": '] == [json.loads(line) for line in path.read_text().splitlines()]
