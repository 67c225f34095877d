"""`agentbench weights get`: a real client against a hub on loopback."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = "somebody/some-model"

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("huggingface_hub"),
    reason="NOT TESTED: the extra `hub` is not installed: pip install 'pytest-agentbench[hub]'",
)


class Hub(ThreadingHTTPServer):
    """As much of a hub as the client asks for: one model at one commit, which may be gated."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {"config.json": b"{}", "model.safetensors": b"weights", "original/model.pth": b"the same weights"}
        self.gated = False
        self.size: int | None = None  # of every file, instead of the true one
        self.fetched: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def _answer(self, with_body: bool) -> None:
        name = self.path.removeprefix(f"/{MODEL}/resolve/{COMMIT}/")
        body, status = self.server.files.get(name), 200
        if with_body and body is not None:
            self.server.fetched.append(name)
        if self.path.startswith(f"/api/models/{MODEL}/revision/"):
            siblings = [{"rfilename": name} for name in self.server.files]
            body = json.dumps({"id": MODEL, "sha": COMMIT, "gated": self.server.gated and "manual", "siblings": siblings}).encode()
        elif self.path.startswith(f"/api/models/{MODEL}/tree/"):
            tree = [{"type": "file", "path": name, "size": self._size(content), "oid": "0"} for name, content in self.server.files.items()]
            body = json.dumps(tree).encode()
        elif self.path == f"/api/models/{MODEL}/auth-check":
            status = 200 if not self.server.gated or self.headers.get("Authorization") == "Bearer allowed" else 403
            body = b"{}"
        self.send_response(404 if body is None else status)
        if body is None or status == 403:
            self.send_header("X-Error-Code", "RepoNotFound" if body is None else "GatedRepo")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(body or b"").hexdigest()}"')
        self.send_header("Content-Length", str(len(body or b"") if with_body else self._size(body or b"")))
        self.end_headers()
        if with_body:
            self.wfile.write(body or b"")

    def _size(self, content: bytes) -> int:
        return self.server.size or len(content)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(hub: Hub, folder: Path, *arguments: str, token: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, because the client reads its endpoint when it is imported."""
    of_hub = {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": token,
    }
    environment = {**os.environ, **of_hub, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-m", "pytest_agentbench.cli", "weights", "get", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_a_folder_of_its_own(hub: Hub, tmp_path: Path) -> None:
    """The files are fetched at the commit behind the revision, without the same weights in another form; the folder is printed last."""
    done = get(hub, tmp_path, MODEL, "--to", "model")

    assert 0 == done.returncode, done.stderr
    assert [f"{MODEL} at {COMMIT}: 2 files, 0.0 GB, 0.0 GB to fetch", str(tmp_path / "model")] == done.stdout.splitlines()
    assert b"weights" == (tmp_path / "model" / "model.safetensors").read_bytes()
    assert not (tmp_path / "model" / "original").exists()


def test_the_cache(hub: Hub, tmp_path: Path) -> None:
    """Without a folder they go where engines look for them, and nothing is fetched twice."""
    first = get(hub, tmp_path, MODEL)
    fetched = list(hub.fetched)
    get(hub, tmp_path, MODEL)

    home = Path(first.stdout.splitlines()[-1])
    assert tmp_path / "home" / "hub" / "models--somebody--some-model" / "snapshots" / COMMIT == home
    assert b"weights" == (home / "model.safetensors").read_bytes()
    assert ["config.json", "model.safetensors"] == sorted(fetched)
    assert fetched == hub.fetched


@pytest.mark.parametrize(
    ("token", "status", "said"),
    [
        ("", 4, "set HF_TOKEN to a token of an account that may have it"),
        ("of-another", 4, "the token in use is of an account that may not have it"),
        ("allowed", 0, ""),
    ],
)
def test_a_gated_model(hub: Hub, tmp_path: Path, token: str, status: int, said: str) -> None:
    """Without a token that may have it nothing is fetched, and the error says where the licence is and what to set."""
    hub.gated = True

    done = get(hub, tmp_path, MODEL, "--to", "model", token=token)

    assert status == done.returncode, done.stderr
    if status:
        page = f"http://127.0.0.1:{hub.server_port}/{MODEL}"
        assert f"agentbench: {MODEL} is gated: accept its licence at {page}; {said}" == done.stderr.splitlines()[-1]
        assert [] == hub.fetched


def test_a_disk_that_is_too_small(hub: Hub, tmp_path: Path) -> None:
    """Where the weights do not fit nothing is fetched, and the error says how much there is and how much is to come."""
    hub.size = 10**18

    done = get(hub, tmp_path, MODEL, "--to", "model")

    assert 1 == done.returncode
    assert " GB free, and 2000000000.0 GB are to come: free some, or name another disk with --to or HF_HOME" in done.stderr
    assert [] == hub.fetched


def test_an_unknown_model(hub: Hub, tmp_path: Path) -> None:
    """The error names hub and model, and what a private one would need."""
    done = get(hub, tmp_path, "somebody/no-model")

    host = f"http://127.0.0.1:{hub.server_port}"
    said = (
        f"agentbench: {host} has no model somebody/no-model, or it is a private one; set HF_TOKEN to a token of an account that may have it"
    )
    assert (4, said) == (done.returncode, done.stderr.splitlines()[-1])
