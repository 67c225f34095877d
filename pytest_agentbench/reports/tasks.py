"""Tasks that were carried out, for report.md and the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_agentbench.reports.markup import code, prose, table
from pytest_agentbench.reports.words import number
from pytest_agentbench.runs.tasks import TaskFailure, TaskResult, TasksSummary

MOST = 50  # tasks of a table
LINES = 5  # ways to fail that the terminal names


def markdown(summary: TasksSummary | None) -> Iterator[str]:
    """The section of report.md; nothing of a suite without tasks."""
    if summary is None:
        return
    yield f"\n### Tasks\n\n{tasks_text(summary)}.\n"
    head = [
        "task",
        "solved",
        "mean reward",
        "commands",
        "tokens",
        "seconds",
        "in the sandbox",
        "verifier, s",
        "verifier runs",
        "changed its files",
        "tampered",
    ]
    yield from table(head, [_row(each) for each in _lowest_first(summary.tasks)[:MOST]])
    more = f"; {len(summary.tasks) - MOST} more tasks are in run.json" if len(summary.tasks) > MOST else ""
    yield f"\nThe lowest rewards first{more}. Commands, tokens and seconds are means of the agent's trials."
    if summary.sandboxes:
        yield f"\nCarried out in sandboxes of this kind: {prose('; '.join(summary.sandboxes))}."
    if summary.failures:
        yield "\n### How trials ended that did not solve their task\n"
        yield from table(
            ["the agent ended as", "first check that failed", "rollouts", "for example"],
            [
                [prose(each.end), code(each.check) if each.check else "-", str(each.rollouts), ", ".join(map(code, each.examples))]
                for each in summary.failures
            ],
        )


def _lowest_first(tasks: tuple[TaskResult, ...]) -> list[TaskResult]:
    return sorted(tasks, key=lambda each: (each.reward, each.scenario))


def _row(each: TaskResult) -> list[str]:
    took = (each.commands, each.tokens, each.seconds, each.sandbox_s, each.verifier_s)
    return [
        code(each.scenario),
        f"{each.solved} of {each.trials}",
        number(each.reward, 3),
        *("-" if value is None else number(value) for value in took),
        each.verifier,
        *(str(count) if count else "-" for count in (each.changed, each.tampered)),
    ]


def tasks_text(summary: TasksSummary) -> str:
    """`3 of 5 tasks solved in all trials, 1 in some of them, 1 in none`."""
    tasks = summary.tasks
    always, never = sum(each.solved == each.trials for each in tasks), sum(each.solved == 0 for each in tasks)
    parts = [f"{always} of {len(tasks)} tasks solved in all verified trials", f"{never} in none"]
    if some := len(tasks) - always - never:
        parts.insert(1, f"{some} in some of them")
    return ", ".join(parts)


def failure_lines(summary: TasksSummary) -> Iterator[str]:
    """`limit: iterations, test_port failed: 4 rollouts, for example ...`."""
    for each in summary.failures[:LINES]:
        yield failure_text(each)


def failure_text(failure: TaskFailure) -> str:
    check = f", first failed: {failure.check}" if failure.check else ""
    rollouts = f"{failure.rollouts} rollout{'s' * (failure.rollouts != 1)}"
    return f"{failure.end}{check}: {rollouts}, for example {failure.examples[0]}"
