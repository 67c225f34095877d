"""The numbers of report.html, in a real Chromium: how they are rounded, which values charts show, and which are not shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.metrics.registry import definitions
from pytest_agentbench.records import Chunk
from pytest_agentbench.reports import page as report
from pytest_agentbench.runs.run_file import read_run
from tests.made_runs import run_directory, session_facts
from tests.reports.page.conftest import BEGAN, call, poll, rollout
from tests.reports.page.test_page import ROWS, written

pytestmark = pytest.mark.slow

Opened = Callable[..., Any]
LEGEND = "[...document.querySelectorAll('dialog .legend li')].map(item => item.textContent)"


def test_numbers_are_rounded_by_one_rule(tmp_path: Path, opened: Opened) -> None:
    """A number has three significant digits and no exponent, a score three decimal places, and an error of rounding is 0."""
    page = opened(written(tmp_path / "run", rollout("a")))

    values = [2.78e-18, -2.78e-18, 0.000123456, 0.12345, 12.345, 123.45, 1234567, None]
    shown = ["0", "0", "0.000123", "0.123", "12.3", "123", "1,234,567", "\u2013"]
    assert shown == page.evaluate("values => values.map(value => figure(value))", values)
    assert "1,234.567" == page.evaluate("figure(1234.567, 7)")
    assert ["0.600", "0.000", "-0.050", "12.346", "\u2013"] == page.evaluate("[0.6, -1e-17, -0.05, 12.3456, null].map(scored)")


def test_the_axis_of_a_distribution_starts_where_values_are(tmp_path: Path, opened: Opened) -> None:
    """Gaps of 0 between events with one timestamp do not move the axis. The picture says which share of the values it leaves out."""
    base = call(0, 100)
    together = tuple(Chunk(base.chunks[-1].at_ns, "content") for _ in range(25))
    page = opened(written(tmp_path / "run", rollout("a", calls=(replace(base, chunks=(*base.chunks, *together)),))))

    page.evaluate("buildSpeed()")
    figure = page.locator("figure", has_text="Inter-token latency")
    ticks = [float(text) for text in figure.locator("svg text").all_text_contents() if text.replace(".", "").isdigit()]
    assert [] == [tick for tick in ticks if 0 < tick < 1]
    assert "20.2 % of the values are left of this axis" in figure.inner_text()
    assert "124 values" in figure.inner_text()


def test_parts_of_the_time_are_never_more_than_all_of_it(tmp_path: Path, opened: Opened) -> None:
    """Each moment of a rollout counts once, also if calls overlap. A judge's call after the rollout is counted apart."""
    calls = (call(0, 7), call(10, 7), call(10, 7))
    judge = call(100, 20, role="judge")
    page = opened(written(tmp_path / "run", rollout("a", calls=calls, other_calls=(judge,), ended_ns=BEGAN + 100_000_000)), "#a")

    poll(page, "document.querySelector('dialog .timeline svg')")
    *shares, after = page.evaluate(LEGEND)
    assert 99 <= sum(int(share.rpartition(", ")[2].removesuffix(" %")) for share in shares) <= 101
    assert after.startswith("calls of a judge 220 ms, after the rollout")


def test_abbreviations_have_tooltips(tmp_path: Path, opened: Opened) -> None:
    """Abbreviations of metrics in tiles, tables, texts and pictures have their definition from the registry as a tooltip."""
    page = opened(written(tmp_path / "run", rollout("a")))

    poll(page, ROWS + ".length")
    page.evaluate("buildSpeed()")
    tiles, texts, pictures = (
        page.evaluate("name => Object.fromEntries([...document.querySelectorAll(name)].map(each => [each.textContent, each.title]))", name)
        for name in ("#first .figure abbr", ".report abbr", "#speed abbr")
    )
    for title in ("TTFT", "ITL", "E2E"):
        assert definitions()[title] == tiles[title] == texts[title]
    assert "`" not in definitions()["TTFT"]
    assert definitions()["ITL"] == pictures["Inter-token latency, 3 values"]
    bare = """(() => { const walk = document.createTreeWalker(document.querySelector('#first'), NodeFilter.SHOW_TEXT), found = [];
      while (walk.nextNode()) {
        const bare = /\\b(TTFT|ITL|TPOT|E2E)\\b/.test(walk.currentNode.data);
        if (bare && !walk.currentNode.parentElement.closest('abbr, code, svg')) found.push(walk.currentNode.data);
      }
      return found; })()"""
    assert [] == page.evaluate(bare)


def test_the_page_of_a_recording_shows_no_speed(tmp_path: Path, opened: Opened) -> None:
    """The page of a run whose answers come from a recording has no latencies in tiles, table and pictures, and says why."""
    backend = replace(session_facts().backend, kind="recorded")
    directory = run_directory(tmp_path / "run", rollout("a"), backend=backend)
    page = opened(report.write(read_run(directory), directory))

    poll(page, ROWS + ".length")
    page.evaluate("buildSpeed()")
    assert "the answers come from a recording" in page.inner_text("#first")
    assert [] == [title for title in page.locator("#first .figure h2").all_inner_texts() if title in ("TTFT", "throughput", "prefix cache")]
    assert ["\u2013", "\u2013"] == page.evaluate("['ttft', 'time'].map(name => document.querySelector(`.sizer .cell.${name}`).textContent)")
    assert 0 == page.locator("#speed figure").count()
    assert "come from a recording" in page.inner_text("#speed")
