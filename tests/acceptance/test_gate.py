"""Gates: with a baseline the statistics decide the session, and a scenario below its threshold is only shown."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pytest_agentbench.cli import main
from pytest_agentbench.gate.baselines import default_baseline, read_evidence, write_baseline
from pytest_agentbench.gate.exit_status import CANNOT_MEASURE, CANNOT_TELL
from pytest_agentbench.records import Json
from pytest_agentbench.reports import gate_phrases, phrases, suite_phrases
from pytest_agentbench.reports.document import Document, Level, say
from tests.findings import facts, gate_of, reasons, report_of, rules, said, tables, under
from tests.project import FIND_THEN_ANSWER, WAYS, Project

pytestmark = pytest.mark.slow

MARGIN = "--agentbench-gate=tsq.mean >= -0.25 vs baseline"

#: Customers shop-1 and shop-2 get a wrong tool.
TWO_WRONG: list[Json] = [
    *({"match": {"turn": 0, "contains": f"shop-{n}:"}, "tool_calls": [{"name": "order_item", "arguments": {"item": "x"}}]} for n in (1, 2)),
    *FIND_THEN_ANSWER,
]
ALL_WRONG: list[Json] = [{"match": {"turn": 0}, "tool_calls": [{"name": "order_item", "arguments": {"item": "x"}}]}, {"text": "Done."}]
ONE_FAILS: list[Json] = [{"match": {"contains": "shop-1:"}, "status": 500}, *FIND_THEN_ANSWER]


@pytest.fixture
def gated(project: Project) -> Project:
    """A project with a suite of 20 scenarios, and a run of it without failures."""
    project.suite(scenarios=20)
    project.good_run("before")
    return project


def gate(project: Project) -> Json:
    found: Json = project.run_json["gate"]
    return found


def first_page(project: Project) -> Document:
    """Returns the terminal's first page about the last run."""
    return report_of(project.directory, Level.SUMMARY)


@WAYS
def test_the_gate_decides(gated: Project, way: tuple[str, ...]) -> None:
    """Two of twenty scenarios fell below their threshold. They are counted as "below", and the session passes because of its margin."""
    gated.backend(TWO_WRONG)

    result = gated.run(*way, "scenarios/shop", "--agentbench-baseline=before", "--agentbench-gate=tsq.mean >= -0.5 vs baseline")

    assert 0 == result.ret
    result.stdout.fnmatch_lines(["*== 18 passed, 2 below in *"])
    if not way:
        result.stdout.fnmatch_lines(["scenarios/shop/test_shop.py .bb.*"])
    found = gate(gated)
    assert ("PASS", 2, ["shop"], True) == (found["verdict"], found["tests_below"], found["compared"], found["decides"])
    assert ("PASS", 0) == (gated.run_json["verdict"], gated.run_json["exit_status"])
    before = json.loads((gated.root / "reports" / "before" / "run.json").read_text())["id"]
    for level in (Level.SUMMARY, Level.VERBOSE):
        report = report_of(gated.directory, level)
        told = gate_of(report)
        assert ("PASS", 2, [before]) == (told.verdict, told.tests_below, [base.run for base in told.baselines.values()])
        assert [("shop", "tsq.mean >= -0.5 vs baseline", "PASS", -0.1)] == rules(report)


#: A scorer of the suite, and tests of both scores, each alone and together.
POLITE = """
from pytest_agentbench import scorer


@scorer(range=(0, 1))
def polite(scenario, rollout):
    return float("found" in rollout.answer)
"""
BOTH_SCORES = """
def test_tools(rollout, thresholds):
    assert rollout.score("tsq") >= thresholds["tsq"]


def test_polite(rollout, thresholds):
    assert rollout.score("polite") >= thresholds["polite"]


def test_both(rollout, thresholds):
    assert rollout.score("tsq") >= thresholds["tsq"]
    assert rollout.score("polite") >= thresholds["polite"]
"""


