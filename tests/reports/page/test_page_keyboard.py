"""report.html with the keyboard and for screen readers, in a real Chromium."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.reports.page.conftest import BEGAN, poll, rollout
from tests.reports.page.test_page import ROWS, written

pytestmark = pytest.mark.slow

Opened = Callable[..., Any]
FOCUSED = "document.activeElement.textContent"
IN_TABLE = "Boolean(document.activeElement.closest('.sizer'))"
PLACE = "Number(document.activeElement.closest('.row').dataset.place)"


def test_the_tab_key_leaves_the_table_after_one_row(tmp_path: Path, opened: Opened) -> None:
    """Tab reaches one of sixty rows: the one that arrow keys last selected. Enter opens it, and Escape returns to it."""
    page = opened(written(tmp_path / "run", *(rollout(f"s-{number:02}", number / 60) for number in range(60))))

    poll(page, ROWS + ".length")
    page.focus("[data-order=tokens] button")
    page.keyboard.press("Tab")
    assert "s-00" == page.evaluate(FOCUSED)
    for _ in range(30):
        page.keyboard.press("ArrowDown")
    assert "s-30" == page.evaluate(FOCUSED)
    page.keyboard.press("Tab")
    assert not page.evaluate(IN_TABLE)
    page.keyboard.press("Shift+Tab")
    assert "s-30" == page.evaluate(FOCUSED)
    page.keyboard.press("Enter")
    poll(page, "document.querySelector('dialog .transcript')")
    page.keyboard.press("Escape")
    poll(page, "!document.getElementById('rollout').open")
    assert "s-30" == page.evaluate(FOCUSED)


def test_the_focus_stays_when_the_table_is_drawn_again(tmp_path: Path, opened: Opened) -> None:
    """The focus stays on its scenario if the table is drawn again for new rows or another order."""
    page = opened(written(tmp_path / "run", *(rollout(name, score) for name, score in (("a", 0.9), ("b", 0.5), ("c", 0.1)))))

    poll(page, ROWS + ".length")
    page.focus("[data-place='0'] a")
    assert ("c", 0) == (page.evaluate(FOCUSED), page.evaluate(PLACE))
    page.evaluate("table.sort = 'scenario'; summarize(); arrange()")
    assert ("c", 2) == (page.evaluate(FOCUSED), page.evaluate(PLACE))


def test_the_focus_stays_on_its_scenario(tmp_path: Path, opened: Opened) -> None:
    """A row keeps the focus if it is scrolled out of sight. If it is filtered out, the table gets the focus, so that no key is lost."""
    page = opened(written(tmp_path / "run", *(rollout(f"s-{number:02}", number / 60) for number in range(60))))

    poll(page, ROWS + ".length")
    page.focus("[data-place='0'] a")
    page.evaluate("table.sort = 'score'; table.down = true; arrange()")
    assert ("s-00", 59) == (page.evaluate(FOCUSED), page.evaluate(PLACE))
    page.evaluate("table.filters.text = 's-59'; arrange()")
    assert page.evaluate("document.activeElement === table.scroller")
    page.keyboard.press("ArrowDown")
    assert "s-59" == page.evaluate(FOCUSED)


def test_points_of_a_picture_are_reached(tmp_path: Path, opened: Opened) -> None:
    """Tab reaches one point of quality against speed. Arrow keys go from the fastest rollout to the slowest, and Enter opens one."""
    slow = rollout("slow", ended_ns=BEGAN + 9_000_000_000)
    page = opened(written(tmp_path / "run", slow, rollout("fast"), rollout("middle", ended_ns=BEGAN + 3_000_000_000)))

    poll(page, ROWS + ".length")
    page.evaluate("buildSpeed()")
    assert 1 == page.evaluate("document.querySelectorAll('#speed a[tabindex=\"0\"]').length")
    page.focus("#speed a[tabindex='0']")
    names = [page.evaluate(FOCUSED)]
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        names.append(page.evaluate(FOCUSED))
    radii = "[...document.querySelectorAll('#speed .point')].map(each => getComputedStyle(each).r)"
    assert 2 == len({*page.evaluate(radii)})  # the point with the focus is larger
    assert ["fast", "middle", "slow", "slow"] == [name.partition(":")[0] for name in names]
    page.evaluate("buildSpeed()")
    assert page.evaluate(FOCUSED).startswith("slow:")
    assert 1 == page.evaluate("document.querySelectorAll('#speed a[tabindex=\"0\"]').length")
    page.keyboard.press("Enter")
    poll(page, "document.querySelector('dialog .transcript')?.textContent.includes('lamp, slow?')")


def test_roles_for_screen_readers(tmp_path: Path, opened: Opened) -> None:
    """Rows and links have their roles, no link is inside an image, where it would be hidden, and headings skip no level."""
    page = opened(written(tmp_path / "run", rollout("a"), rollout("b", 0.2)))

    poll(page, ROWS + ".length")
    page.evaluate("buildSpeed()")
    links = page.get_by_role("table", name="Scenarios").get_by_role("link")
    assert ["b", "trial 1: 0.200, failed, finished", "a", "trial 1: 1.000, passed, finished"] == [
        link.get_attribute("aria-label") or link.inner_text() for link in links.all()
    ]
    assert 2 == page.get_by_role("table", name="Scenarios").get_by_role("rowheader").count()
    assert 3 == page.get_by_role("table", name="Scenarios").get_by_role("row").count()
    assert 0 == page.evaluate("document.querySelectorAll('[role=img] a, [role=img] button, a[role]').length")
    levels = page.evaluate("[...document.querySelectorAll('main h1, main h2, main h3, main h4')].map(each => Number(each.tagName[1]))")
    assert 1 == levels[0]
    assert [] == [pair for pair in pairwise(levels) if pair[1] > pair[0] + 1]


def test_the_report_for_screen_readers(tmp_path: Path, opened: Opened) -> None:
    """The report can be opened with the keyboard. Its tables have names and headers, and headings skip no level."""
    page = opened(written(tmp_path / "run", rollout("a"), rollout("b", 0.2)))

    poll(page, ROWS + ".length")
    page.focus(".report > summary")
    page.keyboard.press("Enter")
    table = page.get_by_role("table", name="Every scenario")
    assert ["b", "a"] == table.get_by_role("rowheader").all_inner_texts()
    assert ["scenario", "tsq"] == table.get_by_role("columnheader").all_inner_texts()[:2]
    nameless = "[...document.querySelectorAll('.report table')].filter(each => !each.getAttribute('aria-label')).length"
    assert 0 == page.evaluate(nameless)
    headings = "[...document.querySelectorAll('main h1, main h2, main h3, main h4, main h5, main h6')].map(each => Number(each.tagName[1]))"
    levels = page.evaluate(headings)
    assert (1, 5) == (levels[0], max(levels))
    assert [] == [pair for pair in pairwise(levels) if pair[1] > pair[0] + 1]


def test_the_focus_comes_back_to_the_report(tmp_path: Path, opened: Opened) -> None:
    """If a link of the report opened a rollout, Escape returns to that link."""
    page = opened(written(tmp_path / "run", rollout("a"), rollout("b", 0.2)))

    poll(page, ROWS + ".length")
    page.evaluate("document.querySelector('.report').open = true")
    page.focus(".report a[href='#shop/a']")
    page.keyboard.press("Enter")
    poll(page, "document.querySelector('dialog .transcript')")
    page.keyboard.press("Escape")
    poll(page, "!document.getElementById('rollout').open")
    assert "#shop/a" == poll(page, "document.activeElement.getAttribute('href')")
    poll(page, "location.hash === '#scenarios'")  # the browser closes the dialog before the page gets the event
    page.keyboard.press("Enter")
    poll(page, "document.getElementById('rollout').open")


def test_definitions_with_the_keyboard(tmp_path: Path, opened: Opened) -> None:
    """Tab reaches the abbreviation of a tile, a picture and a column, and the definition is visible at the bottom of the window."""
    page = opened(written(tmp_path / "run", rollout("a"), rollout("b", 0.2)), viewport={"width": 390, "height": 844})

    poll(page, ROWS + ".length")
    page.evaluate("buildSpeed()")
    for place, part in ((".figure abbr", "::after"), ("figcaption abbr", "::after"), ("[data-order=ttft] button", "::before")):
        page.focus(place)
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Tab")
        style = f"getComputedStyle(document.activeElement, '{part}')"
        assert page.evaluate("document.activeElement.title") == page.evaluate(f"{style}.content").strip('"').replace('\\"', '"')
        assert "fixed" == page.evaluate(f"{style}.position")
    assert 390 == page.evaluate("document.documentElement.scrollWidth")
