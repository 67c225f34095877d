"""`--agentbench-name` names a run, from its directory to every command that takes a run."""

from __future__ import annotations

import json
import re

import pytest

from pytest_agentbench.cli import main
from tests.project import Project


def test_a_run_with_a_name(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The name is in run.json, the report's title, the directory's name and an export. Commands find the newest run with that name."""
    monkeypatch.chdir(project.root)
    project.suite(scenarios=1)
    project.run("--agentbench-name=shop-kv", "scenarios/shop")
    first = project.directory
    project.run("--agentbench-name=shop-kv", "scenarios/shop")

    directory, run = project.directory, project.run_json
    assert re.fullmatch(r"\d{8}-\d{6}(-\d+)?-shop-kv", directory.name)
    assert ("shop-kv", "shop-kv", directory.name) == (run["name"], run["settings"]["name"], run["id"])
    assert (directory / "report.md").read_text().startswith(f"# Run {directory.name}: ")
    assert 0 == main(["compare", first.name, "shop-kv"])
    told = capsys.readouterr().out
    assert [first.name, directory.name] == re.findall(r"^shop-kv(?: \(2\))? +(\S+-shop-kv) ", told, re.MULTILINE)
    assert 0 == main(["export", "shop-kv", "--as", "nat"])
    assert (directory / "nat" / "dynamo_evals" / "shop-kv" / "jobs" / f"job_{directory.name}").is_dir()


@pytest.mark.slow
def test_resuming_a_run_with_a_name(project: Project) -> None:
    """--agentbench-resume finds the newest run with that name. The run keeps its name, and another name is refused."""
    project.suite(scenarios=2)
    project.run("--agentbench-name=shop-kv", "-k", "shop-0", "scenarios/shop")
    named = project.directory
    project.run("scenarios/shop")

    refused = project.run("--agentbench-resume=shop-kv", "--agentbench-name=other", "scenarios/shop")
    resumed = project.run("--agentbench-resume=shop-kv", "scenarios/shop")

    assert (4, 0) == (refused.ret, resumed.ret)
    refused.stderr.fnmatch_lines(
        [f"ERROR: --agentbench-name other: the resumed run {named.name} is called shop-kv; leave out --agentbench-name"]
    )
    run = json.loads((named / "run.json").read_text())
    assert ("shop-kv", None, [1, 1]) == (run["name"], run["settings"]["name"], [each["rollouts"] for each in run["sessions"]])
