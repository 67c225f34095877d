"""Charts, comparisons and printing of report.html, in a real Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.backends.telemetry.engine_stats import SERVERS
from pytest_agentbench.backends.telemetry.samples import FILE as SAMPLES
from pytest_agentbench.records import Json, Score, Verification
from pytest_agentbench.reports import page as report
from pytest_agentbench.reports import phrases
from pytest_agentbench.reports.page import write_several
from pytest_agentbench.runs.run_file import read_run
from tests.findings import measure, report_of
from tests.made_runs import gate_result, rule_result, run_directory, run_of
from tests.reports.page.conftest import BEGAN, call, poll, rollout
from tests.reports.page.test_page import NAMES, ROWS, written

pytestmark = pytest.mark.slow

Opened = Callable[..., Any]
FIGURES = "[...document.querySelectorAll('#speed figure')].map(each => each.querySelector('figcaption').textContent)"


def test_server_metrics(tmp_path: Path, opened: Opened) -> None:
    """Each gauge of a server has a chart over time below the rollouts in flight, with the values and the unit."""
    names = SERVERS["vllm"]
    directory = run_directory(tmp_path / "run", rollout("a", ended_ns=BEGAN + 10_000_000_000))
    began = 1_700_000_000.0
    first: Json = {"series": [[names.kv_usage[0], {}], [names.waiting, {}]], "values": [[0, 0.25], [1, 0]], "first": True}
    looks: list[Json] = [first, {"values": [[0, 0.75], [1, 3]]}]
    lines = [{"round": at, "at": began + 4 * at + 1, "ns": 0, "service": "vllm", "replica": 0, **look} for at, look in enumerate(looks)]
    (directory / SAMPLES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = opened(report.write(read_run(directory), directory))

    poll(page, ROWS + ".length")
    page.evaluate("document.getElementById('speed').scrollIntoView()")
    poll(page, "document.querySelectorAll('.over-time svg').length === 3")
    titles = page.evaluate("[...document.querySelectorAll('.over-time h3')].map(each => each.textContent)")
    assert ["rollouts in flight", "KV cache in use (vllm 0)", "requests waiting (vllm 0)"] == titles
    found = page.evaluate("[...document.querySelectorAll('.over-time svg')].map(each => each.getAttribute('aria-label'))")
    assert "KV cache in use (vllm 0) over time" in found
    line = page.evaluate("document.querySelectorAll('.over-time .line')[1].getAttribute('d')")
    start, step = (float(re.findall(pattern, line)[0]) for pattern in (r"^M[0-9.]+ ([0-9.]+)", r"V([0-9.]+)"))
    assert step < start  # upwards


def test_rollouts_without_duration_are_not_in_flight(tmp_path: Path, opened: Opened) -> None:
    """Rollouts with a duration of 0 never make the number in flight negative."""
    short = [rollout(f"s-{number}", ended_ns=BEGAN) for number in range(3)]
    page = opened(written(tmp_path / "run", rollout("a"), *short))

    poll(page, ROWS + ".length")
    assert [1, 0] == page.evaluate("inFlight(page.rows).map(([, count]) => count)")


def test_scores_of_many_arms(tmp_path: Path, opened: Opened) -> None:
    """Each of five arms has a column with its trials, score, latency, time and tokens. On a narrow screen, a row has them all."""
    arms = [replace(rollout(scenario), variant=f"arm{number}") for scenario in "ab" for number in range(5)]
    file = written(tmp_path / "run", *arms)
    for width in (1200, 400):
        page = opened(file, viewport={"width": width, "height": 800})
        poll(page, ROWS + ".length")
        page.evaluate("page.rows.forEach((row, number) => { row.score = 1 / (number + 1.5); }); summarize(); arrange()")
        rows = page.locator(".sizer .row").all()
        assert [["0.154", "0.133", "0.118", "0.105", "0.095"], ["0.667", "0.400", "0.286", "0.222", "0.182"]] == [
            row.locator(".side b").all_inner_texts() for row in rows
        ]
        inside = (
            "row => [...row.querySelectorAll('.side')].every(cell => row.scrollHeight <= row.clientHeight + 1 && cell.offsetHeight > 0)"
        )
        assert all(row.evaluate(inside) for row in rows)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert "18 ms / 100 ms / 4" in opened(file).locator(".sizer .side").first.inner_text()


def test_an_interval_is_a_picture(tmp_path: Path, opened: Opened) -> None:
    """The bar spans the interval, the dot and the threshold are at their values, and the text has the same numbers."""
    rule = rule_result("tsq.mean >= 0.5", "PASS", 0.7, low=0.6, high=0.9, threshold=0.5)
    directory = run_directory(tmp_path / "run", rollout("a"), gate=gate_result("PASS", rule))
    page = opened(report.write(read_run(directory), directory))

    poll(page, "document.querySelector('.interval')")
    place = "(name, key) => Number(document.querySelector(`.interval .${name}`).getAttribute(key))"
    places = [
        page.evaluate(f"({place})('{name}', '{key}')")
        for name, key in (("threshold", "x1"), ("span", "x1"), ("estimate", "cx"), ("span", "x2"))
    ]
    assert sorted(places) == places
    assert pytest.approx((places[2] - places[1]) / (places[3] - places[1])) == 1 / 3
    assert "shop tsq.mean >= 0.5: 0.7 [0.6, 0.9] at 95 %, against 0.5" == page.get_attribute(".interval", "aria-label")
    assert "PASS" == page.inner_text(".intervals .good").strip()
    shaded = page.evaluate("['x', 'width'].map(name => Number(document.querySelector('#rules .failing').getAttribute(name)))")
    assert pytest.approx(places[0]) == sum(shaded)  # A lower estimate would fail.
    assert page.get_by_role("link", name="Gate").is_visible()


def test_arms_are_compared_like_runs(tmp_path: Path, opened: Opened) -> None:
    """Variants of one run are compared like runs: scores in the table, flipped scenarios, and rollouts side by side."""
    rollouts = [
        replace(rollout(name, score), variant=arm)
        for arm, scores in (("old", (1, 1)), ("new", (0, 1)))
        for name, score in zip("ab", scores, strict=True)
    ]
    suite = run_of(rollout("a")).suites["shop"]
    directory = run_directory(tmp_path / "run", *rollouts, suites={"shop-old": suite, "shop-new": suite})
    page = opened(report.write(read_run(directory), directory))

    poll(page, ROWS + ".length === 2")
    heads = page.locator(".rows thead th").all_inner_texts()
    assert ["scenario", "old", "new"] == heads[:3]
    assert ["1.000", "0.000"] == [cell.locator("b").inner_text() for cell in page.locator(".sizer .row").first.locator(".side").all()]
    assert ["a"] == page.evaluate("[...document.querySelectorAll('#flips tbody th')].map(cell => cell.textContent)")
    page.check("#filter-flipped")
    assert ["a"] == page.evaluate(NAMES)
    page.evaluate("location.hash = linkOf(page.rows[0])")
    poll(page, "document.querySelector('dialog .transcript')")
    page.select_option("dialog select", "0")
    poll(page, "document.querySelectorAll('dialog .transcript').length === 2")


def test_print(tmp_path: Path, opened: Opened) -> None:
    """A printed page has all rows at their positions, no controls, and the report if it is open."""
    page = opened(written(tmp_path / "run", *(rollout(f"s-{number:02}") for number in range(60))))

    poll(page, ROWS + ".length")
    assert page.evaluate(ROWS + ".length") < 60
    page.evaluate(
        "window.addEventListener('beforeprint', () => { const rows = [...document.querySelectorAll('.sizer .row')];"
        " window.printed = [rows.length, new Set(rows.map(row => Math.round(row.getBoundingClientRect().top))).size]; })"
    )
    page.pdf()
    assert [60, 60] == page.evaluate("window.printed")
    assert page.evaluate(ROWS + ".length") < 60
    page.emulate_media(media="print")
    hidden = "['header', '.filters', '.report'].map(name => getComputedStyle(document.querySelector(name)).display)"
    assert ["none", "none", "none"] == page.evaluate(hidden)
    page.evaluate("document.querySelector('.report').open = true")
    assert ["none", "none", "block"] == page.evaluate(hidden)


@pytest.mark.parametrize("name", ["<img src=x onerror='window.ran=1'>", '"><script>window.ran=2<', "\u202egnp.exe\x1b[31m", "&lt;b&gt;"])
def test_names_of_directories_are_shown_as_text(tmp_path: Path, opened: Opened, name: str) -> None:
    """Any name of a directory is shown as the name of the run: in the title, on the first screen, and in comparisons."""
    for each in (name, f"{name}2"):
        run_directory(tmp_path / each, rollout("a"), rollout("b", 0.2))
    page = opened(write_several([tmp_path / name, tmp_path / f"{name}2"], tmp_path / "two.html", pytest.fail))

    poll(page, ROWS + ".length === 2")
    page.evaluate("location.hash = 'a'")
    poll(page, "document.querySelectorAll('dialog .transcript').length === 2")
    assert page.evaluate("window.ran") is None
    assert page.evaluate(f"visible({json.dumps(name)})") in page.evaluate("document.body.textContent")
    assert 0 == page.evaluate("document.querySelectorAll('img, main script').length")
    assert not {"\u202e", "\x1b"} & {*page.title()}


def test_bins_are_those_of_the_data(tmp_path: Path, opened: Opened) -> None:
    """Many close values have narrow bins, few values wide ones. A single value has a chart, too."""
    many = [call(0, 400, prompt_tokens=number) for number in range(3)]
    page = opened(written(tmp_path / "run", rollout("a", calls=tuple(many))))

    poll(page, ROWS + ".length")
    page.evaluate("buildSpeed()")
    assert ["Time to first token, 3 values", "Inter-token latency, 1,197 values"] == page.evaluate(FIGURES)[:2]
    width = "counts => widthOf([{ counts, drawn: counts.reduce((sum, [, count]) => sum + count, 0) }])"
    wide = "Array.from({ length: 100 }, (_, bin) => [bin, COUNT])"
    few, plenty, one = (
        page.evaluate(f"({width})({counts})") for counts in (wide.replace("COUNT", "1"), wide.replace("COUNT", "1000"), "[[7, 9]]")
    )
    assert few > 2 * plenty
    assert 1 == one
    assert 100 == page.evaluate(f"joined({wide.replace('COUNT', '1')}, 7).reduce((sum, bin) => sum + bin[2], 0)")


def test_answers_and_a_verified_task(tmp_path: Path, opened: Opened) -> None:
    """Accuracy and calibration are on the first screen. A task shows its reward once, and the output of its verifier.

    The verifier runs after the end of the rollout. The time axis includes it, but it is not part of the rollout's time.
    """
    judged = Score(1.0, {"judged": 1.0, "confidence": 0.75}, "right")
    verified = Verification(0.5, {"reward": 0.5}, 1, "2 passed, 1 failed", "test_port", BEGAN + 100_000_000, BEGAN + 350_000_000)
    rewarded = {"reward": Score(0.5, {"reward": 0.5}, "the first check that failed: test_port")}
    rollouts = [rollout("a", scores={"tsq": judged}, verification=verified), rollout("b", scores=rewarded, verification=verified)]
    page = opened(written(tmp_path / "run", *rollouts), "#a")

    poll(page, "document.querySelector('dialog .transcript')")
    cards = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#first .figure')].map(each => [each.firstChild.textContent, each.innerText]))"
    )
    accuracy, calibration = (measure(report_of(tmp_path / "run"), label) for label in ("accuracy", "calibration"))
    assert (1.0, 0.25) == (accuracy.value, calibration.value)
    assert "1.000" in cards["accuracy"].split() and phrases.interval(accuracy) in cards["accuracy"]
    assert ["0.250", "RMS", "error"] == cards["calibration"].split()[1:4]
    assert "The verifier's output (reward 0.5, the first check that failed: test_port)" in page.inner_text("dialog")
    assert "verifier" in page.evaluate("document.querySelector('.timeline').textContent")
    assert "of 350 ms" in page.evaluate("document.querySelector('.timeline svg').getAttribute('aria-label')")
    *shares, last = page.evaluate("[...document.querySelectorAll('.legend li')].map(item => item.textContent)")
    assert "verifier 250 ms, after the rollout" == last
    assert 99 <= sum(int(share.rpartition(", ")[2].removesuffix(" %")) for share in shares) <= 101
    page.keyboard.press("k")
    poll(page, "document.querySelector('dialog .transcript')?.textContent.includes('lamp, b?')")
    assert 1 == page.inner_text("dialog").count("test_port")
    assert "The verifier's output\n" in page.inner_text("dialog")
