"""The first screen of a comment: the five answers for each verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_agentbench.gate.exit_status import VERDICTS
from pytest_agentbench.reports import comment_phrases, gate_phrases, phrases
from pytest_agentbench.reports.document import Fact, Finding, Level, plain
from pytest_agentbench.reports.sections.pull_request import Pages, section
from pytest_agentbench.runs.results import BaselineRun, Changed, QuarantineResult, ScenarioScores
from pytest_agentbench.runs.run_file import Run
from tests.findings import facts, report
from tests.made_runs import gate_result, rule_result
from tests.reports.test_ci import GATE, failure, outcomes_of, run_with

BASE = BaselineRun(
    "before", "feed", "2026-03-02T05:06:07+00:00", (Changed("packages", "pytest", "8", "9"), Changed("model", "name", "a", "b"))
)


NOWHERE = Pages()


def answers(run: Run, pages: Pages = NOWHERE) -> dict[str, list[Any]]:
    """Returns label -> contents of its facts."""
    found: dict[str, list[Any]] = {}
    for fact in section(run, pages).blocks:
        assert isinstance(fact, Fact)
        found.setdefault(fact.label or [*found][-1], []).append(fact.content)
    return found


def sentences(contents: list[Any]) -> list[str]:
    return [plain(phrases.words(each)) for each in contents]


def phrases_of(contents: list[Any]) -> list[Any]:
    return [each.phrase for each in contents if isinstance(each, Finding)]


def test_a_regression() -> None:
    """The failed rule is first, the baseline has its age, significant scenarios are before others, and the model before packages."""
    run = run_with(verdict="FAIL", exit_status=1, gate=replace(GATE, baselines={"shop": BASE}, compared=("shop",)))

    found = answers(run, Pages("https://git.example/shop"))

    assert [GATE.rules[2], GATE.rules[1]] == [each.values[0] for each in found["why"] if each.phrase == gate_phrases.result]
    assert ["run before, commit feed, 2 days before this run"] == sentences(found["baseline"])
    assert ["shop-2", "shop-1", "shop-3"] == [each.values[1].scenario for each in found["fell"]]
    (changes,) = [each.values[0] for each in found["setup"] if each.phrase == comment_phrases.differences]
    assert ["model", "packages"] == [each.part for each in changes]
    assert [comment_phrases.repeat, comment_phrases.promote, comment_phrases.report] == phrases_of(found["to do"])
    assert "repeat these scenarios: pytest -q -k '[shop-2] or [shop-1] or [shop-3]'" == sentences(found["to do"])[0]


def test_scenarios_below_a_threshold() -> None:
    """Without a baseline, the scenarios below their threshold fell, except for those in quarantine."""
    run = run_with(verdict="FAIL", exit_status=1)
    scores = tuple(
        ScenarioScores(name, {"tsq": value}) for name, value in (("a", 0.0), ("b", 0.25), ("held", 0.3), ("c", 0.5), ("d", None))
    )
    held = (QuarantineResult("held", "me", "flaky", "2030-01-01"),)
    run = replace(run, suites={"shop": replace(run.suites["shop"], scenarios=scores, quarantined=held)})

    found = answers(run)

    assert ["a tsq 0.000, threshold 0.5", "b tsq 0.250, threshold 0.5"] == sentences(found["fell"])
    assert [comment_phrases.NO_BASELINE] == found["baseline"]


def test_failed_tests_without_a_threshold() -> None:
    """If no scenario is below a threshold, the failed tests are named, at most five."""
    run = run_with(verdict="FAIL", exit_status=1, tests=outcomes_of(*map(failure, range(7))))

    found = answers(run)["fell"]

    assert [comment_phrases.failed_test] * 5 == phrases_of(found)[:5]
    assert [(2,)] == [each.values for each in found[5:]]


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_has_something_to_do(verdict: str) -> None:
    """Only a PASS and an imported run need nothing."""
    found = answers(run_with(verdict=verdict))

    assert ([comment_phrases.NOTHING] == found["to do"]) == (verdict in ("PASS", "IMPORTED"))


def test_what_an_undecided_gate_needs() -> None:
    """The sentences are those of the terminal: why, how many more trials and what they cost. The command runs that many."""
    reason = "there is no baseline; name one with --agentbench-baseline"
    without = rule_result("tsq.mean >= 0 vs baseline", "INCONCLUSIVE", reason=reason)
    undecided = replace(
        rule_result("tsq.mean >= 0.6", "INCONCLUSIVE", 0.7, low=0.5, high=0.9), threshold=0.6, n=3, trials=(6, 0), of="suite"
    )
    run = run_with(verdict="INCONCLUSIVE", command=("pytest", "--agentbench-trials=2"))
    suite = replace(run.suites["shop"], rollouts={"ok": 6}, scenarios=tuple(ScenarioScores(each, {"tsq": 0.7}) for each in "abc"))
    run = replace(run, suites={"shop": suite})

    first = answers(replace(run, gate=gate_result("INCONCLUSIVE", without)))["to do"]
    second = answers(replace(run, gate=(gate := gate_result("INCONCLUSIVE", undecided))))["to do"]

    assert [reason, "the report of run 20260101-000000 has all rollouts"] == sentences(first)
    page = report(replace(run, gate=gate), Level.FIRST_PAGE)
    on_terminal = sentences([fact.content for label in ("why", "needed") for fact in facts(page, label)])
    assert on_terminal == sentences(second)[:2]
    assert on_terminal[1].startswith("6 more trials of each scenario: 18 rollouts")
    assert "a new run with all 8 trials of each scenario: pytest --agentbench-trials=8" == sentences(second)[2]


def test_the_setup_of_the_baseline() -> None:
    """Equal setups, unknown ones and long lists of differences are told apart."""
    many = tuple(Changed("options", f"o{number}", 1, 2) for number in range(8))
    ends = []
    for setup in ((), None, many):
        run = run_with(gate=gate_result(baselines={"shop": replace(BASE, setup=setup)}))
        ends.append(sentences(answers(run)["setup"])[-1])

    equal, unknown, long = ends
    assert "the same as" in equal
    assert "unknown" in unknown
    assert "and 3 more" in long


def test_a_resumable_run() -> None:
    """A run that could not be measured, or was interrupted, is resumed."""
    for verdict in ("NOT MEASURED", "INTERRUPTED"):
        found = answers(run_with(verdict=verdict, resume="pytest --agentbench-resume=r"))
        assert comment_phrases.resume == phrases_of(found["to do"])[0]


def test_the_tests_to_repeat() -> None:
    """The command names all trials of the variant in which a scenario fell, and the suite if the run has several.

    A name that -k does not accept, or that has another form in the id of a test, makes it name no test.
    """
    suite = run_with().suites["shop"]
    scores = tuple(ScenarioScores(name, {"tsq": 0.0}) for name in ("shop-1", "shop-10"))
    arm = replace(suite, scenarios=scores, rollouts={"ok": 3}, variant="old")
    one = run_with(verdict="FAIL", exit_status=1)
    both = replace(one, suites={"shop": replace(suite, scenarios=scores[:1], rollouts={"ok": 1}), "shop-old": arm})

    def command(run: Run) -> str:
        return sentences(answers(run)["to do"])[0]

    assert "repeat these scenarios: pytest -q -k '[shop-1] or [shop-1-old] or [shop-1-old-t2] or [shop-10-old] or [shop-10-old-t2]'" == (
        command(both)
    )
    two = replace(one, suites={"shop": both.suites["shop"], "bank": both.suites["shop"]})
    assert "repeat these scenarios: pytest -q -k 'shop and ([shop-1]) or bank and ([shop-1])'" == command(two)
    for name in ("shop 1", "shöp-1"):
        odd = replace(suite, scenarios=(ScenarioScores(name, {"tsq": 0.0}),))
        assert "repeat the tests: pytest -q" == command(replace(one, suites={"shop": odd}))
