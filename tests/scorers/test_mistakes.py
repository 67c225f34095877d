"""Mistakes of a rollout, with literal calls, labels and results."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.records import Json, LLMCall, Rollout, Score, ToolCall
from pytest_agentbench.records.rollout import Verification
from pytest_agentbench.scorers.mistakes import KINDS, Mistake, mistakes


def call(name: str, problem: str | None = None, detail: str = "", **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments, 1, problem, detail)


def label(tool: str, **parameters: Any) -> Json:
    return {"tool": tool, "parameters": parameters}


def made(*calls: ToolCall, expected: tuple[Json, ...] = (), status: str = "ok", **keys: Any) -> list[Mistake]:
    return [*mistakes(Rollout("shop", "a", "default", 1, status, tool_calls=calls, expected=expected, **keys))]


@pytest.mark.parametrize(
    ("calls", "expected", "mistakes"),
    [
        ([], [], []),
        (["find"], ["find"], []),
        (["Find-it", "order"], ["order", "find_it"], []),
        (["find", "find"], ["find"], []),
        (["order"], ["find"], [Mistake("wrong tool", ("find",), "order")]),
        (["find"], ["find", "order"], [Mistake("missing call", ("order",))]),
        (["find", "order"], ["find"], [Mistake("extra call", actual="order")]),
        (["find"], [], [Mistake("extra call", actual="find")]),
        ([], ["find", "order"], [Mistake("gave up", ("find", "order"))]),
        (["pay", "ship", "find"], ["find", "order"], [Mistake("wrong tool", ("order",), "pay"), Mistake("extra call", actual="ship")]),
    ],
)
def test_the_choice_of_tools(calls: list[str], expected: list[str], mistakes: list[Mistake]) -> None:
    """Distinct tools are compared in any order. Missing tools are paired with unexpected ones in order of appearance."""
    assert mistakes == made(*map(call, calls), expected=tuple(map(label, expected)), scores={"tsq": Score(0.0)})


def test_tools_that_are_not_judged() -> None:
    """Without labels, and without a score that then expects no tool, an agent may call any tool."""
    assert [] == made(call("answer"), scores={"judged_answer": Score(0.0)})
    assert [Mistake("extra call", actual="answer")] == made(call("answer"), scores={"judged_answer": Score(0.0), "exact_match": Score(0.0)})


def test_a_loop() -> None:
    """Three equal calls are a loop. Two equal calls, or calls with other arguments, are not."""
    again = [call("find", item="lamp")] * 2

    assert [] == made(*again, call("find", item="bed"), expected=(label("find"),))
    assert [Mistake("loop", actual="find", detail="3 times")] == made(*again, *again[:1], expected=(label("find"),))


@pytest.mark.parametrize(
    ("problem", "kind"), [("malformed_arguments", "malformed"), ("unknown_tool", "unknown tool"), ("invalid_arguments", "bad argument")]
)
def test_problems_of_calls(problem: str, kind: str) -> None:
    """A call that could not be made is a mistake of its own kind, with the message that the model got."""
    assert [Mistake(kind, actual="find", detail="item is missing")] == made(
        call("find", problem, "item is missing"), expected=(label("find"),)
    )


def test_arguments() -> None:
    """Arguments are compared if a score compares them. The detail has the faults of the best call of the tool."""
    scored = {"parameter_accuracy": Score(0.5)}
    expected = (label("find", item="lamp", count=1),)
    worse, better = call("find", item="bed", count=2), call("find", item="lamp", count=2)

    assert [] == made(worse, expected=expected)
    assert [] == made(worse, call("find", item="lamp", count=1), expected=expected, scores=scored)
    assert [Mistake("bad argument", ("find",), "find", "count is 2, expected 1")] == made(worse, better, expected=expected, scores=scored)


def test_ends() -> None:
    """If a limit ended the rollout or its last call, the mistake is `cut`. After an agent error, no other mistakes are listed."""
    whole = LLMCall(0, 0, 0, finish_reason="length")

    assert [Mistake("cut", detail="8 turns")] == made(status="limit", reason="8 turns")
    assert ["cut"] == [each.kind for each in made(calls=(whole,))]
    assert [Mistake("agent error", detail="KeyError: 'x'")] == made(expected=(label("find"),), status="agent_error", reason="KeyError: 'x'")
    assert [] == made(expected=(label("find"),), status="infra_error")


def test_every_kind_is_described() -> None:
    """The documentation describes each kind in the same words."""
    from tests.test_docs import ROOT

    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")

    assert [] == [kind for kind, text in KINDS.items() if f"| `{kind}` | {text} |" not in page]


def test_in_a_sandbox() -> None:
    """In a task with a sandbox, the agent may call any tool. A faulty call is still a mistake."""
    calls = call("bash", command="ls"), call("zsh", "unknown_tool", "there is no tool 'zsh'")

    assert [Mistake("unknown tool", (), "zsh", "there is no tool 'zsh'")] == made(*calls, verification=Verification(0.0))
