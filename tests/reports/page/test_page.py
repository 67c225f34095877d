"""report.html in a real Chromium. Each test also checks that the console is empty and that there were no network requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.records import Score, ToolCall
from pytest_agentbench.reports import page as report
from pytest_agentbench.reports.page import PAGE, write_several
from pytest_agentbench.runs.run_file import read_run
from tests.made_runs import run_directory
from tests.reports.page.conftest import call, poll, rollout

pytestmark = pytest.mark.slow

Opened = Callable[..., Any]
ROWS = "[...document.querySelectorAll('.sizer .row')].sort((a, b) => a.dataset.place - b.dataset.place)"
NAMES = f"{ROWS}.map(row => row.querySelector('b').textContent)"


#: Texts of the page with a contrast below 4.5 to 1, by the formula of WCAG 2.
CONTRAST = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const linear = part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const light = colour => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(part => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = element => {
    const colour = getComputedStyle(element).backgroundColor;
    return !/, 0\\)$|transparent/.test(colour) ? colour : element.parentElement ? ground(element.parentElement) : 'white';
  };
  const contrast = each => {
    const ink = each.closest('svg') ? getComputedStyle(each).fill : getComputedStyle(each).color;
    const [dark, bright] = [light(ink), light(ground(each))].sort((x, y) => x - y);
    return (bright + 0.05) / (dark + 0.05);
  };
  const texts = [...document.querySelectorAll('main *, dialog *')].filter(each => each.tagName !== 'title'
    && [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim()));
  return texts.filter(each => contrast(each) < 4.5).map(each => each.className + ': ' + each.textContent.slice(0, 40));
})()"""
NAMELESS = """[...document.querySelectorAll('button, input, select, svg[role=img]')]
  .filter(each => !each.closest('label') && !each.textContent.trim() && !each.getAttribute('aria-label')).length"""


def written(directory: Path, *rollouts: Any) -> Path:
    """Returns the page of a run."""
    run_directory(directory, *rollouts)
    return report.write(read_run(directory), directory)


def test_the_table_is_worst_first_and_is_sorted_and_filtered(tmp_path: Path, opened: Opened) -> None:
    """Errors come first, then the lowest scores. Each column can be sorted, and status, tool, text and score filter the rows."""
    rollouts = [rollout("a", 1.0), rollout("b", 0.2), rollout("c", 0.7, tool_calls=(ToolCall("rare", {}, 1),))]
    failed = rollout("d", status="agent_error", reason="it gave up", scores={})
    page = opened(written(tmp_path / "run", *rollouts, failed))

    assert ["d", "b", "c", "a"] == poll(page, NAMES)
    page.click("[data-order=scenario] button")
    assert ["a", "b", "c", "d"] == page.evaluate(NAMES)
    page.click("[data-order=scenario] button")
    assert ["d", "c", "b", "a"] == page.evaluate(NAMES)
    assert "descending" == page.get_attribute("[data-order=scenario]", "aria-sort")
    page.select_option("#filter-status", "failed")
    assert ["d", "b"] == page.evaluate(NAMES)
    page.select_option("#filter-status", "")
    page.select_option("#filter-tool", "rare")
    assert ["c"] == page.evaluate(NAMES)
    page.select_option("#filter-tool", "")
    page.fill("#filter-score", "0.7")
    assert ["c", "b"] == page.evaluate(NAMES)
    page.fill("#filter-score", "")
    page.fill("#filter-text", "GAVE UP")
    assert ["d"] == page.evaluate(NAMES)


def test_a_link_opens_a_rollout_and_keys_navigate(tmp_path: Path, opened: Opened) -> None:
    """`#b` opens the rollout with transcript, tools and scores. j goes to the next row, Escape returns to the table."""
    page = opened(written(tmp_path / "run", rollout("a"), rollout("b", 0.2)), "#b")

    poll(page, "document.querySelector('dialog .transcript')")
    text = page.inner_text("dialog")
    for words in ("Is there a lamp, b?", "order_item not called", "find_item not expected", "because", "waiting for the first token"):
        assert words in text
    page.keyboard.press("j")
    poll(page, "document.querySelector('dialog .transcript')?.textContent.includes('lamp, a?')")
    assert page.url.endswith("#a")
    page.keyboard.press("Escape")
    poll(page, "!document.getElementById('rollout').open")


