"""The section "What to look at first"."""

from __future__ import annotations

from dataclasses import replace

from pytest_agentbench.metrics.performance import PartOfTime
from pytest_agentbench.records import Rollout, Verification
from pytest_agentbench.reports import gate_phrases, phrases, serving_phrases, suite_phrases
from pytest_agentbench.reports.document import Bullets, Finding, Level, plain
from pytest_agentbench.reports.sections.first_look import GREAT, MOST
from pytest_agentbench.runs.run_file import Failure, OutcomeCounts, Run
from tests.findings import part, report
from tests.made_runs import gate_result, rule_result, run_of
from tests.reports.sections.shop import rollout


def first_look(run: Run) -> list[Finding]:
    """Returns the findings of the section."""
    section = part(report(run, Level.SUMMARY), "What to look at first")
    if section is None:
        return []
    [bullets] = section.blocks
    assert isinstance(bullets, Bullets)
    assert all(isinstance(each, Finding) for each in bullets.items)
    return [each for each in bullets.items if isinstance(each, Finding)]


def quiet(*rollouts: Rollout) -> Run:
    """Returns a run without noteworthy timings."""
    run = run_of(*rollouts)
    return replace(run, stopwatch=replace(run.stopwatch, verdict="ok"))


def test_the_order_of_findings() -> None:
    """Rules that did not pass come first, then mistakes, scenarios that passed only in some trials, and timings."""
    rule = rule_result("tsq.mean >= 0.8", "FAIL", 0.5, threshold=0.8)
    trials = [rollout("b", "find", tsq=1.0), rollout("b", "order", trial=2)]
    run = run_of(rollout("a", status="agent_error", reason="KeyError"), *trials, gate=gate_result("FAIL", rule))
    suite = run.suites["shop"]

    assert [
        (gate_phrases.result, (rule,)),
        (suite_phrases.ended_badly, (suite,)),
        (suite_phrases.faulty, (suite.triage,)),
        (suite_phrases.most_confused, (suite.triage,)),
        (suite_phrases.worst_tool, (suite.triage,)),
        (suite_phrases.flips, (suite.passes,)),
        (serving_phrases.timing_of_run, (run.stopwatch,)),
    ] == [(each.phrase, each.values) for each in first_look(run)]
    assert suite.triage is not None
    assert (3, 2, {"agent error": 1, "wrong tool": 1}) == (
        *(suite.triage.rollouts, suite.triage.faulty),
        {each.kind: each.rollouts for each in suite.triage.kinds},
    )


def test_failed_tests_have_a_line_for_each_function() -> None:
    """A failed test about any score, or about none, has a line: its function, the number of failures, the first case and its message."""
    failures = [Failure(f"t.py::test_polite[{name}]", "t.py", 1, "failed", f"assert {name}", {}, f"shop[{name}]") for name in "bc"]
    rules = Failure("t.py::test_rules", "t.py", 9, "failed", "assert 1 == 2", {})
    tests = OutcomeCounts(passed=1, failed=3, errors=0, skipped=0, failures=(*failures, rules))

    found = first_look(replace(quiet(rollout("b", "find", tsq=1.0)), tests=tests))

    assert [(phrases.failures_of_test, (tuple(failures),)), (phrases.failures_of_test, ((rules,),))] == [
        (each.phrase, tuple(map(tuple, each.values))) for each in found
    ]
    assert ["test_polite failed 2 times, first for b: assert b", "test_rules failed: assert 1 == 2"] == [
        plain(each.words) for each in found
    ]


def test_ten_at_most() -> None:
    """Rules are among the ten lines even if much went wrong."""
    rules = [rule_result(f"tsq.mean >= 0.{digit}", "FAIL", 0.0) for digit in range(1, 10)]
    found = first_look(run_of(rollout("a", "order"), gate=gate_result("FAIL", *rules, *rules)))

    assert [gate_phrases.result] * MOST == [each.phrase for each in found]


def test_passed_rules_have_no_line() -> None:
    """Passed rules have no line, nor has a run without problems."""
    run = replace(quiet(rollout("a", "find", tsq=1.0)), gate=gate_result("PASS", rule_result("tsq.mean >= 0.8", "PASS", 1.0)))

    assert [] == first_look(run)


def test_tasks() -> None:
    """Unsolved tasks are counted, with the most frequent failure."""
    failed = [Verification(0.0, first_failure=check) for check in ("test_port", "test_log", "test_port")]
    solved = rollout("d", "bash", tsq=1.0, verification=Verification(1.0))
    run = run_of(*(rollout(id, "bash", verification=found) for id, found in zip("abc", failed, strict=True)), solved)
    tasks = run.suites["shop"].tasks

    of_tasks = [each for each in first_look(run) if each.phrase in (suite_phrases.tasks, suite_phrases.commonest_failure)]
    assert [(suite_phrases.tasks, (tasks,)), (suite_phrases.commonest_failure, (tasks,))] == [
        (each.phrase, each.values) for each in of_tasks
    ]
    assert tasks is not None
    assert ("test_port", 2, ("a", "c")) == (tasks.failures[0].check, tasks.failures[0].rollouts, tasks.failures[0].examples)
    assert suite_phrases.tasks not in [each.phrase for each in first_look(run_of(solved))]


def test_a_large_part_of_the_time() -> None:
    """A part of the rollouts' time has a line if its share is large."""
    run = quiet(rollout("a", "find", tsq=1.0))
    split = {"decoding": PartOfTime(GREAT, 1.0, None), "tools": PartOfTime(GREAT - 0.01, 1.0, None)}
    great = replace(run, performance=replace(run.performance, split=split))

    assert [(serving_phrases.time_of, ("decoding", split["decoding"], False))] == [(each.phrase, each.values) for each in first_look(great)]


def test_failed_calls() -> None:
    """Failed calls have a line."""
    run = quiet(rollout("a", "find", tsq=1.0))
    failed = replace(run, performance=replace(run.performance, calls=3, failed_calls={"cut": 1}))

    assert [(serving_phrases.failed_of_all, (failed.performance,))] == [(each.phrase, each.values) for each in first_look(failed)]


def test_several_suites() -> None:
    """A finding names its suite if there are several."""
    run = quiet(rollout("a", "order"))
    several = replace(run, suites=dict.fromkeys(("shop", "bank"), run.suites["shop"]))
    triage = run.suites["shop"].triage

    assert suite_phrases.faulty in [each.phrase for each in first_look(run)]
    found = [each.values for each in first_look(several) if each.phrase == phrases.about_suite]
    assert ["shop", "bank"] == [name for name, each in found if (each.phrase, each.values) == (suite_phrases.faulty, (triage,))]
    assert len(found) == len(first_look(several))