@WAYS
def test_a_comparison_replaces_only_its_own_threshold(project: Project, way: tuple[str, ...]) -> None:
    """A rule about one score leaves the thresholds of other scores to their tests: in the exit status, JUnit and the comment."""
    project.suite(test=BOTH_SCORES, scorers=["tsq", "./scorers.py:polite"], thresholds={"tsq": 0.5, "polite": 1})
    project.write("scenarios/shop/scorers.py", POLITE)
    project.good_run("before")
    project.backend([*TWO_WRONG[:1], FIND_THEN_ANSWER[0], {"text": "Well."}])  # shop-1: wrong tool; every answer is impolite

    rule = "--agentbench-gate=tsq.mean >= -1 vs baseline"
    result = project.run(*way, "scenarios/shop", "--agentbench-baseline=before", rule, "--junitxml=junit.xml")

    assert 1 == result.ret
    assert "FAIL" == project.run_json["verdict"]
    assert ("PASS", 1) == (gate(project)["verdict"], gate(project)["tests_below"])  # only test_tools[shop-1]
    result.stdout.fnmatch_lines(["*== 6 failed, 2 passed, 1 below in *"])
    tests = ET.parse(project.root / "junit.xml").getroot().find("testsuite")
    assert tests is not None
    assert ("6", "1") == (tests.get("failures"), tests.get("skipped"))


def test_a_regression(gated: Project) -> None:
    """If every scenario got worse, the exit status is 1, although no test counts as failed.

    With one trial each, no scenario is claimed to be worse.
    """
    gated.backend(ALL_WRONG)

    result = gated.run("scenarios/shop", "--agentbench-baseline=before")

    assert 1 == result.ret
    result.stdout.fnmatch_lines(["*== 20 below in *"])
    for level in (Level.SUMMARY, Level.VERBOSE):
        report = report_of(gated.directory, level)
        assert ("FAIL", 20) == (gate_of(report).verdict, gate_of(report).tests_below)
        assert [("shop", "tsq.mean >= -0.05 vs baseline", "FAIL", -1.0)] == rules(report)
        assert ("shop-0", 1.0, 0.0) == next((each.scenario, each.base, each.new) for _, each, _ in said(report, gate_phrases.change))
        assert [] == said(report, gate_phrases.claim)
        assert gate_phrases.NO_CLAIM in [fact.content for fact in facts(report, "")]
    assert "FAIL" == gated.run_json["verdict"]


@pytest.mark.parametrize(("option", "status"), [((), 0), (("--agentbench-inconclusive=fail",), CANNOT_TELL)])
def test_inconclusive(gated: Project, option: tuple[str, ...], status: int) -> None:
    """Twenty rollouts cannot rule out a drop of 0.05.

    The start of the session warns of that, and the exit status follows --agentbench-inconclusive.
    """
    result = gated.run("scenarios/shop", "--agentbench-baseline=before", *option)

    assert status == result.ret
    result.stdout.fnmatch_lines(
        [
            "agentbench: shop: the margin of `tsq.mean >= -0.05 vs baseline` is too small for 20 *=4 for a new baseline*",
        ]
    )
    assert "INCONCLUSIVE" == gate_of(first_page(gated)).verdict
    [reason] = reasons(first_page(gated))
    assert reason.startswith("no score differs in 20 rollouts, which only rules out drops above 0.161,")


def test_infra_errors(gated: Project) -> None:
    """A rollout that cannot be measured is an ERROR and exit status 6, whatever the other scenarios' scores are."""
    gated.backend(ONE_FAILS)

    result = gated.run("scenarios/shop", "--agentbench-baseline=before", MARGIN, "--agentbench-retries=0")

    result.assert_outcomes(passed=19, errors=1)
    assert CANNOT_MEASURE == result.ret
    assert "INCONCLUSIVE" == gate_of(first_page(gated)).verdict
    assert "1 of 20 rollouts ended as infra_error, more than 2 %" in reasons(first_page(gated))
    allowed = gated.run("scenarios/shop", "--agentbench-baseline=before", MARGIN, "--agentbench-gate=infra_error.rate <= 10%")
    assert CANNOT_MEASURE == allowed.ret
    assert "PASS" == gate(gated)["verdict"]


