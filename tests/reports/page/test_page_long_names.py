"""Names of a megabyte, in a real browser: the page opens, works, and keeps its layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.records import ToolCall
from tests.made_runs import run_directory
from tests.reports.page.conftest import poll, rollout

pytestmark = pytest.mark.slow

LONG = "x" * 1_000_000


@pytest.mark.parametrize("width", [1200, 400])
def test_names_of_a_megabyte(tmp_path: Path, opened: Callable[..., Any], width: int) -> None:
    """With names of a megabyte, nothing is wider than the window, and the rollout can be opened."""
    long = rollout(LONG, 0.5, tool_calls=(ToolCall(LONG, {"item": "lamp"}, 1),), expected=({"tool": LONG, "parameters": {}},))
    directory = run_directory(tmp_path / "20260101-000000", long, rollout("b"))
    assert 0 == main(["report", str(directory), "--reports", str(tmp_path)])
    page = opened(directory / "report.html", viewport={"width": width, "height": 800})

    poll(page, "document.querySelectorAll('.sizer .row').length === 2")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("[...document.querySelectorAll('.sizer .row')].find(row => row.textContent.length > 1000).querySelector('a').click()")
    poll(page, "document.querySelector('dialog[open] .transcript')")
    assert page.evaluate("document.querySelector('dialog').scrollWidth") <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelector('dialog .heading').offsetHeight") < 300
    page.keyboard.press("Escape")
    poll(page, "!document.querySelector('dialog').open")
