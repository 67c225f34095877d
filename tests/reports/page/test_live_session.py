"""`agentbench watch` with a real session, a real server and a real Chromium."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.lib.process import child_environment
from tests.project import PYTEST, Project
from tests.reports.page.conftest import poll

pytestmark = pytest.mark.slow

SCENARIOS = 12

#: Links of the report: their text, and the scenario that they open.
LINKED = "[...document.querySelectorAll('.report a')].map(each => [each.textContent, rowAt(each.hash.slice(1))?.scenario])"


def started(root: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(words, cwd=root, env=child_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_session_is_watched(project: Project, chromium: Any) -> None:
    """New rollouts appear without a reload.

    Filter, scroll position and open rollout stay. The page shows the end, and Ctrl-C stops the server.
    """
    project.backend(ttft_ms=300)
    project.suite(scenarios=SCENARIOS)
    session = started(project.root, *PYTEST, "-q", "--agentbench-concurrency=1")
    while not [*project.root.glob("reports/*/rollouts.jsonl")]:
        assert session.poll() is None
        time.sleep(0.1)
    watch = started(project.root, sys.executable, "-m", "pytest_agentbench.cli", "watch")
    assert watch.stdout is not None
    url = watch.stdout.readline().split()[-1]
    context = chromium.new_context(viewport={"width": 1000, "height": 500})
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{url}#shop-0")

    poll(page, "document.querySelector('dialog')?.textContent.includes('Here is what was found')")
    assert 2 == page.locator("dialog .exchange").count()
    page.keyboard.press("Escape")
    page.fill("#filter-text", "shop-")
    page.select_option("#filter-tool", "find_item")
    page.evaluate("location.hash = 'shop-0'")
    poll(page, "document.querySelector('dialog .transcript')")
    page.evaluate("dialog.scrollTop = 40; dialog.firstElementChild.dataset.same = 'yes'; scrollTo({ top: 200, behavior: 'instant' })")
    before = page.evaluate("page.rows.length")
    assert before < SCENARIOS
    assert ("verdict open", True) == (page.get_attribute("#first h1", "class"), "The run is in progress." in page.inner_text("#live"))
    assert {"tsq", "rollouts", "LLM calls"} <= {*page.locator("#first .figure h2").all_inner_texts()}
    assert 0 == page.locator("details.report").count()
    poll(page, f"page.rows.length > {before}")
    state = "[dialog.open, dialog.scrollTop, dialog.firstElementChild.dataset.same, document.getElementById('filter-tool').value]"
    assert [True, 40, "yes", "find_item"] == page.evaluate(state)
    assert "shop-" == page.input_value("#filter-text")
    assert 200 <= page.evaluate("scrollY") < 300  # the browser scrolls further if lines above have grown

    poll(page, "document.getElementById('live').textContent.includes('The run has ended: PASS.')", tries=1200)
    assert f"{SCENARIOS} rollouts" in page.inner_text("#live")
    assert "PASS" in page.inner_text("h1.verdict")
    linked = page.evaluate(LINKED)
    assert len(linked) >= SCENARIOS
    assert [] == [(name, scenario) for name, scenario in linked if name not in (scenario, f"shop[{scenario}]")]
    assert [True, 40, "yes", "find_item"] == page.evaluate(state)
    session.communicate(timeout=60)
    context.close()
    watch.send_signal(signal.SIGINT)
    output, _ = watch.communicate(timeout=60)
    assert (0, "no longer watched") == (watch.returncode, output.splitlines()[-1])
    assert [] == said
    assert [] == [each for each in asked if not each.startswith(url)]
