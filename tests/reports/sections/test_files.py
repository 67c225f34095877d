"""The section of files: what to open after a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_agentbench.reports.document import Document, Level
from pytest_agentbench.reports.sections.files import section
from pytest_agentbench.reports.terminal import headline_lines, lines
from pytest_agentbench.reports.view import RunView
from tests.made_runs import run_of

PLACE = f"reports/{run_of().id}"


def printed(level: Level, directory: Path) -> str:
    files = section(RunView(run_of(), directory, PLACE))
    assert files is not None
    report = Document("", None, (files,))
    return "\n".join(headline_lines(report) if level == Level.HEADLINE else (line.text for line in lines(report, level)))


@pytest.mark.parametrize("level", [Level.HEADLINE, Level.FIRST_PAGE, Level.FULL])
def test_the_page_is_the_file_to_open(level: Level, tmp_path: Path) -> None:
    """From -q to -v the terminal names report.html once, and no other path. With -v the other files follow it."""
    text = printed(level, tmp_path)

    others = ("report.md", "run.json", "rollouts.jsonl")
    assert [f"{PLACE}/report.html"] == [word for word in text.split() if word.startswith("reports/")]
    assert [level == Level.FULL] * 3 == [text.count(each) == 1 for each in others]
