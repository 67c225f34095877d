"""comment.md: a run in a few lines, for a pull or merge request. A workflow finds its older comment by the first line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_agentbench.reports.comparison import arms_text, comparison_text, essentials, losses_text
from pytest_agentbench.reports.excerpts import cut
from pytest_agentbench.reports.markup import code, known_name, prose, table
from pytest_agentbench.reports.outcome import failed_tests, headline, rules, suspects, unmeasured
from pytest_agentbench.reports.words import mean_text, statuses_text, stopwatch_text, throughput_text, tools_text
from pytest_agentbench.runs.arm_results import ArmsCompared
from pytest_agentbench.runs.contents import Failure, Run

LIMIT = 65_536  # that GitHub takes, in characters; bytes here, of which there are never fewer
SHOWN = 20  # failed tests


def write(run: Run, directory: Path) -> Path:
    path = directory / "comment.md"
    text = cut("\n".join(lines(run)) + "\n", LIMIT, f"`report.md` of run {run.id}")
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def marker(run: Run) -> str:
    """The same for the same suites on the same backend, so that a later run replaces the comment and another job does not."""
    what = f"{' '.join(run.suites)} on {run.backend.name}"
    return f"<!-- agentbench: {re.sub(r'[^A-Za-z0-9_. ]+', '-', what).strip('-')} -->"


def lines(run: Run) -> Iterator[str]:
    """The lines of comment.md."""
    yield marker(run)
    yield f"## agentbench: {headline(run, prose)}"
    yield ""
    yield f"Backend {code(run.backend.name)}, model {known_name(run.backend.served_model)}, run {code(run.id)}.\n"
    rows = [
        [prose(name), prose(score), mean_text(found.mean), statuses_text(suite.rollouts)]
        for name, suite in run.suites.items()
        for score, found in suite.scores.items()
    ]
    yield from table(["suite", "score", "mean, 95 % interval", "rollouts"], rows)
    if run.backend.failure:
        yield f"\nThe backend failed: {code(run.backend.failure)}"
    if run.ab:
        yield from _arms(run.ab)
    if found := rules(run):
        yield "\n### Limits and gate\n"
        yield from table(
            ["verdict", "suite", "rule", "found"], [[rule.verdict, prose(rule.suite), code(rule.text), prose(rule.found)] for rule in found]
        )
    if worse := suspects(run):
        rows = [
            [prose(about), code(each.scenario), f"{each.base:.3f}", f"{each.new:.3f}", f"{each.p:.3g}"] for about, each in worse[:SHOWN]
        ]
        yield f"\n### May have got worse: {len(worse)}\n"
        yield from table(["score", "scenario", "baseline", "now", "p"], rows)
    yield from _tests("Failed tests, the lowest scores first", failed_tests(run))
    for status, tests in unmeasured(run).items():
        yield from _tests(f"Not measured: {status}", tests)
    yield from _worst(run)
    if run.performance.calls:
        yield f"\n{throughput_text(run.performance)}.\n\nStopwatch: {prose(stopwatch_text(run.stopwatch))}."
    if run.plan.not_run:
        yield f"\n{run.plan.not_run} of {run.plan.rollouts} planned rollouts were not run."


def _arms(ab: ArmsCompared) -> Iterator[str]:
    yield f"\n### A/B: {prose(arms_text(ab))}\n"
    if comparisons := essentials(ab):
        yield from table(["suite", "comparison"], [[prose(each.suite), prose(comparison_text(ab, each))] for each in comparisons])
    if losses := losses_text(ab):
        yield f"\n{prose(losses)}."


def _tests(title: str, tests: Sequence[Failure]) -> Iterator[str]:
    if tests:
        yield f"\n### {title}\n"
        yield from table(["test", "said"], [[code(each.id), code(each.message)] for each in tests[:SHOWN]])
        if more := len(tests) - SHOWN:
            yield f"\nand {more} more." if more > 0 else ""


def _worst(run: Run) -> Iterator[str]:
    rows = [
        [code(each.id), f"{each.score:.3f}", code(tools_text(each.expected_tools)), code(tools_text(each.actual_tools))]
        for suite in run.suites.values()
        for each in suite.worst
    ]
    if rows:
        yield "\n### Worst scores\n"
        yield from table(["scenario", "score", "expected tools", "actual tools"], rows)
