"""Workflow commands of GitHub Actions: at most ten annotations of a run, the most important ones first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_agentbench.gate.ab import SLOWER, WORSE
from pytest_agentbench.lib.foreign import block, one_line
from pytest_agentbench.reports.comparison import comparison_text, essentials
from pytest_agentbench.reports.outcome import failed_tests, headline, rules, suspects, unmeasured
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
    more = f"{len(every) - MOST + 1} more"
    return [*every[: MOST - 1], command("error", more, f"{more} annotations of run {run.id}: its report names them")]


def _all(run: Run, workspace: Path) -> Iterator[str]:
    level = LEVELS.get(run.verdict, "error" if run.exit_status else "notice")
    yield command(level, f"agentbench: {run.verdict}", str(headline(run)))
    if failure := run.backend.failure:
        yield command("error", f"backend {run.backend.name}", failure)
    for rule in rules(run):
        if rule.verdict in LEVELS:
            folder = run.suites[rule.suite].folder if rule.suite in run.suites else ""
            place = (_within(workspace, Path(folder, "suite.yaml")), 1) if folder else None
            yield command(LEVELS[rule.verdict], f"{rule.suite}: {rule.text}", f"{rule.verdict}: {rule.found}", place)
    if run.ab:
        yield from _losers(run.ab)
    for about, scenario in suspects(run):
        yield command("warning", f"{about}: {scenario.scenario}", f"{scenario.base:.3f} in the baseline, now {scenario.new:.3f}")
    for status, tests in unmeasured(run).items():
        what = f"{len(tests)} test{'s' * (len(tests) > 1)} could not be measured"
        yield command("error", f"{status}: {what}", f"{what}; the first one, {tests[0].id}: {tests[0].message}")
    for test in failed_tests(run):
        place = _within(workspace, Path(test.file)), test.line
        yield command("error", test.id.rpartition("::")[2], test.message, place)


def _losers(ab: ArmsCompared) -> Iterator[str]:
    """A warning for each arm that is worse, or slower, than another one."""
    for each in essentials(ab):
        if each.finding in (WORSE, SLOWER):
            yield command("warning", f"{each.suite}: {each.new_arm} is {each.finding} than {each.base_arm}", comparison_text(ab, each))


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
