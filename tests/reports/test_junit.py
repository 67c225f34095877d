"""The suite of the gate in JUnit files, without a session."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pytest_agentbench.reports import gate_phrases
from pytest_agentbench.reports.junit import SUITE, WHOLE, Case, JUnitStyle, add_suite, cases_of, unchecked_cases
from tests.junit import azure, gitlab
from tests.made_runs import gate_result, rule_result
from tests.reports.test_ci import GATE, run_with

#: A file as pytest writes it if no test ran.
EMPTY = (
    '<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" errors="0" failures="0" skipped="0" '
    'tests="0" time="0.010" timestamp="2026-01-01T00:00:00+00:00" hostname="box" /></testsuites>'
)
NOW = "2026-01-01T00:02:00+00:00"


def outcomes(**options: object) -> list[str]:
    """Returns the outcomes of the rules of GATE (PASS, INCONCLUSIVE, FAIL) in a session with these options."""
    tolerated = bool(options.pop("tolerated", True))
    decides = bool(options.pop("decides", True))
    gate = gate_result("FAIL", *GATE.rules, decides=decides)
    return [case.outcome for case in cases_of(run_with(gate=gate, **options), gate, tolerated=tolerated)]


def test_outcomes() -> None:
    """FAIL is a failure. INCONCLUSIVE is skipped if it is tolerated, and else an error, as is one of a session that was not measured.

    If the tests decide, no rule about the suite is a failure.
    """
    assert ["", "skipped", "failure"] == outcomes(exit_status=1)
    assert ["", "error", "failure"] == outcomes(exit_status=1, tolerated=False)
    assert ["", "error", "failure"] == outcomes(exit_status=6)
    assert ["", "skipped", "skipped"] == outcomes(exit_status=0, decides=False, tolerated=False)


def test_a_gate_without_rules() -> None:
    """A gate that has no rule for the suites that ran has one test case."""
    gate = gate_result("INCONCLUSIVE")

    assert [Case(WHOLE, "error", gate_phrases.without_rules(gate))] == cases_of(run_with(gate=gate), gate, tolerated=False)


def test_unchecked_rules() -> None:
    """Rules of a session in which no rollout ran are errors, or skipped if the session succeeded."""
    assert ["error"] == [case.outcome for case in unchecked_cases([("shop", "tsq.mean >= 0.6")], red=True)]
    assert ["skipped"] == [case.outcome for case in unchecked_cases([("shop", "tsq.mean >= 0.6")], red=False)]


def test_any_text_is_valid_xml(tmp_path: Path) -> None:
    """Characters that XML does not allow are escaped, because GitLab would refuse the whole file. The first suite stays as it was."""
    file = tmp_path / "junit.xml"
    file.write_text(EMPTY)
    odd = "".join(map(chr, (*range(32), 0x7F, 0xFFFE, 0xFFFF, 0xD800))) + ' ]]> <a b="c"> & é'

    add_suite(file, [Case(f"shop: {odd}", "failure", odd, odd)], JUnitStyle(), NOW, "box")

    assert [(SUITE, "failed")] == [(each.suite, each.status) for each in gitlab(file)]
    assert file.read_text().startswith(EMPTY.removesuffix("</testsuites>"))


def test_equal_names_are_numbered(tmp_path: Path) -> None:
    """GitLab shows only the first of the test cases with the same name, so a rule that is given twice gets a number."""
    file = tmp_path / "junit.xml"
    file.write_text(EMPTY)
    gate = gate_result("FAIL", *(rule_result("tsq.mean >= 0.6", verdict, 0.5) for verdict in ("PASS", "FAIL")))

    add_suite(file, cases_of(run_with(gate=gate), gate, tolerated=True), JUnitStyle(), NOW, "box")

    assert [("shop: tsq.mean >= 0.6", "success"), ("shop: tsq.mean >= 0.6 (2)", "failed")] == [
        (each.name, each.status) for each in gitlab(file)
    ]


def test_azure_gets_a_machine_and_a_duration(tmp_path: Path) -> None:
    """Azure takes the machine of the last suite, and the duration from the timestamps of all suites."""
    file = tmp_path / "junit.xml"
    file.write_text(EMPTY)

    add_suite(file, [Case("shop: tsq.mean >= 0.6", "skipped", "why")], JUnitStyle(), NOW, "box")

    run = azure(file)
    assert ("box", 2.0, ["why"]) == (run.host, run.minutes, [each.text for each in run.results])


def test_no_case_no_change_and_no_end(tmp_path: Path) -> None:
    """Without a rule the file stays as it is. A file that pytest did not finish is refused."""
    file = tmp_path / "junit.xml"
    file.write_text("<testsuites>")

    add_suite(file, [], JUnitStyle(), NOW, "box")
    assert "<testsuites>" == file.read_text()
    with pytest.raises(ValueError, match="does not contain </testsuites>"):
        add_suite(file, [Case("a")], JUnitStyle(), NOW, "box")


@pytest.mark.parametrize(("legacy", "more"), [(True, {"file", "line"}), (False, set())])
def test_the_legacy_family_has_files(tmp_path: Path, legacy: bool, more: set[str]) -> None:
    """With xunit1 a test case names the suite.yaml; with xunit2 it does not, because that schema has no such attribute."""
    file = tmp_path / "junit.xml"
    file.write_text(EMPTY)
    gate = gate_result("FAIL", GATE.rules[2])

    add_suite(file, cases_of(run_with(gate=gate), gate, tolerated=True), JUnitStyle(legacy=legacy), NOW, "box")

    (case,) = ET.parse(file).getroot().iter("testcase")
    assert {"classname", "name", "time", *more} == set(case.attrib)
    assert case.get("file") == ("/repository/scenarios/shop/suite.yaml" if legacy else None)