def test_lost_rollouts(gated: Project) -> None:
    """A session that ran out of time is not a PASS."""
    gated.backend(FIND_THEN_ANSWER, ttft_ms=60)

    result = gated.run(
        "scenarios/shop", "--agentbench-baseline=before", MARGIN, "--agentbench-time-limit=150ms", "--agentbench-concurrency=1"
    )

    assert CANNOT_MEASURE == result.ret
    assert "INCONCLUSIVE" == gate_of(first_page(gated)).verdict
    assert any(" of 20 planned rollouts were not run" in reason for reason in reasons(first_page(gated)))


def test_a_dead_backend(gated: Project) -> None:
    """A backend that dies is not a regression: the gate is INCONCLUSIVE."""
    gated.backend([{"exit": True}])

    result = gated.run("scenarios/shop", "--agentbench-baseline=before", "--agentbench-retries=0")

    assert CANNOT_MEASURE == result.ret
    assert "INCONCLUSIVE" == gate(gated)["verdict"]


def test_tests_decide(gated: Project) -> None:
    """With --agentbench-verdict=tests, tests below their threshold fail as usual, and the gate's verdict is only shown."""
    gated.backend(TWO_WRONG)
    options = ("scenarios/shop", "--agentbench-baseline=before", "--agentbench-verdict=tests")

    result = gated.run(*options, "--agentbench-gate=tsq.mean >= -0.5 vs baseline")

    result.assert_outcomes(passed=18, failed=2)
    assert 1 == result.ret
    assert ("PASS", False) == (gate_of(first_page(gated)).verdict, gate_of(first_page(gated)).decides)
    both = [{"name": name, "arguments": {"item": "lamp"}} for name in ("find_item", "order_item")]
    gated.backend([{"match": {"turn": 0}, "tool_calls": both}, {"text": "Done."}])  # TSQ 0.67: no test is below its threshold
    assert 0 == gated.run(*options, "--agentbench-gate=tsq.mean >= 0.95").ret
    assert "FAIL" == gate(gated)["verdict"]


@WAYS
def test_junit_lf_and_x(gated: Project, way: tuple[str, ...]) -> None:
    """For JUnit, --lf and -x, a scenario below its threshold is an expected failure with its reason, not a failed test."""
    gated.backend(TWO_WRONG)
    options = (*way, "scenarios/shop", "--agentbench-baseline=before", "--agentbench-gate=tsq.mean >= -0.5 vs baseline", "-x")

    result = gated.run(*options, "--junitxml=junit.xml")

    assert 0 == result.ret
    assert len(gated.rollouts) == 20
    cases = ET.parse(gated.root / "junit.xml").getroot().iter("testcase")
    skipped = {case.get("name"): found for case in cases if (found := case.find("skipped")) is not None}
    assert {"test_tools[shop-1]", "test_tools[shop-2]"} == set(skipped)
    found = skipped["test_tools[shop-1]"]
    assert "pytest.xfail" == found.get("type")
    assert "below its threshold, the gate decides: assert 0.000 >= 0.5" == found.get("message")
    properties = [each.get("name") for each in ET.parse(gated.root / "junit.xml").getroot().iter("property")]
    assert 20 == properties.count("tsq")
    again = gated.run(*options, "--lf", "--co", "-q")
    assert "20 tests collected" in again.stdout.str()


OTHER_ASSERTIONS = """
def test_tools(rollout, thresholds):
    assert rollout.score("tsq") >= thresholds["tsq"]

def test_never_orders(rollout):
    assert "order_item" not in rollout.tools

def test_mistaken(rollout, thresholds):
    assert thresholds["tqs"] <= rollout.score("tsq")
"""


