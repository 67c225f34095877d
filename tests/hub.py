"""A local hub of models and data sets with the part of Hugging Face's API that its client uses."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.project import ROOT
from tests.web import QuietHandler

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves one repository at one commit, to which the revisions `main` and `v1` point. `kind` is `models` or `datasets`."""

    def __init__(self, kind: str, repository: str, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.kind = kind
        self.repository = repository  # Owner and name: owner/name.
        self.files = dict(files)
        self.fetched: list[str] = []  # Names of downloaded files, in order.
        self.broken = ""  # Name of a file that is missing now.
        self.gated = False  # Whether only requests with the token `allowed` get files.
        self.size: int | None = None  # Bytes of every file, instead of the true ones.

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(QuietHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.server
        place = hub.repository if hub.kind == "models" else f"{hub.kind}/{hub.repository}"
        name = self.path.removeprefix(f"/{place}/resolve/{COMMIT}/")
        body = self._facts() if self.path.startswith("/api/") else None if name == hub.broken else hub.files.get(name)
        if name in hub.files and body is not None and self.command == "GET":
            hub.fetched.append(name)
        if body is None:
            self._write(404, b"", **self._error_code())
        elif self._of_repository("auth-check") and hub.gated and self.headers.get("Authorization") != "Bearer allowed":
            self._write(403, b"", **{"X-Error-Code": "GatedRepo"})
        else:
            self._write(200, body)

    def _error_code(self) -> dict[str, str]:
        """Returns the header that tells the client what is missing: revision or repository. A missing file has no such header."""
        if not self.path.startswith("/api/"):
            return {}
        return {"X-Error-Code": "RevisionNotFound" if self._of_repository("revision/") else "RepoNotFound"}

    def _of_repository(self, rest: str) -> bool:
        return self.path.startswith(f"/api/{self.server.kind}/{self.server.repository}/{rest}")

    def _facts(self) -> bytes | None:
        """Returns the API's answer about the repository, or None if the request is unknown."""
        hub = self.server
        if any(self._of_repository(f"revision/{revision}") for revision in ("main", "v1", COMMIT)):
            siblings = [{"rfilename": name} for name in hub.files]
            return json.dumps({"id": hub.repository, "sha": COMMIT, "gated": hub.gated and "manual", "siblings": siblings}).encode()
        if self._of_repository("tree/"):
            sizes = {name: hub.size or len(content) for name, content in hub.files.items()}
            return json.dumps([{"type": "file", "path": name, "size": size, "oid": "0"} for name, size in sizes.items()]).encode()
        return b"{}" if self._of_repository("auth-check") else None

    def _write(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        length = self.server.size if self.command == "HEAD" and self.server.size else len(body)
        etag = hashlib.sha256(body).hexdigest()
        for name, value in {**headers, "X-Repo-Commit": COMMIT, "ETag": f'"{etag}"', "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def hub_client(url: str, folder: Path, *arguments: str, token: str = "") -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments in another process, because the client reads its endpoint when it is imported."""
    of_hub = {"HF_ENDPOINT": url, "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    near = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "PYTHONPATH": str(ROOT), "HF_TOKEN": token}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **of_hub, **near}, capture_output=True, text=True, check=False, timeout=60
    )
