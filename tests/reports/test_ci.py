"""Texts for CI stay below their limits, and stay valid for GitHub and GitLab with any content."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.gate.exit_status import VERDICTS
from pytest_agentbench.lib.foreign import block, one_line
from pytest_agentbench.records import Scale
from pytest_agentbench.reports import gate_phrases, openmetrics, phrases
from pytest_agentbench.reports.ci import MOST, command, commands, cut, size, system
from pytest_agentbench.reports.headline import headline
from pytest_agentbench.runs.results import Means
from pytest_agentbench.runs.run_file import Failure, OutcomeCounts, Plan, Run
from pytest_agentbench.stats.decisions import Suspect
from tests.amounts import amounts
from tests.made_runs import gate_result, mean, rule_result, run_of
from tests.openmetrics import parsed

TEXT = st.text(st.characters(codec="utf-8"), max_size=60)


def run_with(**changes: Any) -> Run:
    """Returns a run of one suite without rollouts."""
    base = run_of(id="20260101-000000", plan=Plan(9, 9, 0))
    suite = replace(base.suites["shop"], scores={"tsq": Means(mean(), None)}, rollouts={"ok": 9})
    return replace(base, suites={"shop": suite}, **changes)


def outcomes_of(*failures: Failure) -> OutcomeCounts:
    return OutcomeCounts(failures=failures)


def failure(number: int, outcome: str = "failed", message: str = "assert 0.1 >= 0.5", **properties: object) -> Failure:
    return Failure(f"t::test[{number}]", "/repository/scenarios/shop/test_shop.py", 7, outcome, message, properties)


FELL = (
    Suspect("shop-1", 1.0, 0.0, 0.04, claimed=True),
    Suspect("shop-2", 1.0, 0.2, 0.01, claimed=True),
    Suspect("shop-3", 1.0, 0.0, 0.05, claimed=False),
)
GATE = gate_result(
    "FAIL",
    rule_result("infra_error.rate <= 2%", "PASS", 0.0),
    rule_result("ttft.p95 <= 500ms", "INCONCLUSIVE", reason="the timings are of a saturated client"),
    rule_result("tsq.mean >= -0.03 vs baseline", "FAIL", -0.1, low=-0.15, high=-0.05, suspects=FELL),
)


def test_detecting_the_ci_system() -> None:
    """GitHub and GitLab are detected by their variables. The option overrides them."""
    assert "github" == system("auto", {"GITHUB_ACTIONS": "true"})
    assert "gitlab" == system("auto", {"GITLAB_CI": "true"})
    assert not system("auto", {"GITHUB_ACTIONS": "false", "CI": "true"})
    assert not system("off", {"GITHUB_ACTIONS": "true"})
    assert "gitlab" == system("gitlab", {"GITHUB_ACTIONS": "true"})


@given(TEXT, TEXT, TEXT)
def test_an_annotation_is_one_line_and_can_be_decoded(title: str, message: str, file: str) -> None:
    """An annotation with any content is one line, cannot start a second command, and is decoded to the original text."""
    line = command("error", title, message, (file, 3))

    assert "\n" not in line
    assert "\r" not in line
    found = re.fullmatch(r"::error file=([^,:]*),line=3,title=([^,:]*)::(.*)", line, re.DOTALL)
    assert found is not None
    assert (file, one_line(title), block(message)) == tuple(map(unquoted, found.groups()))


def unquoted(text: str) -> str:
    """Decodes a text like GitHub's runner: known characters, the percent sign last."""
    for letter in "\r\n:,%":
        text = text.replace(f"%{ord(letter):02X}", letter)
    return text


