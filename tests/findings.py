"""Reads findings and their values from reports, so that tests do not depend on the wording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pytest_agentbench.reports import gate_phrases
from pytest_agentbench.reports.document import (
    AnyBlock,
    Code,
    Document,
    Fact,
    Finding,
    Level,
    Measure,
    Section,
    Table,
    TableCell,
    Text,
    contents,
    plain,
)
from pytest_agentbench.reports.sections import document
from pytest_agentbench.reports.view import RunView
from pytest_agentbench.runs.results import GateResult
from pytest_agentbench.runs.run_file import Run, read_run


def report_of(directory: Path, level: Level | None = None) -> Document:
    """Returns the report of a run directory, or the part of it that belongs to a level."""
    report = document(RunView(read_run(directory), directory))
    return report if level is None else report.at(level)


def report(run: Run, level: Level | None = None) -> Document:
    """Returns the report of a run without a directory, or the part of it that belongs to a level."""
    whole = document(RunView(run, Path("nowhere")))
    return whole if level is None else whole.at(level)


def said(report: Document, phrase: Callable[..., Any]) -> list[tuple[Any, ...]]:
    """Returns the values of each finding that a phrase puts into words, from top to bottom."""
    return [finding.values for finding in findings(report) if finding.phrase == phrase and plain(finding.words)]


def findings(report: Document) -> Iterator[Finding]:
    """Yields every finding of a report."""
    headline = report.headline.content if report.headline else None
    yield from [headline] if isinstance(headline, Finding) else []
    yield from (each for section in report.sections for each in section.findings())


def texts(report: Document) -> list[Text]:
    """Returns the texts of a report that are not findings, from top to bottom: notes of other programs, and fixed sentences."""
    return [each for block in report.blocks() for each in contents(block) if isinstance(each, str | tuple | Code)]


def facts(report: Document, label: str) -> list[Fact]:
    """Returns the facts under a label."""
    return [each for each in report.blocks() if isinstance(each, Fact) and each.label == label]


def under(report: Document, label: str) -> list[tuple[Any, ...]]:
    """Returns the values of each finding under a label, and other texts unchanged, from top to bottom."""
    return [fact.content.values if isinstance(fact.content, Finding) else (fact.content,) for fact in facts(report, label)]


def gate_of(report: Document) -> GateResult:
    """Returns the gate result of a report."""
    [(found, *_)] = said(report, gate_phrases.gate)
    assert isinstance(found, GateResult)
    return found


def rules(report: Document) -> list[tuple[str, str, str, float | None]]:
    """Returns the suite, the text, the verdict and the estimate of each rule in a report."""
    return [(rule.suite, rule.rule, rule.verdict, rule.estimate and round(rule.estimate, 3)) for (rule,) in under(report, "rule")]


def reasons(report: Document) -> list[str]:
    """Returns the reasons for which rules could not be decided."""
    return [gate_phrases.reason(rule) for (rule,) in said(report, gate_phrases.reason)]


def measure(report: Document, label: str) -> Measure:
    """Returns the only measure under a label."""
    [found] = {each.content for each in facts(report, label) if isinstance(each.content, Measure)}
    return found


def tables(report: Document, first: str) -> list[Table]:
    """Returns the tables whose first column has this title."""
    return [each for each in report.blocks() if isinstance(each, Table) and each.columns[0].title == first]


def values_of(table: Table) -> list[tuple[Any, ...]]:
    """Returns the rows of a table, with the value of each cell, or the values of its finding if it has several."""
    return [tuple(_value(cell) for cell in row) for row in table.rows]


def part(report: Document | Section, *titles: str) -> Section | None:
    """Returns the section with a title, or with further titles the section within it. Returns None if it does not exist."""
    inside: Iterable[AnyBlock | Section] = report.sections if isinstance(report, Document) else report.blocks
    found = next((each for each in inside if isinstance(each, Section) and each.title == titles[0]), None)
    return found if found is None or len(titles) == 1 else part(found, *titles[1:])


def _value(cell: TableCell) -> Any:
    if not isinstance(cell, Finding):
        return cell.text if isinstance(cell, Code) else cell
    return cell.values[0] if len(cell.values) == 1 else cell.values