def test_a_call_without_a_stream(tmp_path: Path, opened: Opened) -> None:
    """The time of a call that was not streamed is the wait for its answer; no first token is mentioned in its bar and in the legend."""
    whole = replace(call(0), chunks=())
    page = opened(written(tmp_path / "run", rollout("a", calls=(whole,), ended_ns=whole.ended_ns)), "#a")

    poll(page, "document.querySelector('.timeline svg .part.whole')")
    assert "waiting for the answer" in page.inner_text("dialog .legend")
    titles = page.evaluate("[...document.querySelectorAll('.timeline rect.part title')].map(each => each.textContent)")
    assert [title for title in titles if "waiting for the answer" in title]
    assert [] == [title for title in titles if "first token" in title]


def test_a_timeline_shows_each_token_on_zoom(tmp_path: Path, opened: Opened) -> None:
    """Two hundred tokens have no lines if they would look like one bar. Zoomed in, each visible token has one."""
    calls = (call(0, 200), call(20_000))
    page = opened(written(tmp_path / "run", rollout("a", calls=calls, ended_ns=calls[1].ended_ns)), "#a")

    poll(page, "document.querySelector('.timeline svg')")
    assert 0 == page.evaluate("document.querySelectorAll('.token').length")
    page.focus(".timeline")
    for key in ("+", "+", "+", "+", *["ArrowLeft"] * 20):
        page.keyboard.press(key)
    assert page.evaluate("document.querySelectorAll('.token').length") > 100


def test_scrolling_five_thousand_rows(tmp_path: Path, opened: Opened) -> None:
    """At any scroll position the right rows are visible, and only few rows are in the page.

    Sorting, filtering, opening and charts work as they do with few rows.
    """
    page = opened(written(tmp_path / "run", *(rollout(f"s-{number:04}", number / 5000) for number in range(5000))))

    poll(page, ROWS + ".length")
    for share in (0.0, 0.37, 1.0):
        page.evaluate(f"table.scroller.scrollTop = {share} * (table.scroller.scrollHeight - table.scroller.clientHeight)")
        page.evaluate("drawRows()")
        place = page.evaluate("Math.ceil(table.scroller.scrollTop / table.height)")
        box = page.evaluate(
            f"(() => {{ const row = document.querySelector('[data-place=\"{place}\"]'), head = table.scroller.getBoundingClientRect();"
            " return [row.querySelector('b').textContent, row.getBoundingClientRect().top - head.top - table.head.offsetHeight]; })()"
        )
        assert f"s-{place:04}" == box[0]
        assert -2 <= box[1] <= 52
        assert page.evaluate(ROWS + ".length") < 60
    assert "s-4999" == page.evaluate(NAMES)[-1]
    page.click("[data-order=scenario] button")
    page.click("[data-order=scenario] button")
    page.evaluate("table.scroller.scrollTop = 0; drawRows()")
    assert "s-4999" == page.evaluate(NAMES)[0]
    page.fill("#filter-text", "s-25")
    assert "100 of 5,000 scenarios, by scenario" == page.inner_text("#scenarios [role=status]")
    assert "s-2599" == page.evaluate(NAMES)[0]
    page.evaluate("location.hash = 's-2511'")
    poll(page, "document.querySelector('dialog .transcript')?.textContent.includes('lamp, s-2511?')")
    page.keyboard.press("j")
    poll(page, "document.querySelector('dialog .transcript')?.textContent.includes('lamp, s-2510?')")
    page.keyboard.press("Escape")
    page.evaluate("document.getElementById('speed').scrollIntoView()")
    poll(page, "document.querySelectorAll('#speed circle').length === 5000")


