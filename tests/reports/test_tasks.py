"""Tasks in reports."""

from __future__ import annotations

from pytest_agentbench.reports.tasks import MOST, failure_lines, markdown, tasks_text
from pytest_agentbench.runs.tasks import TaskFailure, TaskResult, TasksSummary


def task(scenario: str, solved: int, trials: int = 2, tokens: float | None = 1234.0) -> TaskResult:
    return TaskResult(scenario, trials, solved, solved / trials, commands=3.5, tokens=tokens, seconds=12.0, sandbox_s=4.0, verifier_s=1.5)


SUMMARY = TasksSummary(
    (task("a", 2), task("b", 1, tokens=None), task("c", 0)),
    (TaskFailure("ok", "test_port", 2, ("b", "c")), TaskFailure("limit: iterations", "", 1, ("c-2",))),
    ("docker", "docker without this and that"),
)


def test_markdown() -> None:
    """The section has the tasks, the lowest reward first, and the ways in which trials failed."""
    text = "\n".join(markdown(SUMMARY))

    assert "1 of 3 tasks solved in all verified trials, 1 in some of them, 1 in none." in text
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert ["| `c` | 0 of 2 | 0.000", "| `b` | 1 of 2 | 0.500", "| `a` | 2 of 2 | 1.000"] == [
        " | ".join(row.split(" | ")[:3]) for row in rows
    ]
    assert " - | 12" in rows[1]
    assert "\nCarried out in sandboxes of this kind: docker; docker without this and that.\n" in text
    assert "| ok | `test_port` | 2 | `b`, `c` |" in text
    assert "| limit: iterations | - | 1 | `c-2` |" in text


def test_nothing_to_say() -> None:
    """A suite without tasks has no such section, and one whose tasks are all solved no ways to fail."""
    assert [] == [*markdown(None)]
    assert "How trials ended" not in "\n".join(markdown(TasksSummary((task("a", 2),), ())))


def test_many_tasks() -> None:
    """Of many tasks the table has the lowest, and says how many more there are."""
    text = "\n".join(markdown(TasksSummary(tuple(task(f"t{number:03}", 2) for number in range(MOST + 3)), ())))

    assert MOST == text.count("| `t")
    assert "3 more tasks are in run.json" in text


def test_terminal() -> None:
    """The terminal has a line for the tasks, and one for each way to fail."""
    assert "1 of 3 tasks solved in all verified trials, 1 in some of them, 1 in none" == tasks_text(SUMMARY)
    assert "1 of 1 tasks solved in all verified trials, 0 in none" == tasks_text(TasksSummary((task("a", 2),), ()))
    assert [
        "ok, first failed: test_port: 2 rollouts, for example b",
        "limit: iterations: 1 rollout, for example c-2",
    ] == [*failure_lines(SUMMARY)]
