"""Workflow commands of GitHub Actions: at most ten annotations of a run, the most important ones first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_agentbench.gate.ab import SLOWER, WORSE
from pytest_agentbench.lib.foreign import block, one_line
from pytest_agentbench.reports import gate_phrases, phrases
from pytest_agentbench.reports.outcome import failed_tests, score_of, suspects, unmeasured, worst_first
from pytest_agentbench.reports.sections.arms import essentials
from pytest_agentbench.runs.arm_results import ArmsCompared
from pytest_agentbench.runs.contents import Run

MOST = 10  # that GitHub shows of a step
WIDTH = 600  # characters of a message; the report has the rest

LEVELS = {"FAIL": "error", "INCONCLUSIVE": "warning", "SKIPPED": "warning"}


def commands(run: Run, workspace: Path) -> list[str]:
    """The commands, a line each; `workspace` is what GitHub's paths are relative to."""
    every = list(_all(run, workspace))
    if len(every) <= MOST:
        return every
    left = len(every) - MOST + 1
    return [*every[: MOST - 1], command("error", phrases.more(left), gate_phrases.annotations_left(left, run))]


def _all(run: Run, workspace: Path) -> Iterator[str]:
    level = LEVELS.get(run.verdict, "error" if run.exit_status else "notice")
    yield command(level, f"agentbench: {run.verdict}", phrases.headline(run))
    if failure := run.backend.failure:
        yield command("error", f"backend {run.backend.name}", failure)
    rules = run.gate.rules if run.gate else ()
    for rule in worst_first(rules):
        if rule.verdict in LEVELS:
            folder = run.suites[rule.suite].folder if rule.suite in run.suites else ""
            place = (_within(workspace, Path(folder, "suite.yaml")), 1) if folder else None
            yield command(LEVELS[rule.verdict], f"{rule.suite}: {rule.rule}", gate_phrases.outcome(rule), place)
    if run.ab:
        yield from _losers(run.ab)
    for rule, suspect in suspects(rules):
        yield command("warning", f"{rule.suite} {score_of(rule)}: {suspect.scenario}", gate_phrases.fall(suspect))
    for status, tests in unmeasured(run).items():
        what = gate_phrases.unmeasured_tests(len(tests))
        yield command("error", f"{status}: {what}", f"{what}; {gate_phrases.first_of_tests(tests[0])}")
    for test in failed_tests(run):
        place = _within(workspace, Path(test.file)), test.line
        yield command("error", test.id.rpartition("::")[2], test.message, place)


def _losers(ab: ArmsCompared) -> Iterator[str]:
    """A warning for each arm that is worse, or slower, than another one."""
    for each in essentials(ab):
        if each.finding in (WORSE, SLOWER):
            yield command("warning", f"{each.suite}: {gate_phrases.arm_finding(each)}", gate_phrases.comparison(ab, each))


def command(level: str, title: str, message: str, place: tuple[str, int] | None = None) -> str:
    """`::error file=...,line=...,title=...::message`, on one line whatever is in it."""
    facts = {"file": place[0], "line": str(place[1])} if place else {}
    properties = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in {**facts, "title": one_line(title)}.items())
    return f"::{level} {properties}::{_escaped(block(message[:WIDTH]))}"


def _escaped(text: str, more: str = "") -> str:
    """With the letters that mean something to GitHub in percent, the percent sign first."""
    for letter in f"%\r\n{more}":
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


def _within(workspace: Path, path: Path) -> str:
    return str(path.relative_to(workspace)) if path.is_relative_to(workspace) else str(path)
