"""The pipeline of GitLab keeps one comment on a merge request: it replaces that of an earlier push. GitHub: tests/test_action.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

CI = Path(__file__).parents[1] / "docs" / "ci"

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("jq", "curl"))), reason="NOT TESTED: the comments of workflows, because jq or curl is missing"
)

MARKER = "<!-- agentbench: shop on embedded -->"

#: Comments of people and of another suite, in two pages of 100.
OTHERS = [f"comment {number}" for number in range(130)] + ["<!-- agentbench: bank on embedded -->\nother"]


class Notes(BaseHTTPRequestHandler):
    """The part of GitLab's API that lists, creates and changes the comments of a merge request. `bodies` is shared."""

    bodies: list[str]

    def do_GET(self) -> None:
        page = int(parse_qs(urlsplit(self.path).query)["page"][0])
        start = 100 * (page - 1)
        every = [{"id": number + 1, "body": body} for number, body in enumerate(self.bodies)]
        following = str(page + 1) if start + 100 < len(every) else ""
        self._answer(every[start : start + 100], following)

    def do_POST(self) -> None:
        self.bodies.append(self._body())
        self._answer({})

    def do_PUT(self) -> None:
        self.bodies[int(self.path.rpartition("/")[2]) - 1] = self._body()
        self._answer({})

    def _body(self) -> str:
        assert "secret" == self.headers["PRIVATE-TOKEN"]
        return parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["body"][0]

    def _answer(self, content: object, following: str = "") -> None:
        text = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("x-next-page", following)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *values: object) -> None:
        """Prints nothing."""


@pytest.fixture
def gitlab() -> Iterator[tuple[str, list[str]]]:
    """A server with the comments of a merge request. Gives its address and the comments."""
    bodies = [*OTHERS]
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Notes,), {"bodies": bodies})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()


def push(folder: Path, shell: str, script: str, text: str, environment: dict[str, str]) -> None:
    """Runs the script of a workflow's job in a folder with a comment, in the shell of the CI system."""
    (folder / "comment.md").write_text(f"{MARKER}\n{text}\n")
    subprocess.run([shell, "-e", "-c", script], cwd=folder, env={**os.environ, **environment}, check=True, timeout=60)


def test_one_comment_on_gitlab(gitlab: tuple[str, list[str]], tmp_path: Path) -> None:
    """The first push adds a comment, and the second one replaces it, also if it is not on the first page. Others stay."""
    address, bodies = gitlab
    script = yaml.safe_load((CI / "gitlab.yml").read_text())["comment"]["script"][-1]
    variables = {"CI_API_V4_URL": address, "CI_PROJECT_ID": "1", "CI_MERGE_REQUEST_IID": "2", "no_proxy": "127.0.0.1"}

    push(tmp_path, "sh", script, "no token", variables)
    for text in ("first", "50% & more + `code`"):
        push(tmp_path, "sh", script, text, {**variables, "COMMENT_TOKEN": "secret"})

    assert [*OTHERS, f"{MARKER}\n50% & more + `code`\n"] == bodies
