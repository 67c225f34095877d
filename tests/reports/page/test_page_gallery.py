"""The gallery: page, terminal and comment of eleven stored runs. A person who looks at reports finds each kind of run here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reference.origins import id_of, run_of
from benchmarks.reference.store import INPUTS, archive_of, below, read_archive, unpack
from pytest_agentbench.reports import comment
from pytest_agentbench.reports import page as report
from pytest_agentbench.reports.columns import columns
from pytest_agentbench.reports.document import Fact, Section
from pytest_agentbench.reports.sections import document
from pytest_agentbench.reports.terminal import MOST, write_run
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.run_file import Run
from tests.paper import Paper
from tests.reports.page.conftest import poll

pytestmark = pytest.mark.slow

#: Kind of run -> its name in benchmarks/reference and its verdict.
KINDS: Mapping[str, tuple[str, str]] = {
    "passing": ("passing", "PASS"),
    "failing": ("failing", "FAIL"),
    "inconclusive": ("banking", "INCONCLUSIVE"),
    "all errors": ("all_errors", "NOT MEASURED"),
    "limits": ("limits", "FAIL"),
    "three arms": ("three_concurrencies", "INCONCLUSIVE"),
    "five trials": ("five_trials", "FAIL"),
    "black box": ("black_box", "INCONCLUSIVE"),
    "HLE": ("hle", "PASS"),
    "terminal tasks": ("terminal", "FAIL"),
    "ten thousand rollouts": ("ten_thousand", "PASS"),
}

#: Elements that are wider than the window and that no element around them scrolls or cuts.
TOO_WIDE = """[...document.querySelectorAll('main *, dialog[open] *')].filter(each => {
  if (each.closest('svg') || each.getBoundingClientRect().right <= innerWidth + 1) return false;
  for (let around = each.parentElement; around; around = around.parentElement)
    if (getComputedStyle(around).overflowX !== 'visible') return false;
  return getComputedStyle(each).position !== 'absolute';
}).map(each => each.outerHTML.slice(0, 100))"""


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Run, Path]]:
    """Returns a function that returns the run of a kind and its directory. Its reports are written once for all tests."""

    @cache
    def made(kind: str) -> tuple[Run, Path]:
        inputs = below(INPUTS, read_archive(archive_of(KINDS[kind][0])))
        directory = tmp_path_factory.mktemp("gallery") / id_of(inputs)
        unpack(inputs, directory)
        run = run_of(directory)
        report.write(run, directory)
        comment.write(run, directory, {})
        return run, directory

    return made


Gallery = Callable[[str], tuple[Run, Path]]
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_the_page(gallery: Gallery, opened: Callable[..., Any], kind: str) -> None:
    """At two widths and in both themes, the page has its verdict and scenarios, and does not scroll sideways. The console stays empty.

    The same holds for the whole report, for all pictures, and for the first rollout.
    """
    run, directory = gallery(kind)

    assert KINDS[kind][1] == run.verdict
    for width, height in ((1200, 900), (390, 844)):
        for theme in ("light", "dark"):
            page = opened(directory / report.PAGE, viewport={"width": width, "height": height}, color_scheme=theme)
            poll(page, "document.querySelectorAll('.sizer .row').length")
            poll(page, "!document.getElementById('speed').hidden")
            assert run.verdict in page.inner_text("h1")
            page.evaluate("document.querySelectorAll('.report, .report details').forEach(each => { each.open = true; }); buildSpeed()")
            assert ([], width) == (page.evaluate(TOO_WIDE), page.evaluate("document.documentElement.scrollWidth"))
            page.evaluate("document.querySelector('.sizer .row .scenario a').click()")
            poll(page, "document.querySelector('dialog[open] .pane')")
            assert ([], width) == (page.evaluate(TOO_WIDE), page.evaluate("document.documentElement.scrollWidth"))
            assert page.evaluate("document.querySelector('dialog').scrollWidth") <= width
            page.close()


@every_kind
@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal(gallery: Gallery, kind: str, width: int) -> None:
    """The end of a session has at most twelve lines, from the verdict to what to open. Only paths and commands may be wider."""
    run, directory = gallery(kind)
    paper = Paper()

    write_run(paper, document(RunView(run, directory, f"reports/{run.id}")), width=width)

    title, *lines = paper.lines
    assert "= agentbench" == title
    assert len(lines) <= MOST == 12
    assert re.match(rf"verdict +{run.verdict}\b", lines[0])
    assert [f"reports/{run.id}/report.html", "agentbench show"] == [lines[-2].split()[-1], " ".join(lines[-1].split()[:2])]
    assert [] == [
        line for line in lines if columns(line) > width and not re.match(r"(resume|open)? +(pytest|reports/|agentbench show) ", line)
    ]


@every_kind
def test_the_comment(gallery: Gallery, kind: str) -> None:
    """The first screen of the comment is a list that answers five questions, and the rest is folded."""
    run, directory = gallery(kind)

    marker, heading, *lines = (directory / "comment.md").read_text(encoding="utf-8").splitlines()
    start, end = lines.index("<details><summary>Details</summary>"), lines.index("</details>")
    screen = lines[:start]
    assert (comment.marker(run), True) == (marker, heading.startswith(f"## agentbench: {run.verdict}"))
    assert ["why", "baseline", "fell", "setup", "to do"] == re.findall(r"^- \*\*(.*?)\*\*: \S", "\n".join(screen), re.MULTILINE)
    assert [] == [line for line in screen if line and not re.match(r"(- \*\*|  - )\S", line)]
    assert len(screen) <= 24
    assert ["", ""] == [lines[start + 1], lines[end - 1]]  # Without empty lines, GitHub shows the Markdown inside as text.
    assert [] == lines[end + 1 :]
    assert [] == unequal_rows(lines[start:end])


def unequal_rows(lines: list[str]) -> list[str]:
    """Returns the rows of tables that have more or fewer cells than their header."""
    cells = [len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0 for line in lines]
    return [line for line, own, before in zip(lines[1:], cells[1:], cells, strict=False) if own and before and own != before]


def test_each_arm_has_its_own_line(gallery: Gallery, opened: Callable[..., Any]) -> None:
    """In the pictures of servers over time, each of three arms has a line of its own, and the report has no timing of all arms together."""
    run, directory = gallery("three arms")
    page = opened(directory / report.PAGE)
    poll(page, "document.querySelectorAll('.sizer .row').length")
    page.evaluate("buildSpeed()")

    arms = [arm.name for arm in run.ab.arms] if run.ab else []
    running = "[...document.querySelectorAll('.over-time > div')].map(each => [...each.querySelectorAll('title')].map(x => x.textContent))"
    assert 3 == len(arms)
    assert all(set(arms) == {*names} for names in page.evaluate(running))
    assert arms == page.evaluate("[...document.querySelectorAll('.over-time .legend li')].map(each => each.textContent)")
    [serving] = [each for each in document(RunView(run, directory)).sections if each.title == "Serving"]
    assert ["Slowest LLM calls"] == [each.title for each in serving.blocks if isinstance(each, Section)]
    assert {"timing quality", "evidence", "calls", "timings"} >= {
        each.label for each in serving.flat() if isinstance(each, Fact) and each.label
    }


def test_a_comment_says_why_nothing_was_measured(gallery: Gallery) -> None:
    """If all rollouts failed, the comment has the error, and does not say that nothing fell. What decided comes first in the reasons."""
    lost = (gallery("all errors")[1] / "comment.md").read_text(encoding="utf-8").partition("<details>")[0]
    limits = (gallery("limits")[1] / "comment.md").read_text(encoding="utf-8")

    assert "HTTP 500" in lost
    assert "- **fell**: unknown" in lost
    assert "- **why**: tests: 6 failed" in limits
