"""Reports for CI systems: which files each system gets, how Markdown is truncated to its limits, and annotations of a commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path

from pytest_agentbench.gate.ab import SLOWER, WORSE
from pytest_agentbench.lib.foreign import block, one_line
from pytest_agentbench.reports import gate_phrases, phrases
from pytest_agentbench.reports.headline import headline
from pytest_agentbench.reports.sections.arms import essentials
from pytest_agentbench.reports.view import failed_tests, score_of, suspects, unmeasured, worst_first
from pytest_agentbench.runs.results import ArmsCompared
from pytest_agentbench.runs.run_file import Run

SPARE = 1200  # bytes reserved for the sentence about the truncation
TITLES = 5  # titles of left-out sections that the sentence names
TITLE_WIDTH = 80  # maximum characters of such a title


def cut(text: str, limit: int, where: str) -> str:
    """Truncates Markdown to at most `limit` bytes, and adds a sentence that refers to `where` for the whole text.

    Returns an empty text if `limit` leaves no room for that sentence.
    """
    if size(text) <= limit:
        return text
    if limit < SPARE:
        return ""
    lines = text.splitlines(keepends=True)
    kept = sum(total <= limit - SPARE for total in accumulate(map(size, lines)))
    fence = "```\n" if sum(line.startswith("```") for line in lines[:kept]) % 2 else ""
    folded = sum(line.startswith("<details>") for line in lines[:kept]) > sum(line.startswith("</details>") for line in lines[:kept])
    fence += "\n</details>\n" if folded else ""  # so that the note is not folded
    titles = [line.strip("# \n")[:TITLE_WIDTH] for line in lines[kept:] if line.startswith("#")]
    more = f" and {len(titles) - TITLES} more sections" if len(titles) > TITLES else ""
    sections = f", including {'; '.join(titles[:TITLES])}{more}" if titles else ""
    note = f"**Truncated: {len(lines) - kept} of {len(lines)} lines are left out{sections}. See {where}.**"
    return f"{''.join(lines[:kept])}{fence}\n{note}\n"


def whole_report(run_id: str) -> str:
    """Returns the name of the file that contains the complete report, for the end of a truncated one: report.md of the run."""
    return f"`report.md` of run {run_id}"


def size(text: str) -> int:
    return len(text.encode(errors="backslashreplace"))


#: Variable that a CI system sets in every job -> the system.
DETECTED = {"GITHUB_ACTIONS": "github", "GITLAB_CI": "gitlab"}

REPORTS: Mapping[str, str] = {
    "comment": "pytest_agentbench.reports.comment:write",
    "openmetrics": "pytest_agentbench.reports.openmetrics:write",
    "summary": "pytest_agentbench.reports.summary:write",
}
WRITTEN: Mapping[str, tuple[str, ...]] = {"github": ("summary", "comment", "openmetrics"), "gitlab": ("comment", "openmetrics"), "": ()}


def system(choice: str, environment: Mapping[str, str]) -> str:
    """Returns the CI system: `github`, `gitlab`, or an empty string for none. `choice` is the value of --agentbench-ci."""
    if choice == "auto":
        return next((name for variable, name in DETECTED.items() if environment.get(variable) == "true"), "")
    return "" if choice == "off" else choice


MOST = 10  # annotations that GitHub shows for a step
WIDTH = 600  # maximum characters of a message; the report contains the rest

LEVELS = {"FAIL": "error", "INCONCLUSIVE": "warning", "SKIPPED": "warning"}


def commands(run: Run, workspace: Path) -> list[str]:
    """Returns GitHub's workflow commands that annotate a commit with the results of a run. Paths in `workspace` are relative to it."""
    every = list(_all(run, workspace))
    if len(every) <= MOST:
        return every
    left = len(every) - MOST + 1
    return [*every[: MOST - 1], command("error", phrases.more(left), gate_phrases.annotations_left(left, run))]


def _all(run: Run, workspace: Path) -> Iterator[str]:
    level = LEVELS.get(run.verdict, "error" if run.exit_status else "notice")
    yield command(level, f"agentbench: {run.verdict}", headline(run))
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
    """Yields a warning for each arm that is worse or slower than the one it is compared with."""
    for each in essentials(ab):
        if each.finding in (WORSE, SLOWER):
            yield command("warning", f"{each.suite}: {gate_phrases.arm_finding(each)}", gate_phrases.comparison(ab, each))


def command(level: str, title: str, message: str, place: tuple[str, int] | None = None) -> str:
    """`::error file=...,line=...,title=...::message`: an annotation as a workflow command, always on one line."""
    facts = {"file": place[0], "line": str(place[1])} if place else {}
    properties = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in {**facts, "title": one_line(title)}.items())
    return f"::{level} {properties}::{_escaped(block(message[:WIDTH]))}"


def _escaped(text: str, more: str = "") -> str:
    """Percent-encodes the characters that are special in workflow commands. The percent sign comes first, so that it is encoded once."""
    for letter in f"%\r\n{more}":
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


def _within(workspace: Path, path: Path) -> str:
    return str(path.relative_to(workspace)) if path.is_relative_to(workspace) else str(path)
