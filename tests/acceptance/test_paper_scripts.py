"""The snippet in the README of ThunderAgent's paper reads an export of a short run unchanged."""

from __future__ import annotations

import pytest

from pytest_agentbench.cli import main
from tests.paper_scripts import key_numbers
from tests.project import Project


@pytest.mark.parametrize(
    ("window", "name", "is_measured"),
    [([], "600-7800", False), pytest.param(["--agentbench-window=0s:"], "0-", True, marks=pytest.mark.slow)],
    ids=["the-papers-window", "a-window-of-its-own"],
)
def test_the_readmes_snippet(project: Project, monkeypatch: pytest.MonkeyPatch, window: list[str], name: str, is_measured: bool) -> None:
    """The snippet finds the run and prints its rates. They are 0 if the run ended before the window began."""
    monkeypatch.chdir(project.root)
    project.suite(scenarios=2)
    project.run("scenarios/shop", *window).assert_outcomes(passed=2)
    assert 0 == main(["export", "latest", "--as", "toolorchestra", "--output", "evaluation/outputs"])

    said = key_numbers(project.root)

    assert f"evaluation/outputs/hle_local_{project.directory.name}" == said["out_dir"]
    assert said["window"].startswith(name)
    assert (is_measured, is_measured) == (said["trials/min"] > 0, said["steps/sec"] > 0)
