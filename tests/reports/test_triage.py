"""What report.md says of mistakes, and what it says first."""

from __future__ import annotations

from typing import Any

from pytest_agentbench.records import Rollout, Score, ToolCall, Verification
from pytest_agentbench.reports import first_look, triage
from pytest_agentbench.reports.markdown import SCENARIOS, lines
from pytest_agentbench.runs.contents import Run
from tests.made_runs import gate_result, rule_result, run_of


def rollout(scenario: str, *calls: str, tsq: float = 0.0, trial: int = 1, status: str = "ok", **keys: Any) -> Rollout:
    made = tuple(ToolCall(name, {}, 1) for name in calls)
    scores = {} if status == "agent_error" else {"tsq": Score(tsq)}
    return Rollout("shop", scenario, "default", trial, status, tool_calls=made, expected=({"tool": "find"},), scores=scores, **keys)


def section(run: Run, title: str) -> list[str]:
    """The lines of report.md under a title."""
    text = "\n".join(lines(run))
    return text.partition(f"# {title}\n\n")[2].partition("\n\n#")[0].splitlines() if f"# {title}\n" in text else []


def test_what_went_wrong() -> None:
    """Kinds with examples, pairs of tools, and tools have a table each; a run without mistakes has none of them."""
    run = run_of(rollout("a", "order"), rollout("b", "order"), rollout("c", "find", tsq=1.0))

    assert "2 of 3 rollouts have a mistake." == section(run, "What went wrong")[0]
    assert "| wrong tool | 2, 66.7 % | it called one tool where another was expected | `a`, `b`: `order instead of find` |" in lines(run)
    assert "| `find` | `order` | 2 |" == section(run, "Which tool instead of which")[-1]
    assert ["| `find` | 3 | 2 | 0 | 0 |", "| `order` | 0 | 0 | 2 | 0 |"] == section(run, "Tools with the most mistakes")[2:]
    assert [] == section(run_of(rollout("c", "find", tsq=1.0)), "What went wrong")


def test_what_models_say_is_inert() -> None:
    """A name that a model made up opens no markup and no row."""
    run = run_of(rollout("a", "[x](http://evil) | <b>"))

    assert "| `find` | `[x](http://evil) \\| <b>` | 1 |" == section(run, "Which tool instead of which")[-1]


def test_what_to_look_at_first() -> None:
    """What decides comes first, then mistakes and trials that do not agree."""
    rule = rule_result("tsq.mean >= 0.8", "FAIL", 0.5, threshold=0.8)
    trials = [rollout("b", "find", tsq=1.0), rollout("b", "order", trial=2)]
    run = run_of(rollout("a", status="agent_error", reason="KeyError"), *trials, gate=gate_result("FAIL", rule))

    first = first_look.lines(run)

    assert "tsq.mean >= 0.8" in first[0]
    assert "not all rollouts ended well: 1 agent_error" == first[1]
    assert "2 of 3 rollouts have a mistake: agent error 1, wrong tool 1" == first[2]
    assert "most confused: `order` instead of `find` once" == first[3]
    assert "the tool with the most mistakes: `find`, which 1 of 3 rollouts did not call" == first[4]
    assert "trials of 1 scenario do not agree whether it passes: `b`" == first[5]
    assert "timings: no verdict: no call was measured" == first[6]
    assert [f"- {line}" for line in first] == section(run, "What to look at first")


def test_ten_lines_at_most() -> None:
    """However much went wrong, what decides is among them."""
    rules = [rule_result(f"tsq.mean >= 0.{digit}", "FAIL", 0.0) for digit in range(1, 10)]

    found = first_look.lines(run_of(rollout("a", "order"), gate=gate_result("FAIL", *rules, *rules)))

    assert 10 == len(found)
    assert all("tsq.mean" in line for line in found)


def test_tasks() -> None:
    """Of tasks that are not solved, how many, and how most of them ended; the worst stand without tools that nobody expects."""
    failed = [Verification(0.0, first_failure=check) for check in ("test_port", "test_log", "test_port")]
    solved = rollout("d", "bash", tsq=1.0, verification=Verification(1.0))
    run = run_of(*(rollout(id, "bash", verification=found) for id, found in zip("abc", failed, strict=True)), solved)

    first = first_look.lines(run)
    assert "1 of 4 tasks solved in all verified trials, 3 in none" in first
    assert "the most frequent way to fail: ok, first failed: test_port: 2 rollouts, for example a" in first
    assert "| task | tsq | what it says |" == section(run, "Worst tsq")[0]
    assert not [line for line in first_look.lines(run_of(solved)) if "solved" in line]


def test_flips() -> None:
    """Only scenarios with trials on both sides, those nearest to a coin's toss first."""
    passes = {"a": "110", "b": "10", "c": "00", "d": "11"}
    run = run_of(*(rollout(id, tsq=float(digit), trial=at) for id, digits in passes.items() for at, digit in enumerate(digits, 1)))

    assert ["b", "a"] == triage.flips(run.suites["shop"].passes)


def test_every_scenario() -> None:
    """Each has a row with its mean, the worst first; beyond two hundred the rest is in run.json, which the report says."""
    run = run_of(rollout("b", tsq=0.5), rollout("b", tsq=1.0, trial=2), rollout("a", status="agent_error"))
    many = run_of(*(rollout(f"s{each:03}") for each in range(SCENARIOS + 2)))

    assert ["| `b` | 0.750 |", "| `a` | - |"] == section(run, "Every scenario")[2:4]
    assert SCENARIOS == len([line for line in section(many, "Every scenario") if line.startswith("| `s")])
    assert f"The worst {SCENARIOS}; 2 more are in run.json." in "\n".join(lines(many))
    assert SCENARIOS + 2 == len(many.suites["shop"].scenarios)