HOSTILE = (
    "<script>window.ran = 1</script>",
    "</script><script>window.ran = 2</script>",
    "<!--<script>",
    "<img src=x onerror='window.ran = 3'>",
    "<svg onload='window.ran = 4'><a href='javascript:window.ran=5'>x</a></svg>",
    "javascript:window.ran = 6",
    "\u202eevil\u202c \u2066bidi\u2069",
    "\x1b[31mred\x1b[0m \x00nul",
    "\ud83d half",
    "x" * 1_000_000,
)


@pytest.mark.parametrize("words", HOSTILE, ids=["script", "ends", "comment", "img", "svg", "url", "bidi", "ansi", "surrogate", "long"])
def test_foreign_texts_are_shown_as_text(tmp_path: Path, opened: Opened, words: str) -> None:
    """Hostile ids, tools, questions, answers and explanations are shown as text. Nothing runs, nothing is loaded, and the page works."""
    tool = ToolCall(words[:2000], {words[:2000]: words}, 1, detail=words[:2000])
    messages = (
        {"role": "user", "content": words},
        {"role": words[:50], "content": [{"type": "image_url", "image_url": {"url": "http://x/y"}}]},
    )
    score = {"tsq": Score(0.5, {}, words)}
    hostile = rollout(words[:300], tool_calls=(tool,), messages=messages, answer=words, scores=score, reason=words[:300], log=words)
    page = opened(written(tmp_path / "run", rollout("a"), hostile))

    poll(page, ROWS + ".length === 2")
    page.evaluate("location.hash = linkOf(page.rows[1])")
    poll(page, "document.querySelector('dialog .transcript')")
    shown = page.evaluate("document.querySelector('dialog').textContent")
    assert page.evaluate("visible(page.rows[1].id)") in shown
    assert page.evaluate("window.ran") is None
    assert 0 == page.evaluate("document.querySelectorAll('img, iframe, dialog a[href^=javascript]').length")
    for hidden in "\u202e\x1b\x00":
        assert hidden not in shown


def test_two_runs_side_by_side(tmp_path: Path, opened: Opened) -> None:
    """A scenario that passes in only one run has flipped. A rollout is shown beside the same one of the other run.

    The page also has the comparison as text, with the same rows as `agentbench compare`.
    """
    run_directory(tmp_path / "old", rollout("a", 1.0), rollout("b", 1.0))
    run_directory(tmp_path / "new", rollout("a", 0.0), rollout("b", 1.0))
    page = opened(write_several([tmp_path / "old", tmp_path / "new"], tmp_path / "two.html", pytest.fail))

    poll(page, "document.querySelector('#flips')")
    assert ["a"] == page.evaluate("[...document.querySelectorAll('#flips tbody th')].map(cell => cell.textContent)")
    rows = [row.all_text_contents() for row in (each.locator("th, td") for each in page.locator("details.report").last.locator("tr").all())]
    assert {("", "old", "new"), ("tsq", "1.000", "0.500"), ("a", "1.000 1/1", "0.000 0/1")} <= {tuple(row) for row in rows}
    table = page.get_by_role("table", name="Runs side by side")
    assert ["run", "old", "new"] == table.get_by_role("columnheader").all_inner_texts()
    assert 0 == page.locator(".run:visible").count()
    assert ["old: PASS", "new: PASS", "The comparison"] == page.locator("details.report > summary:visible").all_inner_texts()
    assert ["scenario", "old", "new"] == page.locator(".rows thead th").all_inner_texts()[:3]
    page.evaluate("location.hash = 'a'")
    poll(page, "document.querySelectorAll('dialog .transcript').length === 2")


#: Links of the report: their text, and the rollout that they open.
LINKED = """[...document.querySelectorAll('#first a')].map(each => {
  const row = rowAt(each.hash.slice(1));
  return [each.textContent, row ? `${page.runs[row.run].name}: ${row.suite}[${row.id}]` : 'nowhere', each.closest('.run').ariaLabel];
})"""


