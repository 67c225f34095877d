"""Runs the steps of a composite action in order as GitHub's runner does, beside a server with the part of GitHub's API that they use."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.web import QuietHandler

ROOT = Path(__file__).parents[1]
TOKEN = "the-token-of-the-job"
BASH = ("bash", "--noprofile", "--norc", "-e", "-o", "pipefail")


@dataclass
class GitHub:
    """Comments and artefacts of a repository."""

    bodies: list[str] = field(default_factory=list)
    artefacts: list[dict[str, Any]] = field(default_factory=list)
    archives: dict[int, bytes] = field(default_factory=dict)
    may_comment: bool = True

    def keep(self, name: str, archive: bytes, *, branch: str = "main", fork: bool = False, expired: bool = False) -> None:
        """Keeps an artefact of a finished run."""
        number = len(self.artefacts) + 1
        source = {"head_branch": branch, "repository_id": 1, "head_repository_id": 2 if fork else 1}
        self.artefacts.append({"id": number, "name": name, "expired": expired, "workflow_run": source})
        self.archives[number] = archive


class Api(QuietHandler):
    """A request to GitHub's API. An archive is at another address, which must not get the token."""

    github: GitHub

    def do_GET(self) -> None:
        place, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        assert ("Authorization" not in self.headers) == place.startswith("/blob/")
        if place.startswith("/blob/"):
            self.answer(200, self.github.archives[int(place.rpartition("/")[2])])
        elif place.endswith("/zip"):
            self.send_response(302)
            self.send_header("location", f"/blob/{place.split('/')[-2]}")
            self.send_header("content-length", "0")
            self.end_headers()
        elif place == "/repos/shop/agents/actions/artifacts":
            every = [each for each in self.github.artefacts if each["name"] == query["name"][0]]
            address = f"http://{self.headers['Host']}/artifacts"
            self._json({"artifacts": [{**each, "archive_download_url": f"{address}/{each['id']}/zip"} for each in every]})
        else:
            assert place == "/repos/shop/agents/issues/7/comments"
            start = 100 * (int(query["page"][0]) - 1)
            self._json([{"id": number, "body": body} for number, body in enumerate(self.github.bodies)][start : start + 100])

    def do_POST(self) -> None:
        assert self.path == "/repos/shop/agents/issues/7/comments"
        if body := self._body():
            self.github.bodies.append(body)

    def do_PATCH(self) -> None:
        place, _, number = self.path.rpartition("/")
        assert place == "/repos/shop/agents/issues/comments"
        if body := self._body():
            self.github.bodies[int(number)] = body

    def _body(self) -> str:
        assert f"Bearer {TOKEN}" == self.headers["Authorization"]
        body: str = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]
        self._json({}, 201 if self.github.may_comment else 403)
        return body if self.github.may_comment else ""

    def _json(self, content: object, status: int = 200) -> None:
        self.answer(status, json.dumps(content).encode())


def api(github: GitHub) -> ThreadingHTTPServer:
    return ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Api,), {"github": github}))


@dataclass
class Job:
    """A job that uses a composite action. `run` returns whether it succeeded. `runner` is a folder for the files of the runner."""

    workspace: Path
    runner: Path
    address: str
    event: dict[str, Any]
    action: Path = ROOT / "action.yml"
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    printed: str = ""
    summary: str = ""

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the runner. Those of the machine on which the tests run are removed."""
        event = self.runner / "event.json"
        event.write_text(json.dumps(self.event))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "GITLAB_", "PYTEST_"))}
        return kept | {
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(self.action.parent),
            "GITHUB_API_URL": self.address,
            "GITHUB_EVENT_PATH": str(event),
            "GITHUB_REPOSITORY": "shop/agents",
            "GITHUB_WORKSPACE": str(self.workspace),
            "RUNNER_TEMP": str(self.runner),
            "no_proxy": "127.0.0.1",
        }

    def run(self, **inputs: str) -> bool:
        """Runs the action. A hyphen of an input is an underscore here."""
        action = yaml.safe_load(self.action.read_text(encoding="utf-8"))
        given = {name.replace("_", "-"): value for name, value in inputs.items()}
        assert given.keys() <= action["inputs"].keys()
        self.inputs = {name: str(given.get(name, spec["default"])) for name, spec in action["inputs"].items()}
        self.succeeded = True
        for number, step in enumerate(action["runs"]["steps"]):
            name = step.get("id", number)
            condition = re.sub(r"^\$\{\{(.*)\}\}$", r"\1", str(step.get("if", "success()")))
            runs = condition if re.search(r"\b(always|cancelled|failure|success)\(", condition) else f"success() && ({condition})"
            self.steps[name] = {"outcome": "skipped", "outputs": {}}
            if self.value(runs):
                succeeded = self._upload(step["with"]) if "uses" in step else self._step(step, self.steps[name]["outputs"])
                self.steps[name]["outcome"] = "success" if succeeded else "failure"
                self.succeeded = self.succeeded and succeeded
        self.outputs = {name: self.text(spec["value"]) for name, spec in action.get("outputs", {}).items()}
        return self.succeeded

    def value(self, expression: str) -> Any:
        """Evaluates an expression of GitHub, in which a name is a path of dots, for example `steps.run.outputs.verdict`."""
        names: dict[str, Any] = {"inputs": self.inputs, "steps": self.steps, "github": {"token": TOKEN}}

        def look_up(path: str) -> Any:
            found: Any = names
            for part in path.split("."):
                found = found.get(part, {})
            return found or ""

        code = re.sub(r"\b(?:inputs|steps|github)(?:\.[\w-]+)+", lambda match: f"look_up({match[0]!r})", expression)
        code = re.sub(r"!(?!=)", " not ", code.replace("&&", " and ").replace("||", " or "))
        states = {"always": lambda: True, "cancelled": lambda: False, "success": lambda: self.succeeded}
        return eval(code.strip(), {"look_up": look_up, **states})

    def text(self, template: object) -> str:
        while (text := re.sub(r"\$\{\{(.*?)\}\}", lambda match: str(self.value(match[1])), str(template))) != template:
            template = text
        return text

    def _step(self, step: Mapping[str, Any], outputs: dict[str, str]) -> bool:
        files = {name: self.runner / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for file in files.values():
            file.write_text("")
        given = {name: self.text(value) for name, value in step.get("env", {}).items()}
        variables = {**self.variables, **{name: str(file) for name, file in files.items()}, **given}
        assert "${{" not in step["run"]
        assert "bash" == step["shell"]
        script = self.runner / "step.sh"
        script.write_text(step["run"])
        done = subprocess.run(
            [*BASH, script], cwd=self.workspace, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        self.printed += done.stdout
        self.summary += files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")
        outputs |= dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text(encoding="utf-8").splitlines())
        return done.returncode == 0

    def _upload(self, given: Mapping[str, Any]) -> bool:
        """Keeps what actions/upload-artifact would. Another action is passed over."""
        if "path" in given:
            archive = io.BytesIO()
            with zipfile.ZipFile(archive, "w") as file:
                for path in self._chosen(given["path"].split()):
                    file.write(path, path.relative_to(self.workspace))
            self.uploads[self.text(given["name"])] = archive.getvalue()
        return True

    def _chosen(self, patterns: list[str]) -> Iterator[Path]:
        left_out = [self.workspace / pattern[1:] for pattern in patterns if pattern.startswith("!")]
        for pattern in patterns:
            place = self.workspace / pattern
            for path in [place] if place.is_file() else sorted(place.rglob("*")):
                if path.is_file() and not any(path.is_relative_to(each) for each in left_out):
                    yield path
