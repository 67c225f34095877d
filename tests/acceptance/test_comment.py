"""The comment on a pull or merge request: five answers on its first screen, from a real run in the environment of a CI job."""

from __future__ import annotations

import json
import re
import shlex
import subprocess

import pytest

from pytest_agentbench.cli import main
from tests.project import Project

ANSWERS = ("why", "baseline", "fell", "setup", "to do")

GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "acme/shop",
    "GITHUB_RUN_ID": "77",
}
GITLAB = {"GITLAB_CI": "true", "CI_PROJECT_URL": "https://gitlab.com/acme/shop", "CI_JOB_URL": "https://gitlab.com/acme/shop/-/jobs/9"}


def first_screen(comment: str) -> dict[str, list[str]]:
    """Returns label -> its lines, for the part of a comment that is not folded."""
    answers: dict[str, list[str]] = {}
    for line in comment.partition("<details>")[0].splitlines():
        if found := re.fullmatch(r"- \*\*([^*]+)\*\*: (.*)", line):
            answers[found[1]] = [found[2]]
        elif line.startswith("  - "):
            answers[[*answers][-1]].append(line.removeprefix("  - "))
    return answers


def commit(project: Project) -> str:
    """Commits all files of the project, and returns the commit."""
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.example", "-C", str(project.root))
    project.write(".gitignore", "reports/2*\nreports/latest\n")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "all")):
        subprocess.run([*git, *words], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def fallen(project: Project, monkeypatch: pytest.MonkeyPatch) -> str:
    """A committed project with a promoted baseline, of which all scenarios fall after a change of the backend. Returns the commit."""
    monkeypatch.chdir(project.root)
    project.suite(scenarios=20)
    data = project.root / "scenarios" / "shop" / "data.json"
    data.write_text(json.dumps(json.loads(data.read_text()), indent=1))
    found = commit(project)
    project.good_run("before")
    main(["baseline", "promote", "before", "--suite", "shop"])
    project.backend(
        [{"match": {"turn": 0}, "tool_calls": [{"name": "order_item", "arguments": {"item": "x"}}]}, {"text": "Done."}], model="larger"
    )
    return found


@pytest.mark.parametrize("system", ["github", pytest.param("gitlab", marks=pytest.mark.slow)])
def test_five_answers(project: Project, fallen: str, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    """The first screen has the rule, the baseline with commit and age, the scenarios with the lines of their data, the setup, commands."""
    variables, place, blob, commits = {
        "github": (GITHUB, "GITHUB_WORKSPACE", "https://github.com/acme/shop/blob", "https://github.com/acme/shop/commit"),
        "gitlab": (GITLAB, "CI_PROJECT_DIR", "https://gitlab.com/acme/shop/-/blob", "https://gitlab.com/acme/shop/-/commit"),
    }[system]
    for name, value in {**variables, place: str(project.root)}.items():
        monkeypatch.setenv(name, value)

    result = project.run("scenarios/shop", "--agentbench-gate=tsq.mean >= -0.1 vs baseline")

    assert 1 == result.ret
    answers = first_screen((project.directory / "comment.md").read_text())
    run, base = project.run_json, next(iter(project.run_json["gate"]["baselines"].values()))
    assert ANSWERS == tuple(answers)
    assert answers["why"][0].startswith("FAIL: shop tsq.mean -1.000 [")
    assert "tests: 20 below a threshold" == answers["why"][1]
    assert (
        f"run `{base['run']}`, commit [`{fallen[:12]}`]({commits}/{fallen}), less than a minute before this run" == answers["baseline"][0]
    )
    data = f"{blob}/{fallen}/scenarios/shop/data.json"
    lines = (project.root / "scenarios" / "shop" / "data.json").read_text().splitlines()
    possible = {f"[`shop-{n}`]({data}#L{line_of(lines, n)}) tsq 1.000 -> 0.000 (not significant)" for n in range(20)}
    assert (5, "and at least 5 more") == (len(possible & {*answers["fell"]}), answers["fell"][-1])
    assert answers["setup"][0].startswith("`embedded`, model `larger`, concurrency 8")
    assert "model `name: embedded-script -> larger`; backend `spec.script:" in answers["setup"][1]
    assert f"agentbench baseline promote {run['id']} --reason TEXT" in answers["to do"][1]
    pages = {
        "github": "https://github.com/acme/shop/actions/runs/77",
        "gitlab": f"https://gitlab.com/acme/shop/-/jobs/9/artifacts/file/reports/{run['id']}/report.html",
    }
    assert f"[`{run['id']}`]({pages[system]})" in answers["to do"][2]
    repeated = shlex.split(re.findall("`(.*)`", answers["to do"][0])[0])
    fell = {each["scenario"] for rule in run["gate"]["rules"] for each in rule["suspects"]}
    project.run(*repeated[repeated.index("scenarios/shop") :], "--agentbench-ci=off")
    assert ({"shop-1", "shop-10"} < fell, fell) == (True, {rollout.scenario for rollout in project.rollouts})


def line_of(lines: list[str], number: int) -> int:
    """Returns the number of the first line with the id of a scenario."""
    return next(place for place, line in enumerate(lines, 1) if f'"shop-{number}"' in line)
