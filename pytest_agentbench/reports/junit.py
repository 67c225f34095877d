"""The gate in pytest's JUnit file: a suite `agentbench.gate` with a test case for each rule, for dashboards that read only this file.

GitLab shows the class name of a test case as its suite, and of the cases with equal names only the first one. Azure leaves out test
cases without a name, and takes start, end and machine of a run from all its suites. So each suite and case has all of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree as ET

from pytest_agentbench.gate.exit_status import CANNOT_MEASURE
from pytest_agentbench.gate.run_comparison import distinct
from pytest_agentbench.lib.foreign import block
from pytest_agentbench.reports import gate_phrases
from pytest_agentbench.reports.document import plain
from pytest_agentbench.runs.results import GateResult, RuleResult
from pytest_agentbench.runs.run_file import Run
from pytest_agentbench.stats.decisions import FAIL, PASS, RUN

SUITE = "agentbench.gate"  # name of the suite, and class name of its test cases
WHOLE = "verdict"  # name of the only test case of a gate without rules

_END = b"</testsuites>"
_ILLEGAL = re.compile("[\ufffe\uffff]")  # XML does not allow them; `block` escapes all others that it does not allow

#: Element of a test case that did not pass; empty for one that passed.
CaseOutcome = Literal["", "failure", "error", "skipped"]


@dataclass(frozen=True)
class Case:
    """A test case about a rule."""

    name: str  # `shop: tsq.mean >= 0.6`; the same in each run, because GitLab compares branches by it
    outcome: CaseOutcome = ""
    message: str = ""  # one sentence
    details: str = ""  # further lines
    file: str = ""  # suite.yaml of the suite; empty if unknown


@dataclass(frozen=True)
class JUnitStyle:
    """The options of pytest that decide how its JUnit file is written."""

    prefix: str = ""  # --junit-prefix: text before all class names
    legacy: bool = False  # junit_family=xunit1, in which test cases have a file and a line


def cases_of(run: Run, gate: GateResult, *, tolerated: bool) -> list[Case]:
    """Returns a test case for each rule of a run's gate. `tolerated`: whether an INCONCLUSIVE gate is a success of the session."""
    undecided: CaseOutcome = "skipped" if tolerated and run.exit_status != CANNOT_MEASURE else "error"
    if not gate.rules:
        return [Case(WHOLE, undecided, gate_phrases.without_rules(gate))]
    folders = {name: suite.folder for name, suite in run.suites.items()}
    return [_case(gate, rule, undecided, folders.get(rule.suite, "")) for rule in gate.rules]


def _case(gate: GateResult, rule: RuleResult, undecided: CaseOutcome, folder: str) -> Case:
    outcomes: Mapping[str, CaseOutcome] = {PASS: "", FAIL: "failure"}
    outcome = outcomes.get(rule.verdict, undecided)
    message = gate_phrases.result(rule)
    if outcome and not gate.decides and rule.of != RUN:
        outcome, message = "skipped", f"{message}; {gate_phrases.SHOWN_ONLY}"
    return Case(_name(rule.suite, rule.rule), outcome, message, "\n".join(_details(rule)), f"{folder}/suite.yaml" if folder else "")


def _details(rule: RuleResult) -> Iterator[str]:
    yield from filter(None, (gate_phrases.reason(rule), gate_phrases.p_worse(rule), gate_phrases.left_out_scenarios(rule), *rule.notes))
    yield from (plain(gate_phrases.change(rule, each, "")) for each in rule.suspects)


def unchecked_cases(rules: Iterable[tuple[str, str]], *, red: bool) -> list[Case]:
    """Returns a test case for each rule, given as (suite, text), of a session without a verdict of the gate. `red`: whether it failed."""
    return [Case(_name(suite, text), "error" if red else "skipped", gate_phrases.UNCHECKED) for suite, text in rules]


def _name(suite: str, rule: str) -> str:
    return f"{suite}: {rule}"


def add_suite(file: Path, cases: Sequence[Case], style: JUnitStyle, began: str, host: str) -> None:
    """Adds the suite of the gate to pytest's JUnit file, as its last suite. Raises ValueError if the file does not end like one.

    Args:
        file: The file.
        cases: The test cases; without any, the file stays unchanged.
        style: How pytest writes the file.
        began: Time of the verdict, ISO 8601.
        host: Name of this machine.
    """
    if not cases:
        return
    with file.open("r+b") as stream:
        content = stream.read()
        end = content.rfind(_END)
        if end < 0:
            raise ValueError(f"{file} does not contain {_END.decode()}")
        stream.seek(end)
        stream.write(ET.tostring(_suite(cases, style, began, host), encoding="utf-8") + content[end:])


def _suite(cases: Sequence[Case], style: JUnitStyle, began: str, host: str) -> ET.Element:
    amounts = {name: str(sum(case.outcome == outcome for case in cases)) for name, outcome in AMOUNTS.items()}
    facts = {"tests": str(len(cases)), "time": "0.000", "timestamp": began, "hostname": host}
    suite = ET.Element("testsuite", {"name": SUITE, **amounts, **facts})
    names = distinct([case.name for case in cases])
    for name, case in zip(names, cases, strict=True):
        suite.append(_element(name, case, style))
    return suite


#: Attribute of a suite -> the outcome that it counts.
AMOUNTS: Mapping[str, CaseOutcome] = {"errors": "error", "failures": "failure", "skipped": "skipped"}


def _element(name: str, case: Case, style: JUnitStyle) -> ET.Element:
    where = {"file": case.file, "line": "0"} if style.legacy and case.file else {}
    class_name = ".".join(filter(None, (style.prefix, SUITE)))
    element = ET.Element("testcase", {"classname": class_name, "name": _legal(name), **where, "time": "0.000"})
    if case.outcome:
        outcome = ET.SubElement(element, case.outcome, {"type": SUITE, "message": _legal(case.message)})
        outcome.text = _legal("\n".join(filter(None, (case.message, case.details))))  # GitLab shows only the text.
    return element


def _legal(text: str) -> str:
    return _ILLEGAL.sub(lambda letter: f"\\u{ord(letter[0]):04x}", block(text))
