"""The comment on a pull or merge request."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.reports import comment, gate_phrases, markdown
from pytest_agentbench.reports.ci import cut, size
from pytest_agentbench.reports.document import Finding, Level
from pytest_agentbench.reports.sections import document
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.run_file import Run
from tests.findings import facts, report, said
from tests.made_runs import run_of
from tests.reports.test_ci import GATE, TEXT, failure, outcomes_of, run_with


def lines(run: Run) -> list[str]:
    return [*comment.lines(RunView(run, Path("nowhere")), {})]


@given(st.lists(TEXT, min_size=1, max_size=300))
def test_a_comment_is_short_and_harmless(messages: list[str]) -> None:
    """A comment stays short enough even if much failed. Texts of tests and models stay inside code."""
    tests = [failure(number, message=f"@everyone {message} <img src=x> ![](http://x) " * 5) for number, message in enumerate(messages)]
    text = "\n".join(lines(run_with(tests=outcomes_of(*tests))))

    assert size(cut(text, comment.LIMIT, "")) <= comment.LIMIT
    for line in re.sub(r"`[^`\n]*`", "", text).splitlines():
        assert "@everyone" not in line
        assert "<img" not in line


def test_a_comment_is_one_screen_and_a_folded_summary() -> None:
    """Below the headline are the five answers, and then the summary, which is folded."""
    run = run_with(verdict="FAIL", gate=GATE)
    summary = document(RunView(run, Path("nowhere")))

    found = lines(run)
    start = found.index("<details><summary>Details</summary>")
    assert found[0].startswith("## agentbench: FAIL")
    assert ["why", "baseline", "fell", "setup", "to do"] == re.findall(r"^- \*\*(.*?)\*\*", "\n".join(found[:start]), re.MULTILINE)
    assert [*markdown.lines(summary, Level.SUMMARY, depth=2)][1:] == found[start + 1 : -2]
    assert "</details>" == found[-1]
    assert start < 25


def test_the_marker_of_a_comment(tmp_path: Path) -> None:
    """The first line is equal for equal suites and backend, cannot end the HTML comment early, and is invisible."""
    run = run_with()
    odd = run_with(backend=replace(run_of().backend, name="http://127.0.0.1:8000/v1 --> $(rm)"))

    assert "<!-- agentbench: shop on embedded -->" == comment.marker(run)
    assert "<!-- agentbench: shop on http-127.0.0.1-8000-v1 - -rm -->" == comment.marker(odd)
    assert [comment.marker(run), *lines(run), ""] == comment.write(run, tmp_path, {}).read_text(encoding="utf-8").split("\n")


def test_a_long_comment_is_truncated(tmp_path: Path) -> None:
    """A comment that is too long is truncated at the end of a line, and says which file has the rest."""
    many = {f"suite {number}": run_with().suites["shop"] for number in range(1000)}

    text = comment.write(replace(run_with(), suites=many), tmp_path).read_text(encoding="utf-8")

    assert size(text) <= comment.LIMIT
    assert "`report.md` of run 20260101-000000" in text.splitlines()[-1]
    assert "</details>" in text.splitlines()[-5:]  # so that the note is not folded


def test_a_gate() -> None:
    """Rules have their verdicts, failed ones first. Scenarios that may have got worse follow."""
    shown = report(run_with(verdict="FAIL", gate=GATE), Level.SUMMARY)

    assert [("FAIL", -0.1, -0.15, -0.05), ("INCONCLUSIVE", None, None, None), ("PASS", 0.0, None, None)] == [
        (rule.verdict, rule.estimate, rule.low, rule.high) for (rule,) in rules(run_with(verdict="FAIL", gate=GATE))
    ]
    assert "the timings are of a saturated client" in [gate_phrases.reason(rule) for (rule,) in said(shown, gate_phrases.reason)]
    assert [("shop-2", 1.0, 0.2, 0.01), ("shop-1", 1.0, 0.0, 0.04)] == [
        (suspect.scenario, suspect.base, suspect.new, suspect.p) for _, suspect, _ in said(shown, gate_phrases.claim)
    ]


def rules(run: Run) -> list[tuple[Any, ...]]:
    """Returns the values of the findings under `rule`."""
    return [each.content.values for each in facts(report(run, Level.SUMMARY), "rule") if isinstance(each.content, Finding)]
