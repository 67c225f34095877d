"""The page that says what is public names what the code has today, so that a change of it is a change of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pytest_agentbench
from pytest_agentbench.cli import COMMANDS
from pytest_agentbench.gate import baselines
from pytest_agentbench.gate.exit_status import EXITS, VERDICTS
from pytest_agentbench.lib.options import READ
from pytest_agentbench.runs import run_file
from pytest_agentbench.session import hookspecs
from pytest_agentbench.session.settings import OPTIONS

PAGE = (Path(__file__).parents[1] / "docs/reference/stability.md").read_text(encoding="utf-8")
HOOKS = [name for name in vars(hookspecs) if name.startswith("pytest_agentbench_")]

#: Beginning of the first cell of a row -> its last cell.
TODAY = {
    "names that": f"{len(pytest_agentbench.__all__)} names",
    "options of a session": f"{len(OPTIONS)} options",
    "commands of": f"{len(COMMANDS)} commands",
    "environment variables": ", ".join(f"`{name}`" for name in sorted(READ)),
    "hooks": f"{len(HOOKS)} hooks",
    "keys of run.json": f"`{run_file.SCHEMA}`",
    "keys of baseline files": f"`{baselines.SCHEMA}`",
    "exit statuses": f"{min(EXITS)} to {max(EXITS)}",
    "words of verdicts": ", ".join(f"`{word}`" for word in dict.fromkeys(VERDICTS)),
}


@pytest.mark.parametrize("what", TODAY)
def test_the_page_counts_what_the_code_has(what: str) -> None:
    """Each row of the table has the numbers and words of the code."""
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line.startswith(f"| {what}")]

    assert [TODAY[what]] == [re.sub(r" \|$", "", row[-1]) for row in rows]


def test_the_page_is_short() -> None:
    """The page is read before each release, so it has fewer than 500 words."""
    assert len(PAGE.split()) < 500
