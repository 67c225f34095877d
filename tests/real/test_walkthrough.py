"""docs/coming-from/toolkit-walkthrough.md on the real Dynamo: its commands that need neither a GPU nor the network, in a new project."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.backends.machine.virtual_environments import home_of, is_whole
from pytest_agentbench.cli import main
from tests.project import without_waits
from tests.small_stacks import own_folder
from tests.test_docs import ROOT, Reader

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_whole(home_of("dynamo")), reason="NOT TESTED: the walkthrough on Dynamo: agentbench env create dynamo"),
]


def test_the_walkthrough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands succeed in the order of the page, print what the page shows, and leave neither a process nor a folder of a stack."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    main(["init", "banking"])
    without_waits(project / "backends" / "embedded.yaml")

    with own_folder(monkeypatch):
        Reader(project, tmp_path / "site", "", has="the environment `dynamo`").work_through(
            ROOT / "docs" / "coming-from/toolkit-walkthrough.md"
        )

    assert (project / "levels" / "benchmark_results.csv").is_file()
    assert [*(project / "outputs").glob("dynamo_evals/*/jobs/job_*/tool_selection_quality_output.json")]
    assert (project / "pictures" / "ttft_vs_tsq.png").is_file()
    assert (project / "hints.json").is_file()
