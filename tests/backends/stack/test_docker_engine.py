"""The connection to a Docker Engine, with the installed versions of the Docker client and of requests."""

from __future__ import annotations

from pathlib import Path
from socketserver import UnixStreamServer

import pytest

from pytest_agentbench.backends.stack.docker_engine import connect
from tests.web import QuietHandler, serving


class Engine(QuietHandler):
    """Answers like a Docker Engine that has started."""

    def do_GET(self) -> None:
        self.answer(200, b'{"ApiVersion": "1.44", "Version": "29.0.0"}')


def test_the_engine_is_reached_at_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client speaks HTTP over a Unix socket. docker 7.0 cannot do so with requests 2.32 or newer."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")

    with serving(UnixStreamServer(f"{tmp_path}/engine.sock", Engine)):
        client = connect()
        version = client.version()
        client.close()

    assert "29.0.0" == version["Version"]