def test_links_of_the_report_open_rollouts(tmp_path: Path, opened: Opened) -> None:
    """Any name of a scenario links to a rollout. A name without a rollout is not a link."""
    names = ("a b/c", "100 %", '\u00e4<b>"', "speed")
    page = opened(written(tmp_path / "run", *(rollout(name, 0.2) for name in names), rollout("half \ud83d", 0.2)))

    poll(page, ROWS + ".length === 5")
    linked = page.evaluate(LINKED)
    assert {(name, f"run: shop[{name}]") for name in names} == {(name, target) for name, target, _ in linked if "[" not in name}
    page.evaluate("document.querySelector('.report').open = true")
    page.get_by_role("link", name="100 %", exact=True).first.click()
    poll(page, "document.querySelector('dialog .transcript')?.textContent.includes('lamp, 100 %?')")


def test_links_of_several_runs(tmp_path: Path, opened: Opened) -> None:
    """Each run has its report. A link opens a rollout, beside the same one of the other run if there is one."""
    run_directory(tmp_path / "old", rollout("a", 0.2), rollout("b", 0.2))
    run_directory(tmp_path / "new", rollout("a", 0.1), rollout("c", 0.1))
    page = opened(write_several([tmp_path / "old", tmp_path / "new"], tmp_path / "two.html", pytest.fail))

    poll(page, ROWS + ".length === 3")
    assert 5 == page.locator("details.report").count()  # two for each run, and one for the comparison
    found = {(run, name): target for name, target, run in page.evaluate(LINKED) if "[" not in name}
    assert found == {
        ("Run old", "a"): "old: shop[a]",
        ("Run old", "b"): "old: shop[b]",
        ("Run new", "a"): "old: shop[a]",
        ("Run new", "c"): "new: shop[c]",
    }
    page.evaluate("document.querySelectorAll('.report').forEach(each => { each.open = true; })")
    page.click(":nth-match(.report, 2) a[href='#shop/a'] >> nth=0")
    poll(page, "document.querySelectorAll('dialog .transcript').length === 2")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_accessibility(tmp_path: Path, opened: Opened, scheme: str, width: int) -> None:
    """In both themes, text has a contrast of at least 4.5 to 1, nothing is wider than the screen, and all controls have names.

    This also applies to an open rollout, to charts and to the report.
    """
    failed = call(200, error_kind="timeout", error="it took too long")
    rollouts = [rollout("a"), rollout("b", 0.2, calls=(call(0), failed), reason="a late call", log="printed")]
    page = opened(written(tmp_path / "run", *rollouts), color_scheme=scheme, viewport={"width": width, "height": 800})

    poll(page, ROWS + ".length")
    page.evaluate("buildSpeed()")
    page.evaluate("document.querySelector('.report').open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [] == page.evaluate(CONTRAST)
    assert 0 == page.evaluate(NAMELESS)
    page.evaluate("location.hash = 'b'")
    poll(page, "document.querySelector('dialog .transcript')")
    assert page.evaluate("dialog.scrollWidth <= dialog.clientWidth")
    assert [] == page.evaluate(CONTRAST)
    assert 0 == page.evaluate(NAMELESS)


def test_without_javascript(tmp_path: Path, chromium: Any) -> None:
    """Without scripts, the page still shows the verdict, the main numbers and the report."""
    file = written(tmp_path / "run", rollout("a"), rollout("b", 0.2))
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    text = page.inner_text("body")
    page.click(".report > summary")
    scenarios = page.get_by_role("table", name="Every scenario").get_by_role("rowheader").all_inner_texts()
    context.close()

    assert "PASS" in text
    assert "0.600" in text
    assert "need JavaScript" in text
    assert ["b", "a"] == scenarios


def test_a_changed_script_does_not_run(tmp_path: Path, chromium: Any) -> None:
    """The policy in the file allows one script by its hash. A changed script does not run."""
    file = written(tmp_path / "run", rollout("a"))
    file.write_text(file.read_text().replace("begin();\n</script>", "begin(); \n</script>"))
    context = chromium.new_context()
    page = context.new_page()
    page.goto(file.as_uri())
    ready = page.get_attribute("html", "data-ready")
    context.close()

    assert ready is None
    assert PAGE == file.name