@WAYS
def test_other_failures_are_failures(gated: Project, way: tuple[str, ...]) -> None:
    """A failed test that reads no `thresholds`, and a broken test, both fail the session although the gate passes."""
    gated.write("scenarios/shop/test_shop.py", OTHER_ASSERTIONS)
    gated.backend(TWO_WRONG)

    result = gated.run(*way, "scenarios/shop", "--agentbench-baseline=before", "--agentbench-gate=tsq.mean >= -0.5 vs baseline")

    assert 1 == result.ret
    result.stdout.fnmatch_lines(["*== 22 failed, 36 passed, 2 below in *"])
    assert "PASS" == gate(gated)["verdict"]


def test_a_gate_in_the_suite(gated: Project) -> None:
    """Rules in suite.yaml use the promoted baseline. Without one they are inconclusive, and the tests decide."""
    gated.suite(scenarios=20, gate=["tsq.mean >= -0.5 vs baseline", "infra_error.rate <= 2%"])
    gated.backend(TWO_WRONG)

    without = gated.run("scenarios/shop")

    without.assert_outcomes(passed=18, failed=2)
    assert ("INCONCLUSIVE", {}) == (gate_of(first_page(gated)).verdict, gate_of(first_page(gated)).baselines)
    assert any("there is no baseline; name one with --agentbench-baseline" in reason for reason in reasons(first_page(gated)))
    write_baseline(read_evidence(gated.root / "reports" / "before"), "shop", default_baseline("shop", gated.root / "reports"))
    result = gated.run("scenarios/shop")
    assert 0 == result.ret
    assert "PASS" == gate_of(first_page(gated)).verdict
    result.stdout.fnmatch_lines(["*== 18 passed, 2 below in *"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--agentbench-gate=tqs >= 0.5",), "*gate rule 'tqs >= 0.5': no metric 'tqs' (did you mean 'tsq.mean'?); known: *"),
        (("--agentbench-baseline=nightly",), "*no run 'nightly'; known: *before*"),
        (("--agentbench-inconclusive=maybe",), "*--agentbench-inconclusive maybe: must be pass or fail*"),
        (("--agentbench-verdict=me",), "*--agentbench-verdict me: must be gate or tests*"),
    ],
)
def test_usage_errors(gated: Project, options: tuple[str, ...], sentence: str) -> None:
    """An invalid gate option is exit status 4, before anything starts."""
    result = gated.run("scenarios/shop", *options)

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines([sentence])


def test_a_wrong_rule_in_a_suite(project: Project) -> None:
    """A wrong rule in suite.yaml is a collection error of that suite, in one sentence."""
    project.suite(gate=["tsq.mean <= 0.5"])

    result = project.run("scenarios/shop")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stdout.fnmatch_lines(["*suite.yaml: gate rule 'tsq.mean <= 0.5': higher tsq is better, so use >=*"])


def test_variants(project: Project) -> None:
    """A variant is compared with the same variant of the baseline. If the baseline lacks it, its tests decide."""
    project.suite(scenarios=20, variants={"hot": {"agent": {"temperature": 1.0}}})
    project.run("scenarios/shop")
    project.directory.rename(project.root / "reports" / "before")
    project.backend(TWO_WRONG)

    result = project.run("scenarios/shop", "--agentbench-variants=all", "--agentbench-baseline=before")

    result.stdout.fnmatch_lines(["*== 2 failed, 36 passed, 2 below in *"])
    rules = {rule["suite"]: (rule["n"], rule["reason"]) for rule in gate(project)["rules"]}
    assert {"shop": (20, "")} == rules


def test_quiet(gated: Project) -> None:
    """-q prints one line with the verdict and the rule that decided it, then the line with the report's path."""
    result = gated.run("-q", "scenarios/shop", "--agentbench-baseline=before")

    line = next(line for line in result.outlines if line.startswith("agentbench: "))
    assert line.startswith("agentbench: INCONCLUSIVE: shop tsq.mean +0.000 ")
    assert ", required >= -0.05 vs baseline" in line
    assert ["INCONCLUSIVE"] == re.findall("INCONCLUSIVE", line)
    assert ["agentbench: open"] == [line[:16] for line in result.outlines if line.startswith("agentbench: ")][1:]


