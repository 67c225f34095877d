"""The workflow files of docs/ci: their commands exist, and they protect a machine with a GPU."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_agentbench.cli import main, parser
from pytest_agentbench.gate.baselines import write_baseline
from pytest_agentbench.gate.evidence import Evidence, RunFacts, Trial
from pytest_agentbench.lib.process import child_environment
from pytest_agentbench.session.settings import OPTIONS

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "docs" / "ci").glob("*.yml"))
GITHUB = [file for file in FILES if file.name.startswith("github-")]
ACTION = ROOT / "action.yml"
OURS = "pytest-agentbench/pytest-agentbench"

Node = dict[Any, Any]


def loaded(file: Path) -> Node:
    """Reads a file as YAML, in which the key `on` of workflows becomes True."""
    content: Node = yaml.safe_load(file.read_text(encoding="utf-8"))
    return content


def scripts(node: Any) -> Iterator[str]:
    """Yields everything that a shell runs, at any place in a file."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("run", "script", "before_script", "after_script"):
                yield from [value] if isinstance(value, str) else value
            else:
                yield from scripts(value)
    elif isinstance(node, list):
        for each in node:
            yield from scripts(each)


def commands(file: Path, program: str) -> list[list[str]]:
    """Returns the arguments of each call of a program of the environment."""
    lines = [line.strip() for script in scripts(loaded(file)) for line in script.replace("\\\n", " ").splitlines()]
    return [shlex.split(found[1]) for line in lines if (found := re.match(rf"(?:exec )?\.venv/bin/{program}\s+(.*)", line))]


def actions(file: Path) -> list[Node]:
    """Returns the steps of a workflow that use the action of this repository."""
    every = [step for job in loaded(file).get("jobs", {}).values() for step in job["steps"]]
    return [step for step in every if step.get("uses", "").startswith(f"{OURS}@")]


def sessions(file: Path) -> list[list[str]]:
    """Returns the arguments of each call of pytest, by a script or by the action."""
    spec = importlib.util.spec_from_file_location("steps", ROOT / ".github" / "action" / "steps.py")
    assert spec is not None and spec.loader is not None
    steps = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(steps)
    defaults = {name: given.get("default", "") for name, given in loaded(ACTION)["inputs"].items()}
    given = [{name.upper(): str(value) for name, value in {**defaults, **step["with"]}.items()} for step in actions(file)]
    given = [{**inputs, "BASELINE": inputs["BASELINE"] if "/" in inputs["BASELINE"] else ""} for inputs in given]  # The name of an artefact
    return [*commands(file, "pytest"), *(steps.session_command(inputs)[3:] for inputs in given)]


@pytest.mark.parametrize("file", [*FILES, ACTION], ids=lambda file: file.name)
def test_commands_exist(file: Path) -> None:
    """Every `agentbench` command of a workflow exists and accepts its arguments."""
    found = [words for words in commands(file, "agentbench") if "$BACKEND" not in words]

    for words in found:
        assert callable(parser().parse_args(words).run)
    names = {" ".join(words[:2]) for words in found}
    assert actions(file) or {"cleanup", "scrub reports"} <= names
    environments = {name for words in found if words[:2] == ["env", "create"] for name in words[2:]}
    backends = {name for words in found if words[0] == "doctor" for name in words[1:]}
    assert {f"{name}.yaml" for name in backends | environments} <= {each.name for each in (ROOT / "backends").iterdir()}


