"""Quarantined scenarios run and are reported, but no gate counts them."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.records import Json
from pytest_agentbench.reports import suite_phrases, terminal
from pytest_agentbench.reports.document import Code, Level, Note, say
from pytest_agentbench.reports.sections.gate import document_of
from pytest_agentbench.runs.run_file import read_run
from tests.findings import gate_of, measure, reasons, report_of, rules, said, tables, texts, under
from tests.project import BOTH_WAYS, FIND_THEN_ANSWER, WAYS, Project

WRONG: Json = {"match": {"turn": 0, "contains": "shop-1:"}, "tool_calls": [{"name": "order_item", "arguments": {"item": "x"}}]}
ONE_WRONG: list[Json] = [WRONG, *FIND_THEN_ANSWER]
ONE_FAILS: list[Json] = [{"match": {"contains": "shop-1:"}, "status": 500}, *FIND_THEN_ANSWER]
ENTRY: Json = {"scenario": "shop-1", "owner": "ada", "reason": "the label is disputed", "expires": "2999-12-31"}
HELD = "quarantined until 2999-12-31 (ada: the label is disputed): "
HALF = "tsq.mean >= -0.5 vs baseline"


@pytest.fixture
def held(project: Project) -> Project:
    """A suite of 20 scenarios with shop-1 in quarantine, and an earlier run without quarantine and without failures."""
    project.suite(scenarios=20)
    project.good_run("before")
    project.suite(scenarios=20, quarantine=[ENTRY])
    return project


@pytest.mark.slow
@BOTH_WAYS
def test_a_quarantined_scenario(held: Project, way: tuple[str, ...]) -> None:
    """A quarantined scenario runs, fails nothing with or without a gate, and is reported with owner and date."""
    held.backend(ONE_WRONG)

    result = held.run(*way, "scenarios/shop", "-x", "--junitxml=junit.xml")

    assert 0 == result.ret
    result.stdout.fnmatch_lines(["*== 19 passed, 1 quarantined in *"])
    first = report_of(held.directory, Level.SUMMARY)
    assert pytest.approx(0.95) == measure(first, "tsq").value
    assert [(1, 20)] == [(len(suite.quarantined), suite.dataset.size) for (suite,) in said(first, suite_phrases.quarantined_count)]
    if not way:
        result.stdout.fnmatch_lines(["scenarios/shop/test_shop.py .q.*"])
    assert 20 == len(held.rollouts)
    assert [{**ENTRY, "tests": 1, "passed": 0}] == held.run_json["suites"]["shop"]["quarantined"]
    report = report_of(held.directory)
    [entry] = read_run(held.directory).suites["shop"].quarantined
    row = (Code("shop-1", "scenario"), "ada", "2999-12-31", "the label is disputed", say(suite_phrases.quarantine_tests, entry))
    assert [(row,)] == [table.rows for table in tables(report, "scenario") if table.columns[1].title == "owner"]
    assert suite_phrases.MEANS_WITH_QUARANTINED in [block.content for block in report.blocks() if isinstance(block, Note)]
    (skipped,) = [each for case in ET.parse(held.root / "junit.xml").getroot().iter("testcase") for each in case.iter("skipped")]
    assert ("pytest.xfail", f"{HELD}assert 0.000 >= 0.5") == (skipped.get("type"), skipped.get("message"))


@WAYS
def test_the_gate_ignores_quarantined_scenarios(
    held: Project, way: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate ignores quarantined scenarios in run and baseline.

    `agentbench gate` gives the same result from the run, even if suite.yaml has changed.
    """
    held.backend(ONE_WRONG)

    result = held.run(*way, "scenarios/shop", "--agentbench-baseline=before", f"--agentbench-gate={HALF}")

    assert 0 == result.ret
    report = report_of(held.directory, Level.FULL)
    assert ["shop"] == [*gate_of(report).baselines]
    [(rule,)] = under(report, "rule")
    assert ("shop", HALF, "PASS", 0.0, -0.5, 19, (19, 19)) == (
        *(rule.suite, rule.rule, rule.verdict, rule.estimate, rule.threshold),
        *(rule.n, rule.trials),
    )
    assert "left out because of quarantine: shop-1" in texts(report)
    found = held.run_json["gate"]
    assert (0, []) == (found["tests_below"], found["rules"][0]["suspects"])

    held.suite(scenarios=20)
    monkeypatch.chdir(held.root)
    capsys.readouterr()
    assert 0 == main(["gate", "latest", "--baseline", "before", "--gate", HALF])
    told = read_run(held.directory)
    assert told.gate is not None
    assert [line.text for line in terminal.lines(document_of(told), Level.FULL)] == capsys.readouterr().out.splitlines()


@pytest.mark.slow
@WAYS
def test_a_quarantined_scenario_that_passes(project: Project, way: tuple[str, ...]) -> None:
    """The report counts how often a quarantined scenario passed, over all trials, so that its owner can end the quarantine."""
    project.suite(scenarios=2, quarantine=[ENTRY])

    project.run(*way, "scenarios/shop", "--agentbench-trials=2").assert_outcomes(passed=4)

    [(suite,)] = said(report_of(project.directory, Level.FULL), suite_phrases.quarantined)
    assert [("shop-1", "ada", "2999-12-31", 2, 2)] == [
        (each.scenario, each.owner, each.expires, each.tests, each.passed) for each in suite.quarantined
    ]


@pytest.mark.slow
def test_infra_errors_count(held: Project) -> None:
    """An infra_error of a quarantined scenario is an ERROR, and the gate is INCONCLUSIVE."""
    held.backend(ONE_FAILS)

    result = held.run("scenarios/shop", "--agentbench-baseline=before", f"--agentbench-gate={HALF}", "--agentbench-retries=0")

    result.assert_outcomes(passed=19, errors=1)
    report = report_of(held.directory, Level.FULL)
    assert [(0, 1)] == [(each.passed, each.tests) for (suite,) in said(report, suite_phrases.quarantined) for each in suite.quarantined]
    assert "INCONCLUSIVE" == gate_of(report).verdict
    assert any("1 of 20 rollouts ended as infra_error" in reason for reason in reasons(report))


@pytest.mark.slow
def test_other_assertions_and_means_count_it(project: Project) -> None:
    """Other assertions apply to quarantined scenarios, too, and thresholds of means include their scores."""
    project.suite(scenarios=2, quarantine=[ENTRY], test="def test_it(rollout):\n    assert 'order_item' not in rollout.tools\n")
    project.backend(ONE_WRONG)

    result = project.run("scenarios/shop", "--agentbench-threshold=tsq.mean=0.6")

    result.assert_outcomes(passed=1, failed=1)
    assert 1 == result.ret
    assert [("shop", "tsq.mean >= 0.6 of run", "FAIL", 0.5)] == rules(report_of(project.directory, Level.SUMMARY))


@pytest.mark.slow
def test_an_expired_entry(project: Project) -> None:
    """An expired quarantine is an error of the suite that names scenario, owner and date."""
    project.suite(quarantine=[{**ENTRY, "expires": "2020-01-31"}])

    result = project.run("scenarios/shop")

    assert 0 != result.ret
    result.stdout.fnmatch_lines(["*suite.yaml: quarantine: the entry of 'shop-1' expired on 2020-01-31; its owner, ada, *"])