BANKING = Path(__file__).parents[2] / "scenarios" / "banking"


@pytest.fixture
def banking(project: Project) -> Project:
    """The suite banking on an engine with a given error rate."""
    for file in BANKING.iterdir():
        if file.suffix in (".json", ".yaml", ".py"):
            project.write(f"scenarios/banking/{file.name}", file.read_text(encoding="utf-8"))
    project.write("backends/embedded.yaml", json.dumps({"kind": "embedded", "policy": "careless", "error_rate": 0.05}))
    limits = ("--agentbench-threshold=tsq.mean=0", "--agentbench-threshold=tsq=0.5")
    project.run("scenarios/banking", "-q", *limits)
    write_baseline(read_evidence(project.directory), "banking", default_baseline("banking", project.root / "reports"))
    return project


def test_banking_against_itself_and_against_worse(banking: Project) -> None:
    """An engine with the same error rate passes a margin that 100 scenarios can resolve. One that errs in 9 of 10 calls fails it."""
    limits = ("--agentbench-threshold=tsq.mean=0", "--agentbench-threshold=tsq=0.5")
    options = ("scenarios/banking", "-q", *limits, "--agentbench-gate=tsq.mean >= -0.1 vs baseline")

    same = banking.run(*options, "--agentbench-set=backend.seed=1")
    found = gate(banking)["rules"][0]
    worse = banking.run(*options, "--agentbench-set=backend.error_rate=0.9")

    assert (0, "PASS", 100) == (same.ret, found["verdict"], found["n"])
    assert found["low"] < 0 < found["high"]
    assert (1, "FAIL") == (worse.ret, gate(banking)["rules"][0]["verdict"])
    assert ["the backend has changed since the baseline"] == gate(banking)["rules"][0]["notes"]
    assert default_baseline("banking", banking.root / "reports").stat().st_size < 200_000


def test_reports_and_gate_have_one_interval(project: Project) -> None:
    """For a rule about the population, clustered scenarios have the same clustered interval in the gate, in run.json and in every
    report.
    """
    entries = [{**project.entry(f"shop-{n}"), "cluster": f"template {n % 12}"} for n in range(24)]
    project.suite(scenarios=24, gate=["tsq.mean >= 0.5 of population"])
    project.write("scenarios/shop/data.json", json.dumps(entries))
    wrong = [{"match": {"turn": 0, "contains": f"shop-{n}:"}, "text": "No."} for n in (1, 2, 13, 14)]
    project.backend([*wrong, *FIND_THEN_ANSWER])

    result = project.run("-v", "scenarios/shop", "--agentbench-ci=gitlab")
    assert result.ret == project.run_json["exit_status"]
    (rule,), mean = gate(project)["rules"], project.run_json["suites"]["shop"]["scores"]["tsq"]["mean"]
    interval = f"{mean['value']:.3f} [{mean['low']:.3f}, {mean['high']:.3f}]"

    assert ("clustered adjusted t", 12) == (mean["method"], mean["clusters"])
    assert tuple(rule[name] for name in ("low", "high", "method")) == pytest.approx(tuple(mean[name] for name in ("low", "high", "method")))
    [(told,)] = said(report_of(project.directory, Level.FULL), suite_phrases.score)
    assert ("population", 24, 12, mean["low"], mean["high"]) == (told.of, told.scenarios, told.clusters, told.low, told.high)
    for text in (result.stdout.str(), *((project.directory / report).read_text() for report in ("report.md", "comment.md"))):
        assert interval in text
    assert f"{mean['low']}" in (project.directory / "metrics.txt").read_text()


