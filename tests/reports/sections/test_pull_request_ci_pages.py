"""Addresses of pages on GitHub and GitLab."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_agentbench.reports.sections.pull_request import Pages, lines_of, pages_of
from pytest_agentbench.runs.provenance import Git
from pytest_agentbench.runs.run_file import Run
from tests.made_runs import run_of

GITHUB = {"GITHUB_SERVER_URL": "https://git.example", "GITHUB_REPOSITORY": "acme/shop", "GITHUB_RUN_ID": "7", "GITHUB_SHA": "cafe"}
GITLAB = {
    "CI_PROJECT_URL": "https://git.example/acme/shop",
    "CI_JOB_URL": "https://git.example/acme/shop/-/jobs/9",
    "CI_COMMIT_SHA": "cafe",
}


def run_in(checkout: Path, file: str) -> Run:
    """Returns a run of a suite in a checkout, with this data file."""
    run = run_of()
    suite = run.suites["shop"]
    folder = checkout / "scenarios" / "my shop"
    return replace(run, suites={"shop": replace(suite, folder=str(folder), dataset=replace(suite.dataset, file=file))})


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a data file of two scenarios, and with a folder of one task."""
    folder = tmp_path / "scenarios" / "my shop"
    (folder / "tasks" / "shop-1").mkdir(parents=True)
    (folder / "data.jsonl").write_text('{"id": "shop-10"}\n{"id": "shop-1", "after": "shop-10"}\n')
    return tmp_path


def test_pages_of_github(checkout: Path) -> None:
    """GitHub: a commit, the page of the workflow run, and the line of a scenario in the commit that was measured."""
    run = run_in(checkout, "data.jsonl")
    measured = replace(run, environment=replace(run.environment, git=Git("beef", dirty=False, diff=None)))

    pages = pages_of(measured, checkout / "reports" / "r", {**GITHUB, "GITHUB_WORKSPACE": str(checkout)})

    assert "https://git.example/acme/shop/commit/feed" == pages.of_commit("feed")
    assert "https://git.example/acme/shop/actions/runs/7" == pages.report
    file = "https://git.example/acme/shop/blob/beef/scenarios/my%20shop/data.jsonl"
    assert {"shop-1": f"{file}#L2", "shop-10": f"{file}#L1", "shop-3": file} == pages.of_scenarios(
        run, "shop", ["shop-1", "shop-10", "shop-3"]
    )


def test_pages_of_gitlab(checkout: Path) -> None:
    """GitLab: report.html among the artifacts of the job, and the folder of a task. The job's commit if that of the run is unknown."""
    run = run_in(checkout, "tasks")

    pages = pages_of(run, checkout / "reports" / "r 1", {**GITLAB, "CI_PROJECT_DIR": str(checkout)})

    assert "https://git.example/acme/shop/-/jobs/9/artifacts/file/reports/r%201/report.html" == pages.report
    folder = "https://git.example/acme/shop/-/tree/cafe/scenarios/my%20shop/tasks"
    assert {"shop-1": f"{folder}/shop-1"} == pages.of_scenarios(run, "shop", ["shop-1", "shop-2", "..", "../data.jsonl"])
    elsewhere = pages_of(run, Path("/elsewhere"), {**GITLAB, "CI_PROJECT_DIR": str(checkout)})
    assert GITLAB["CI_JOB_URL"] == elsewhere.report


def test_no_pages(checkout: Path) -> None:
    """Outside of CI, and for data that are not in the repository, there are no addresses."""
    run = run_in(checkout, "data.jsonl")

    assert Pages() == pages_of(run, checkout, {})
    assert ("", {}) == (Pages().of_commit("feed"), Pages().of_scenarios(run, "shop", ["shop-1"]))
    pages = pages_of(run, checkout, {**GITHUB, "GITHUB_WORKSPACE": "/elsewhere"})
    assert {} == pages.of_scenarios(run, "shop", ["shop-1"])
    assert {} == pages.of_scenarios(run, "unknown", ["shop-1"])


def test_lines_of_scenarios(checkout: Path) -> None:
    """The line of an id is the first one in which it stands alone, and not as a part of another id."""
    assert {"shop-1": 2, "shop-10": 1} == lines_of(checkout / "scenarios" / "my shop" / "data.jsonl", ["shop-1", "shop-10", "shop"])
    assert {"shop-1": 2} == lines_of(checkout / "scenarios" / "my shop" / "data.jsonl", ["shop-1"])
    assert {} == lines_of(checkout / "nowhere", ["shop-1"])
