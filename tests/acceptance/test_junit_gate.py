"""The gate in pytest's JUnit file, so that a dashboard that reads only this file shows the verdict of each rule."""

from __future__ import annotations

import platform
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pytest_agentbench.gate.exit_status import CANNOT_TELL, NO_TESTS
from pytest_agentbench.reports import gate_phrases
from pytest_agentbench.reports.junit import SUITE
from tests.junit import azure, gitlab
from tests.project import FIND_THEN_ANSWER, TWO_WORKERS, WAYS, Project

JUNIT = "--junitxml=junit.xml"

#: Rules with the three verdicts for a suite of which one of three scenarios calls a wrong tool.
FAILS, OPEN, PASSES = "tsq.mean >= 0.9 of run", "tsq.mean >= 0.6", "infra_error.rate <= 2%"


@pytest.fixture
def judged(project: Project) -> Project:
    """A project with a suite whose rules have all three verdicts."""
    project.suite(gate=[OPEN, PASSES], thresholds={"tsq": 0.5, "tsq.mean": 0.9})
    wrong = {"match": {"contains": "shop-1:", "turn": 0}, "tool_calls": [{"name": "order_item", "arguments": {"item": "x"}}]}
    project.backend([wrong, *FIND_THEN_ANSWER])
    return project


def suite_of(file: Path) -> ET.Element:
    """Returns the suite of the gate, which is the last of two."""
    ours = ET.parse(file).getroot().findall("testsuite")
    assert ["pytest", SUITE] == [each.get("name") for each in ours]
    return ours[-1]


def outcomes(suite: ET.Element) -> dict[str, str]:
    """Returns name of a test case -> its element, or an empty text for one that passed."""
    assert {SUITE} == {case.get("classname") for case in suite}
    return {str(case.get("name")): "".join(each.tag for each in case) for case in suite}


@WAYS
def test_a_test_case_for_each_rule(judged: Project, way: tuple[str, ...]) -> None:
    """A failed rule is a failure, an undecided one skipped, and each is in the pages of GitLab and Azure, with its numbers."""
    result = judged.run(*way, JUNIT, "scenarios/shop")

    file = judged.root / "junit.xml"
    suite = suite_of(file)
    assert 1 == result.ret
    assert {f"shop: {OPEN}": "skipped", f"shop: {PASSES}": "", f"shop: {FAILS}": "failure"} == outcomes(suite)
    assert ("3", "1", "0", "1") == tuple(suite.get(name) for name in ("tests", "failures", "errors", "skipped"))
    of_gitlab = {each.name: each for each in gitlab(file) if each.suite == SUITE}
    run = azure(file)
    of_azure = {each.name: each for each in run.results if each.suite == SUITE}
    assert {OPEN: "skipped", PASSES: "success", FAILS: "failed"} == {n.removeprefix("shop: "): each.status for n, each in of_gitlab.items()}
    assert {OPEN: "NotExecuted", PASSES: "Passed", FAILS: "Failed"} == {n.removeprefix("shop: "): e.status for n, e in of_azure.items()}
    sentence = "FAIL: shop tsq.mean 0.667, required >= 0.9 (this run)"
    assert of_gitlab[f"shop: {FAILS}"].text.startswith(sentence)
    assert sentence == of_azure[f"shop: {FAILS}"].text
    assert (platform.node(), True) == (run.host, 0 <= run.minutes < 60)
    assert len(gitlab(file)) == len(run.results) == 3 + 3


@pytest.mark.slow
def test_undecided_rules_that_fail_the_session(judged: Project) -> None:
    """With --agentbench-inconclusive=fail, an undecided rule is an error, as in the exit status."""
    judged.suite(gate=[OPEN], thresholds={"tsq": 0.0})

    result = judged.run(JUNIT, "--agentbench-inconclusive=fail", "scenarios/shop")

    assert {f"shop: {OPEN}": "error"} == outcomes(suite_of(judged.root / "junit.xml"))
    assert CANNOT_TELL == result.ret


@pytest.mark.slow
def test_rules_that_are_shown_only(judged: Project) -> None:
    """With --agentbench-verdict=tests, a failed rule about the suite does not fail the session, so it is skipped. One of the run fails."""
    rule = "tsq.mean >= 0.999"
    judged.suite(gate=[], thresholds={"tsq": 0.0, "tsq.mean": 0.9}, scenarios=20)
    judged.backend([{"match": {"turn": 0}, "tool_calls": [{"name": "order_item", "arguments": {"item": "x"}}]}, {"text": "Done."}])

    judged.run(JUNIT, "--agentbench-verdict=tests", f"--agentbench-gate={rule}", "scenarios/shop")

    suite = suite_of(judged.root / "junit.xml")
    assert {f"shop: {rule}": "skipped", f"shop: {FAILS}": "failure"} == outcomes(suite)
    shown = suite.find(f"testcase[@name='shop: {rule}']/skipped")
    assert shown is not None
    assert gate_phrases.SHOWN_ONLY in str(shown.get("message"))


@pytest.mark.slow
@pytest.mark.parametrize("way", [(), TWO_WORKERS], ids=["one-process", "n2"])
def test_when_no_test_ran(judged: Project, way: tuple[str, ...]) -> None:
    """If no test was selected, each rule is an error, because the session does not succeed and the file is empty otherwise."""
    result = judged.run(*way, JUNIT, "-k", "nothing", "scenarios/shop")

    file = judged.root / "junit.xml"
    assert NO_TESTS == result.ret
    assert {f"shop: {rule}": "error" for rule in (OPEN, PASSES, FAILS)} == outcomes(suite_of(file))
    assert {(SUITE, "error", gate_phrases.UNCHECKED)} == {(each.suite, each.status, each.text) for each in gitlab(file)}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "where"), [("xunit1", ("scenarios/shop/suite.yaml", "0")), ("xunit2", (None, None))])
def test_families_and_reruns(judged: Project, family: str, where: tuple[str | None, str | None]) -> None:
    """The suite follows junit_family and --junit-prefix, and repeated tests do not repeat rules."""
    judged.run(JUNIT, "-p", "rerunfailures", "--reruns=1", "-o", f"junit_family={family}", "--junit-prefix=gpu", "scenarios/shop")

    suite = suite_of(judged.root / "junit.xml")
    cases = {str(case.get("name")): case for case in suite}
    assert {f"shop: {rule}" for rule in (OPEN, PASSES, FAILS)} == set(cases)
    assert 3 == len(suite)
    assert {f"gpu.{SUITE}"} == {case.get("classname") for case in suite}
    (file,) = {case.get("file") for case in suite}
    assert where == (None if file is None else str(Path(file).relative_to(judged.root)), suite[0].get("line"))


@pytest.mark.slow
def test_without_a_gate_and_without_a_file(project: Project) -> None:
    """A session without a rule has no such suite, and a device as JUnit file stays a device."""
    project.suite()

    assert 0 == project.run(JUNIT, "scenarios/shop").ret
    assert ["pytest"] == [each.get("name") for each in ET.parse(project.root / "junit.xml").getroot()]
    project.suite(thresholds={"tsq": 0.5, "tsq.mean": 0.5})
    assert 0 == project.run("--junitxml=/dev/null", "scenarios/shop").ret