def test_the_most_important_first() -> None:
    """At most ten annotations are printed: the verdict, gate rules, worse scenarios, unmeasured tests as one, and failed tests by score."""
    tests = [failure(number, status="ok", tsq=number / 100) for number in range(30, 0, -1)]
    tests += [failure(number, "error", "infra_error: gone", status="infra_error") for number in range(40, 60)]
    run = run_with(verdict="FAIL", exit_status=1, gate=GATE, tests=outcomes_of(*tests))

    found = commands(run, Path("/repository"))

    suite, lost, last = "file=scenarios/shop/suite.yaml,line=1", gate_phrases.unmeasured_tests(20), len(tests) - 20 - 3
    more = f"title={phrases.more(last)}::{gate_phrases.annotations_left(last, run)}"
    assert MOST == len(found)
    assert [
        f"::error title=agentbench%3A FAIL::{headline(run)}",
        f"::error {suite},title=shop%3A tsq.mean >= -0.03 vs baseline::FAIL: -0.1 [-0.15, -0.05]",
        f"::warning {suite},title=shop%3A ttft.p95 <= 500ms::INCONCLUSIVE: nothing measured; the timings are of a saturated client",
        f"::warning title=shop tsq%3A shop-2::{gate_phrases.fall(FELL[1])}",
        f"::warning title=shop tsq%3A shop-1::{gate_phrases.fall(FELL[0])}",
        f"::error title=infra_error%3A {lost}::{lost}; {gate_phrases.first_of_tests(tests[30])}",
        *(f"::error file=scenarios/shop/test_shop.py,line=7,title=test[{number}]::assert 0.1 >= 0.5" for number in (1, 2, 3)),
        f"::error {more}",
    ] == found
    assert (["27"], ["20"]) == (amounts(phrases.more(last)), amounts(lost))


@given(st.lists(TEXT.map(lambda text: " ".join(text.split())), max_size=40), st.integers(1, 60), st.integers(0, 3000))
def test_a_truncated_text_is_short_enough(lines: list[str], times: int, limit: int) -> None:
    """A text is whole, or truncated at the end of a line with the number of left-out lines. It never exceeds the limit."""
    text = "\n".join([*lines * times, ""])

    found = cut(text, limit, "`report.md`")

    assert size(found) <= limit
    if size(text) <= limit:
        assert text == found
    elif found:
        kept, _, note = found.rpartition("\n**Truncated: ")
        assert text.startswith(kept.removesuffix("```\n"))
        assert re.match(r"\d+ of \d+ lines are left out", note)


def test_truncation_closes_code_blocks() -> None:
    """A truncated code block is closed before the sentence, which names the left-out sections."""
    text = "# One\n\n```text\n" + "line\n" * 1000 + "```\n## Two\n\n## Three\n"

    found = cut(text, 2500, "`report.md` of run 7")

    assert re.search(
        r"line\n```\n\n\*\*Truncated: \d+ of 1007 lines are left out, including Two; Three\. See `report\.md` of run 7\.\*\*\n\Z",
        found,
    )


@given(TEXT, TEXT, TEXT)
def test_metrics_are_open_metrics(suite: str, score: str, kind: str) -> None:
    """The text is valid OpenMetrics with any names of suites, scores and errors, and contains the names unchanged."""
    base = run_with()
    part = base.suites["shop"]
    run = replace(
        base,
        suites={suite: replace(part, scores={score: part.scores["tsq"]}, scales={score: Scale("lower", unit=kind)})},
        performance=replace(base.performance, failed_calls={kind: 3}),
    )

    text = openmetrics.text(run).decode()

    assert text.endswith("\n# EOF\n")
    families = {family.name: family for family in parsed(text)}
    (mean,) = families["agentbench_score_mean"].samples
    assert ({"suite": suite, "score": score, "better": "lower", "unit": kind}, 0.5) == (mean.labels, mean.value)
    assert [{"kind": kind}] == [sample.labels for sample in families["agentbench_failed_calls"].samples]


@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_verdict_as_a_metric(verdict: str) -> None:
    """Exactly one of the four verdicts is set."""
    families = parsed(openmetrics.text(run_with(verdict=verdict)).decode())

    (states,) = [family for family in families if family.name == "agentbench_verdict"]
    assert {name: float(name == verdict) for name in VERDICTS} == {
        sample.labels["agentbench_verdict"]: sample.value for sample in states.samples
    }