@pytest.mark.parametrize("file", [pytest.param(each, marks=pytest.mark.slow if each in GITHUB else (), id=each.name) for each in FILES])
def test_options_exist(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pytest command of a workflow starts with its options, which a real pytest with --collect-only shows.

    The baseline is made here.
    """
    monkeypatch.chdir(tmp_path)
    main(["init", "banking"])
    (tmp_path / "backends" / "vllm.yaml").write_text((ROOT / "backends" / "vllm.yaml").read_text())
    trial = Trial("banking", "banking", "banking-000", 1, "ok", scores={"tsq": 1.0})
    write_baseline(Evidence.of(RunFacts("earlier"), [trial]), "banking", tmp_path / "reports" / "baselines" / "banking.jsonl")
    known = {f"--agentbench-{option.name}" for option in OPTIONS}
    runs = {tuple(words) for words in sessions(file)}

    assert runs
    for words in runs:
        used = {word.partition("=")[0] for word in words if word.startswith("--agentbench-")}
        assert set() == used - known
        start = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", *words]
        done = subprocess.run(start, env=child_environment(), capture_output=True, text=True, timeout=60, check=False)
        assert 0 == done.returncode, done.stdout + done.stderr


def jobs(file: Path) -> list[Node]:
    """Returns the jobs of a workflow that run on a self-hosted machine."""
    every = loaded(file)["jobs"].values()
    assert all("timeout-minutes" in job for job in every)
    return [job for job in every if "self-hosted" in job["runs-on"]]


@pytest.mark.parametrize("file", GITHUB, ids=lambda file: file.name)
def test_github(file: Path) -> None:
    """A job on the GPU runs for no fork and has no write permission. Without the action, it does what the action does."""
    workflow = loaded(file)
    events = workflow[True]  # The key is `on` in the file.

    assert {"contents": "read"} == workflow["permissions"]
    assert {"group", "cancel-in-progress"} == set(workflow["concurrency"])
    assert "pull_request_target" not in events
    for job in jobs(file):
        if "pull_request" in events:
            assert "github.event.pull_request.head.repo.full_name == github.repository" == job["if"]
        else:
            assert workflow["concurrency"]["cancel-in-progress"] is False
        assert "permissions" not in job
        steps = job["steps"]
        assert {"persist-credentials": False} == steps[0]["with"]
        assert "HF_HOME" in job["env"]
        if used := [step for step in steps if step.get("uses", "").startswith(f"{OURS}@")]:
            assert [("none", "false")] == [(step["with"]["install"], step["with"]["comment"]) for step in used]
        else:
            check_steps(steps, "pytest scenarios")


def check_steps(steps: list[Node], session: str) -> None:
    """The first process is the session. It begins after cleanup, and always ends with cleanup, scrub and upload."""
    first = next(number for number, step in enumerate(steps) if session in step.get("run", ""))
    assert re.search(r"^exec .*" + re.escape(session), steps[first]["run"], re.MULTILINE)
    assert any("agentbench cleanup" in step.get("run", "") for step in steps[:first])
    clean_up, upload = (step for step in steps if str(step.get("if", "")).startswith("always()"))
    assert clean_up["run"].index("agentbench cleanup") < clean_up["run"].index("agentbench scrub reports")
    assert {"reports", "junit.xml", "!reports/latest"} == set(upload["with"]["path"].split())
    assert first < steps.index(clean_up) < steps.index(upload)


def test_action() -> None:
    """The action does with a session what a workflow without it does. Only two of its steps get the token."""
    steps = loaded(ACTION)["runs"]["steps"]

    check_steps(steps, 'steps.py" run')
    assert ["Find the baseline", "Write or replace the comment"] == [step["name"] for step in steps if "TOKEN" in step.get("env", {})]


def test_the_action_is_of_this_version() -> None:
    """Workflows and pages use our action at the version of this package, with inputs that it has."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    texts = "".join(file.read_text(encoding="utf-8") for file in [*GITHUB, ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

    assert {f"v{version}"} == set(re.findall(rf"uses: {OURS}(?:/\S+)?@(\S+)", texts))
    used = [step for file in GITHUB for step in actions(file)]
    assert used
    assert all(step["with"].keys() <= loaded(ACTION)["inputs"].keys() for step in used)


def test_gitlab() -> None:
    """The pipeline of GitLab: no fork, one job at a time on the GPU, always cleanup and scrub, and reports that GitLab shows."""
    pipeline = loaded(ROOT / "docs" / "ci" / "gitlab.yml")
    base = pipeline[".agentbench"]

    assert "agentbench cleanup" in base["after_script"][0]
    assert "agentbench scrub reports" in base["after_script"][1]
    assert "always" == base["artifacts"]["when"]
    assert {"junit": "junit.xml", "metrics": "metrics.txt"} == base["artifacts"]["reports"]
    running = {name: job for name, job in pipeline.items() if isinstance(job, dict) and "extends" in job}
    assert {"agentbench smoke", "agentbench gate", "agentbench nightly", "agentbench history", "pages"} == set(running)
    for name, job in running.items():
        assert "timeout" in job
        assert ("resource_group" in job) == (name != "agentbench smoke")
    assert "$CI_MERGE_REQUEST_SOURCE_PROJECT_PATH == $CI_PROJECT_PATH" in running["agentbench smoke"]["rules"][0]["if"]
    assert [6] == running["agentbench gate"]["retry"]["exit_codes"]


def test_signals_of_a_runner_reach_pytest(tmp_path: Path) -> None:
    """With `exec`, the program replaces the script that `bash -e` runs, so that it gets the signal of a cancelled job."""
    program = "import signal, sys\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(42))\nprint('ready', flush=True)\nsignal.pause()\n"
    (tmp_path / "program.py").write_text(program)
    script = tmp_path / "step.sh"
    script.write_text(f"exec {shlex.quote(sys.executable)} {shlex.quote(str(tmp_path / 'program.py'))}\n")
    with subprocess.Popen(["bash", "-e", str(script)], stdout=subprocess.PIPE, text=True) as step:
        assert step.stdout is not None
        assert "ready\n" == step.stdout.readline()
        step.send_signal(2)
        assert 42 == step.wait(30)


@pytest.mark.parametrize(("name", "place"), [("github-trend.yml", "page"), ("gitlab.yml", "public")])
def test_history_is_published(name: str, place: str) -> None:
    """A nightly run becomes a file of the history, from which the published page is made, whether the run was good or bad."""
    words = commands(ROOT / "docs" / "ci" / name, "agentbench")

    (promoted,) = (each for each in words if each[0] == "baseline")
    assert promoted[promoted.index("--to") + 1].startswith("$HISTORY/banking-$")
    assert ["trend", "$HISTORY", "--output", place] in words


def test_a_bad_night_is_published() -> None:
    """Steps after a failed pytest run unless the job was cancelled. Only the job on a hosted machine may write pages."""
    every = loaded(ROOT / "docs" / "ci" / "github-trend.yml")["jobs"]
    steps = every["measure"]["steps"]
    first = next(place for place, step in enumerate(steps) if step.get("uses", "").startswith(OURS))

    assert all("if" in step for step in steps[first + 1 :])
    assert {"pages": "write", "id-token": "write"} == every["publish"]["permissions"]
    assert "ubuntu-latest" == every["publish"]["runs-on"]
    assert "always" == loaded(ROOT / "docs" / "ci" / "gitlab.yml")["pages"]["rules"][0]["when"]
