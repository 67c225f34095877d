"""trend.html in a real browser, as a user opens it: at two widths, in both themes, with the keyboard and in print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.reports.comparison_phrases import IN_TIME_ORDER
from pytest_agentbench.reports.trend import PAGE, write
from tests.gate.test_trend import history, night
from tests.reports.page.conftest import opened  # noqa: F401 - a fixture
from tests.reports.page.test_page import CONTRAST

pytestmark = pytest.mark.slow

#: Texts that a chart cuts at its left or right edge.
OUTSIDE = """[...document.querySelectorAll('svg')].flatMap(svg => [...svg.querySelectorAll('text')].filter(text => {
  const [a, b] = [text.getBoundingClientRect(), svg.getBoundingClientRect()];
  return a.left < b.left - 1 || a.right > b.right + 1;
}).map(text => text.textContent))"""
WIDTHS = [(1200, 900), (390, 844)]


def page_of_nights(directory: Path) -> Path:
    """Writes the page of four nights: a regression, its fix, and a night with another setup. The first night has a report."""
    report = directory / "reports/n0/report.html"
    report.parent.mkdir(parents=True)
    report.write_text("<title>the first night</title>", encoding="utf-8")
    nights = [night(day, share, run=f"n{day}", commit=f"{day}" * 12) for day, share in enumerate((0.9, 0.3, 0.9))]
    trend = history(*nights, night(3, cache="cold"))
    write(trend, directory, directory / "reports", "https://example.org/owner/name")
    return directory / PAGE


@pytest.mark.parametrize(("width", "height"), WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_in_a_browser(tmp_path: Path, opened: Callable[..., Any], theme: str, width: int, height: int) -> None:  # noqa: F811 - the fixture
    """The page does not scroll sideways, its texts can be read in both themes, and its charts have axes with titles."""
    page = opened(page_of_nights(tmp_path), viewport={"width": width, "height": height}, color_scheme=theme)

    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [] == page.evaluate(CONTRAST.replace("main *, dialog *", "body *"))
    axes = page.evaluate(
        "[...document.querySelectorAll('svg')].map(each => [...each.querySelectorAll('.axis')].map(text => text.textContent))"
    )
    assert axes
    assert all(IN_TIME_ORDER in texts for texts in axes)
    assert [] == page.evaluate(OUTSIDE)


def test_runs_and_definitions_with_the_keyboard(tmp_path: Path, opened: Callable[..., Any]) -> None:  # noqa: F811 - the fixture
    """Tab reaches the definition of an abbreviation, which is then visible, and a point of a chart, which opens the report of its run."""
    page = opened(page_of_nights(tmp_path))

    abbreviations = page.evaluate("document.querySelectorAll('figcaption abbr[tabindex]').length")
    assert abbreviations
    page.focus("figcaption abbr[tabindex]")
    shown = page.evaluate("getComputedStyle(document.activeElement, '::after').content")
    assert page.evaluate("document.activeElement.title") in shown
    page.focus("svg a")
    assert "n0" in page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("Enter")
    page.wait_for_url("**/n0/report.html")
    assert "the first night" == page.title()


def test_the_page_in_print(tmp_path: Path, opened: Callable[..., Any]) -> None:  # noqa: F811 - the fixture
    """In print, the regressions and every chart are there, and nothing is wider than the paper."""
    page = opened(page_of_nights(tmp_path), viewport={"width": 700, "height": 900})

    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    assert page.evaluate("[...document.querySelectorAll('svg')].every(each => each.getBoundingClientRect().height > 50)")
    assert "regression" in page.inner_text("body").lower()