def test_pass_rates(gated: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A rule on `pass^2` with two wrong scenarios of twenty is INCONCLUSIVE.

    The report has the rates, and `agentbench gate` gives the same verdict.
    """
    gated.backend(TWO_WRONG)

    rule = "pass^2 >= 0.95"
    gated.run("scenarios/shop", "--agentbench-trials=2", f"--agentbench-gate={rule}", "--agentbench-gate=pass@2 >= 0.4")

    report = report_of(gated.directory, Level.VERBOSE)
    [(passes, scale)] = said(report, suite_phrases.passes)
    assert ("tsq", ">=", 0.5) == (passes.score, scale.sign, passes.floor)
    assert [0.9] * 3 == [each.value for each in (passes.pass_all[0], passes.pass_at[-1], passes.pass_all[-1])]
    assert [2, 2] == [passes.pass_at[-1].k, passes.pass_all[-1].k]
    assert [("shop", rule, "INCONCLUSIVE", 0.9), ("shop", "pass@2 >= 0.4", "PASS", 0.9)] == rules(report)
    assert [(0.95, 20, (40, 0)), (0.4, 20, (40, 0))] == [(each.threshold, each.n, each.trials) for (each,) in under(report, "rule")]
    found = [(each.scenario, each.passed, each.trials, f"{each.low:.3f}", f"{each.high:.3f}") for each in passes.scenarios]
    assert [(name, 0, 2, "0.000", "0.842") for name in ("shop-1", "shop-2")] == found
    cells = [values for row in tables(report, "scenario")[0].rows for values in (row[1], row[2])]
    assert cells == [
        cell for each in passes.scenarios for cell in (say(suite_phrases.solved, 0, 2), say(phrases.ends, each.low, each.high))
    ]
    assert [(18, True)] == [(each.always, left <= 0) for each, left in said(report, suite_phrases.always_passed)]
    assert [("passes", "suite")] * 2 == [(each["kind"], each["of"]) for each in gate(gated)["rules"]]
    monkeypatch.chdir(gated.root)
    assert 0 == main(["gate", "latest", "--gate", rule])
    assert re.search(r"^rule +INCONCLUSIVE: .* 0\.900 \[.*, required >= 0\.95", capsys.readouterr().out, re.MULTILINE)


def test_a_pass_rate_without_a_floor(project: Project) -> None:
    """A rule about pass rates without a threshold is a usage error in one sentence. A threshold on the command line is sufficient."""
    project.suite(thresholds={}, test="def test_ends(rollout):\n    assert rollout.status\n")
    rule = "--agentbench-gate=pass^1 >= 0.1"

    refused = project.run("scenarios/shop", rule)

    assert pytest.ExitCode.USAGE_ERROR == refused.ret
    refused.stderr.fnmatch_lines(["ERROR: gate rule 'pass^1 >= 0.1': pass rates need a threshold for tsq; *"])
    assert 0 == project.run("scenarios/shop", rule, "--agentbench-threshold=tsq=0.5").ret
    project.suite(thresholds={}, gate=["pass^1 >= 0.1"])
    wrong = project.run("scenarios/shop")
    assert wrong.ret
    wrong.stdout.fnmatch_lines(["*suite.yaml: gate rule 'pass^1 >= 0.1': pass rates need a threshold for tsq; *"])


def test_which_scenarios_got_worse(project: Project) -> None:
    """With five trials in both runs, the scenarios that got worse are named on the first page and in the report."""
    project.suite(scenarios=8)
    assert 0 == project.run("scenarios/shop", "--agentbench-trials=5").ret
    before = project.directory.name
    project.backend(TWO_WRONG)

    project.run("scenarios/shop", "--agentbench-trials=5", f"--agentbench-baseline={before}")

    for level in (Level.SUMMARY, Level.VERBOSE):
        report = report_of(project.directory, level)
        claims = [(each.scenario, each.base, each.new, f"{each.p:.3g}") for _, each, _ in said(report, gate_phrases.claim)]
        assert [(name, 1.0, 0.0, "0.00397") for name in ("shop-1", "shop-2")] == claims
        assert not facts(report, "lower")
    assert 40 == sum(project.run_json["suites"]["shop"]["rollouts"].values())
