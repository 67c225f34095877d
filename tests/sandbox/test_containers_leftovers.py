"""Leftover sandboxes that cannot be removed, with a server on loopback in the role of the Docker Engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.records import Json, RolloutKey
from pytest_agentbench.sandbox.containers import DEADLINE, OWNER, labels
from pytest_agentbench.sandbox.factory import Sandboxes
from tests.web import QuietHandler, serving

STUCK, FREE = "1" * 64, "2" * 64  # ids of containers; the first one cannot be removed
LATE = {**labels("a-run", RolloutKey("shop", "first"), 0.0), DEADLINE: "1000"}


class Engine(ThreadingHTTPServer):
    """The part of a Docker Engine that is needed to list and remove sandboxes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.containers = [STUCK, FREE]


class _Handler(QuietHandler):
    server: Engine

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.endswith("/version"):
            self._answer(200, {"ApiVersion": "1.41", "Version": "20.10.24"})
        elif path.endswith("/containers/json"):
            found = self.server.containers if OWNER in self.path else []
            self._answer(200, [{"Id": each, "Names": ["/sandbox"], "Labels": LATE} for each in found])
        elif path.endswith("/json"):
            self._answer(200, {"Id": path.split("/")[-2], "Name": "/sandbox", "Config": {"Labels": LATE}})
        else:
            self._answer(200, {"Volumes": []} if path.endswith("/volumes") else [])

    def do_DELETE(self) -> None:
        if STUCK in self.path:
            self._answer(500, {"message": "device or resource busy"})
        else:
            self.server.containers.remove(FREE)
            self._answer(204, None)

    def _answer(self, status: int, said: Json | list[Json] | None) -> None:
        self.answer(status, b"" if said is None else json.dumps(said).encode())


@pytest.fixture
def stubborn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Yields the engine that the package uses in this test. It refuses to remove some sandboxes."""
    monkeypatch.setenv("AGENTBENCH_STACKS", str(tmp_path / "s"))
    with serving(Engine()) as server:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
        yield server


def test_containers_that_cannot_be_removed_are_named(stubborn: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """`agentbench cleanup` removes as much as it can, names the rest with the engine's reason, and reports no success."""
    status = main(["cleanup"])

    said = capsys.readouterr()
    assert (1, "") == (status, said.out)
    assert said.err.startswith(f"agentbench: sandbox {STUCK[:12]} of shop[first], run a-run cannot be removed: device or resource busy")
    assert said.err.endswith(f"; sandbox {FREE[:12]} of shop[first], run a-run is removed\n")
    assert [STUCK] == stubborn.containers


async def test_a_session_reports_it_too(stubborn: Engine) -> None:
    """A session also reports a leftover that cannot be removed, and continues, because it does not prevent rollouts."""
    told: list[str] = []
    await Sandboxes("another-run", 1, told.append)._clean_up_once()

    (saying,) = told
    assert "cannot be removed: device or resource busy" in saying


def test_no_engine_no_sandboxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without Docker there are no leftover sandboxes."""
    monkeypatch.setenv("AGENTBENCH_STACKS", str(tmp_path / "s"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")

    assert 0 == main(["cleanup"])
    assert "nothing to clean up\n" == capsys.readouterr().out
