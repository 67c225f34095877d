"""The rows of the table of scenarios in report.html, in a real Chromium: trials, outcome and judgement, and why a scenario failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.records import Score, Verification
from pytest_agentbench.reports import page as report
from pytest_agentbench.runs.run_file import Failure, OutcomeCounts, read_run
from tests.made_runs import run_directory, run_of
from tests.reports.page.conftest import BEGAN, poll, rollout
from tests.reports.page.test_page import ROWS, written

pytestmark = pytest.mark.slow

Opened = Callable[..., Any]
MARKS = "[...document.querySelectorAll('.sizer .row:first-child .trial')].map(mark => mark.className.replace('trial ', ''))"


def cells(page: Any, name: str) -> list[str]:
    return [" ".join(text.split()) for text in page.locator(f".sizer .cell.{name}").all_inner_texts()]


def test_a_row_has_a_mark_for_each_trial(tmp_path: Path, opened: Opened) -> None:
    """Marks have the colour of their score, and a trial without one has a cross. The row opens its worst trial, a mark its own."""
    scores = {1: 1.0, 2: 0.5, 3: 0.0}
    trials = [replace(rollout("a", score), trial=trial) for trial, score in scores.items()]
    lost = replace(rollout("a", status="infra_error", reason="the backend is gone", scores={}), trial=4)
    page = opened(written(tmp_path / "run", *trials, lost))

    poll(page, ROWS + ".length")
    assert ["q4", "q2", "q0", "none"] == page.evaluate(MARKS)
    assert ["1 of 4: the infrastructure failed \u223c 2 of 3 passed"] == cells(page, "outcome")
    assert ["trial 4: the backend is gone"] == cells(page, "why")
    page.click(".sizer .scenario a")
    poll(page, "open.row.trial === 4")
    page.keyboard.press("Escape")
    poll(page, "!document.getElementById('rollout').open")
    page.click(".sizer .trial >> nth=1")
    poll(page, "open.row.trial === 2")


def test_outcome_and_judgement_are_two_labels(tmp_path: Path, opened: Opened) -> None:
    """A rollout that finished with a score of 0 has failed, and no label of it is green."""
    page = opened(written(tmp_path / "run", rollout("a"), rollout("b", 0.0)))

    poll(page, ROWS + ".length")
    assert ["finished \u2717 failed", "finished \u2713 passed"] == cells(page, "outcome")
    colours = "[...document.querySelectorAll('.sizer .row:first-child .badge')].map(badge => getComputedStyle(badge).color)"
    green = page.evaluate("getComputedStyle(document.querySelector('.badge.passed')).color")
    assert green not in page.evaluate(colours)


def test_a_threshold_that_no_score_can_miss_judges_nothing(tmp_path: Path, opened: Opened) -> None:
    """With a threshold at the worst score of the scale, rows have no judgement, so a score of 0 has not passed."""
    suite = replace(run_of(rollout("a")).suites["shop"], thresholds={"tsq": 0.0})
    directory = run_directory(tmp_path / "run", rollout("a", 0.0), rollout("b"), suites={"shop": suite})
    page = opened(report.write(read_run(directory), directory))

    poll(page, ROWS + ".length")
    assert ["finished", "finished"] == cells(page, "outcome")


def test_all_thresholds_and_tests_judge(tmp_path: Path, opened: Opened) -> None:
    """A score that is not the main one, and a failed test, make a rollout fail in the table, and the row says why."""
    suite = replace(run_of(rollout("a")).suites["shop"], thresholds={"tsq": 0.5, "polite": 1.0})
    scores = {"tsq": Score(1.0), "polite": Score(1.0)}
    impolite = {**scores, "polite": Score(0.0, {}, "no greeting")}
    plain: dict[str, Any] = {"expected": (), "tool_calls": ()}
    rollouts = [rollout(name, scores=each, **plain) for name, each in (("a", scores), ("b", impolite), ("c", scores))]
    test = Failure("test_shop.py::test_short[c]", "/shop/test_shop.py", 1, "failed", "too many tools\nassert 2 < 2", {}, "shop[c]")
    tests = OutcomeCounts(passed=4, failed=1, errors=0, skipped=0, failures=(test,))
    directory = run_directory(tmp_path / "run", *rollouts, suites={"shop": suite}, tests=tests)
    page = opened(report.write(read_run(directory), directory))

    poll(page, ROWS + ".length")
    page.click("[data-order=scenario] button")
    assert ["finished \u2713 passed", "finished \u2717 failed", "finished \u2717 failed"] == cells(page, "outcome")
    assert ["\u2013", "polite 0.000: no greeting", "too many tools"] == cells(page, "why")


def test_a_row_says_why_it_failed(tmp_path: Path, opened: Opened) -> None:
    """The reason is the limit or error, the first failed check, the explanation of the score, or the tools that differ."""
    plain = {"expected": (), "tool_calls": ()}
    failed = Verification(0.0, {"reward": 0.0}, 1, "", "test_port: closed", BEGAN, BEGAN + 1)
    rollouts = (
        rollout("a-limit", 0.0, status="limit", reason="more than 5 turns"),
        rollout("b-check", 0.0, verification=failed, **plain),
        rollout("c-score", 0.0, scores={"tsq": Score(0.0, {}, "the answer is 3, expected 4")}, **plain),
        rollout("d-tools", 0.0),
        rollout("e-passed", 1.0, **plain),
    )
    page = opened(written(tmp_path / "run", *rollouts))

    poll(page, ROWS + ".length")
    page.click("[data-order=scenario] button")
    assert [
        "more than 5 turns",
        "test_port: closed",
        "the answer is 3, expected 4",
        "not called: order_item not expected: find_item",
        "\u2013",
    ] == cells(page, "why")


def test_the_table_is_a_table(tmp_path: Path, opened: Opened) -> None:
    """A copied selection has a line for each scenario, with tabs between its cells. Horizontal arrows go to the marks of trials."""
    page = opened(written(tmp_path / "run", rollout("a"), rollout("b", 0.0)))

    poll(page, ROWS + ".length")
    text = page.evaluate("(() => { getSelection().selectAllChildren(table.element); return String(getSelection()); })()")
    lines = [line for line in text.splitlines() if "\t" in line]
    assert [True, True] == [name in text for name in ("0.000", "1.000")]
    assert len(lines) >= 2
    page.focus("[data-place='0'] a")
    page.keyboard.press("ArrowRight")
    assert "trial 1: 0.000, failed, finished" == page.evaluate("document.activeElement.title")
    page.keyboard.press("ArrowLeft")
    assert "b" == page.evaluate("document.activeElement.textContent")
