"""The steps of the GitHub action: `python steps.py baseline`, `run` or `comment`.

Each step reads its inputs from environment variables, which `action.yml` sets, and writes its outputs to the file that GITHUB_OUTPUT names.
Only `run` needs the package to be installed.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

FORBIDDEN = 403
ATTEMPTS = 10  # artefacts that are downloaded until one contains a usable baseline
PER_PAGE = 100


def warn(text: str) -> None:
    """Prints an annotation of the workflow run."""
    print(f"::warning title=agentbench::{text}", flush=True)


def output(**values: object) -> None:
    """Sets outputs of the step. An underscore in a name becomes a hyphen."""
    with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as file:
        file.writelines(f"{name.replace('_', '-')}={value}\n" for name, value in values.items())


def event() -> dict[str, Any]:
    """Returns the event that started the workflow."""
    content: dict[str, Any] = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    return content


def request(url: str, method: str = "GET", body: object = None) -> bytes:
    """Sends a request to GitHub's API and returns the answer. The token is not sent to the target of a redirect."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"Accept": "application/vnd.github+json"}, method=method)
    asked.add_unredirected_header("Authorization", f"Bearer {os.environ['TOKEN']}")
    with urllib.request.urlopen(asked, timeout=60) as answer:
        content: bytes = answer.read()
        return content


def repository(path: str) -> str:
    """Returns the URL of something in this repository."""
    return f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/{path}"


def artefacts(name: str, branch: str) -> Iterator[dict[str, Any]]:
    """Yields the artefacts with a name that runs on a branch of this repository uploaded, the newest first. Those of forks are left out."""
    every = json.loads(request(repository(f"actions/artifacts?name={quote(name)}&per_page={PER_PAGE}")))["artifacts"]
    for each in sorted(every, key=lambda artefact: int(artefact["id"]), reverse=True):
        source = each["workflow_run"]
        if not each["expired"] and source["head_branch"] == branch and source["head_repository_id"] == source["repository_id"]:
            yield each


def usable(folder: Path) -> Path | None:
    """Returns the newest run in a folder, or a baseline file if it contains no run. A run that failed is not usable."""
    runs = sorted(folder.rglob("run.json"), key=lambda file: file.parent.name)
    if not runs:
        return next(folder.rglob("*.jsonl"), None)
    return runs[-1].parent if json.loads(runs[-1].read_text(encoding="utf-8"))["exit_status"] == 0 else None


def baseline() -> int:
    """Finds the baseline: a path, or the name of an artefact of the default branch. Sets the output `path`, which is empty without one."""
    name = os.environ["BASELINE"]
    if Path(name).exists():
        output(path=name)
        return 0
    branch = event()["repository"]["default_branch"]
    try:
        for each, _ in zip(artefacts(name, branch), range(ATTEMPTS), strict=False):
            folder = Path(os.environ["RUNNER_TEMP"], "agentbench-baseline", str(each["id"]))
            with zipfile.ZipFile(io.BytesIO(request(each["archive_download_url"]))) as archive:
                archive.extractall(folder)
            if found := usable(folder):
                output(path=found)
                return 0
    except urllib.error.HTTPError as error:
        print(f"::error title=agentbench::artefact {name}: {error}; the job needs the permission `actions: read`")
        return 1
    warn(f"no baseline: {name} is neither a path nor an artefact of a passed run on {branch}; rules `vs baseline` will be INCONCLUSIVE")
    return 0


def session_command(inputs: Mapping[str, str]) -> list[str]:
    """Returns the command of a session with the inputs of the action. Its reports are in the working directory."""
    command = [sys.executable, "-m", "pytest", *shlex.split(inputs["SUITES"]), "--rootdir=.", "--junitxml=junit.xml"]
    for option, name in (("--agentbench-backend", "BACKEND"), ("--agentbench-baseline", "BASELINE")):
        command += [f"{option}={inputs[name]}"] if inputs.get(name) else []
    command += [f"--agentbench-gate={rule.strip()}" for rule in inputs["GATE"].splitlines() if rule.strip()]
    return [*command, *shlex.split(inputs["ARGS"])]


def session(command: list[str]) -> int:
    """Runs pytest and returns its exit status.

    Signals are forwarded, because GitHub sends the signals of a cancelled job only to the first process of a step, which is this one.
    """
    with subprocess.Popen(command) as pytest:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda received, _: pytest.send_signal(received))
        status = pytest.wait()
    return status if status >= 0 else 128 - status


def run() -> int:
    """Runs the session, and resumes it once if it could not measure. Sets the outputs of the action."""
    from pytest_agentbench.gate.exit_status import CANNOT_MEASURE, EXITS

    reports = Path(os.environ["GITHUB_WORKSPACE"], "reports")
    before = (reports / "latest").resolve()
    command = session_command(os.environ)
    status = session(command)
    directory = (reports / "latest").resolve()
    if status == CANNOT_MEASURE and directory != before:
        subprocess.run([sys.executable, "-m", "pytest_agentbench.cli", "cleanup"], check=False)
        status = session([*command, f"--agentbench-resume={directory}"])
    file = directory / "run.json"
    if directory != before and file.is_file():
        output(run_directory=directory, verdict=json.loads(file.read_text(encoding="utf-8"))["verdict"], exit_status=status)
    else:  # such as a usage error, after which there is no run
        output(run_directory="", verdict=EXITS[status].verdict if status in EXITS else "FAIL", exit_status=status)
    return status


def comments(place: str) -> Iterator[dict[str, Any]]:
    """Yields all comments of a pull request."""
    page = 1
    while some := json.loads(request(f"{place}?per_page={PER_PAGE}&page={page}")):
        yield from some
        page += 1


def comment() -> int:
    """Adds the comment of a run to the pull request, or replaces that of an earlier run with the same suites and backend."""
    files = sorted(Path(os.environ["RUN_DIRECTORY"]).rglob("comment.md"))
    number = event().get("pull_request", {}).get("number")
    if not files or not number:
        print("no comment: there is no pull request, or no run")
        return 0
    text = files[-1].read_text(encoding="utf-8")
    place = repository(f"issues/{number}/comments")
    try:
        earlier = (each["id"] for each in comments(place) if each["body"].startswith(text.splitlines()[0]))
        if identifier := next(earlier, None):
            request(repository(f"issues/comments/{identifier}"), "PATCH", {"body": text})
        else:
            request(place, "POST", {"body": text})
    except urllib.error.HTTPError as error:
        if error.code != FORBIDDEN:
            raise
        warn("no comment: the token may not write one. The job needs the permission `pull-requests: write`, which a fork never has")
    return 0


if __name__ == "__main__":
    sys.exit({"baseline": baseline, "run": run, "comment": comment}[sys.argv[1]]())
