"""The file of a task in the evaluation's format: calls, their results, the right answer, and correctness."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_agentbench.exports.toolorchestra import is_correct, read, task
from pytest_agentbench.records import Scale, Score
from tests.exports.test_toolorchestra_run import exported
from tests.made_runs import run_of
from tests.tables.shop import BOUGHT, LOST, TRIED

SHOP = run_of(BOUGHT, TRIED, LOST)

#: The keys of a task's file, in the evaluation's order.
KEYS = ["id", "problem", "all_tool_calls", "all_tool_responses", "answer", "all_message_responses", "correct", "status"]


def test_keys() -> None:
    """A task has the evaluation's keys, and `error_type` if it failed."""
    bought, tried, lost = (task(each, SHOP) for each in (BOUGHT, TRIED, LOST))

    assert [KEYS, KEYS, [*KEYS, "error_type"]] == [[*each] for each in (bought, tried, lost)]
    assert [(True, "done"), (False, "done"), (False, "error")] == [(each["correct"], each["status"]) for each in (bought, tried, lost)]
    assert ("Is there a lamp?", "no connection") == (bought["problem"], lost["error_type"])


def test_the_right_answer() -> None:
    """`answer` is the label as text, with which the evaluation compares predictions. A scenario without a label has an empty text."""
    known = task(replace(BOUGHT, reference="7"), SHOP)
    [answered] = known["all_tool_responses"]["turn_1_response"]

    assert ("7", "") == (known["answer"], task(BOUGHT, SHOP)["answer"])
    assert {"tool": "answer", "pred": "Here it is.", "correctness": True, "answer": "7"} == answered


def test_rounds() -> None:
    """Rounds with executed tools have the model's text and calls, and their responses. The first round is number 0."""
    made = task(BOUGHT, SHOP)
    call = {"item": "lamp"}

    assert [[[{"name": "find_item", "arguments": call}]], [[{"name": "answer", "arguments": {}}]]] == made["all_tool_calls"]
    assert {"turn_0_message": {"content": None, "tool_calls": [{"tool_name": "find_item", "tool_arguments": call}]}} == made[
        "all_message_responses"
    ]
    assert ["turn_0_response", "turn_1_response"] == [*made["all_tool_responses"]]
    assert [{"tool": "find_item"}] == made["all_tool_responses"]["turn_0_response"]


def test_the_text_of_the_model() -> None:
    """A round's text comes from the transcript if it contains every round. Otherwise it is null."""
    said = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "I look."}, {"role": "assistant", "content": "There."})
    told = [task(replace(BOUGHT, messages=said, turns=turns), SHOP)["all_message_responses"] for turns in (2, 3)]

    assert ["I look.", None] == [each["turn_0_message"]["content"] for each in told]


def test_invalid_calls(tmp_path: Path) -> None:
    """Invalid calls are texts about them, as in the evaluation. An `answer` with wrong arguments did not end the task."""
    wrong = replace(BOUGHT.tool_calls[0], name="answer", arguments={}, problem="invalid_arguments", detail="model is missing")
    limited = replace(BOUGHT, status="limit", reason="rounds", answer="", tool_calls=(wrong,), scores={"tsq": Score(0.0)})
    out = exported(tmp_path, limited)
    [back] = read(out).rollouts

    assert [["model is missing"]] == task(limited, SHOP)["all_tool_calls"]
    assert {} == task(limited, SHOP)["all_tool_responses"]
    assert "limit" == back.status


def test_an_expert_gives_the_answer() -> None:
    """The prediction is at the last call of the tool `answer`, in its round."""
    answer = replace(BOUGHT.tool_calls[0], name="answer", arguments={"model": "answer-1"}, turn=3)
    responses = task(replace(BOUGHT, tool_calls=(*BOUGHT.tool_calls, answer), turns=3), SHOP)["all_tool_responses"]

    assert ["turn_0_response", "turn_2_response"] == [*responses]
    assert ["Here it is."] == [each["pred"] for each in responses["turn_2_response"]]


def test_correctness_follows_the_scale() -> None:
    """If lower is better, a rollout is correct up to the threshold, or without one at the best value."""
    mistakes = Scale("lower", 0.0, None, declared=True)
    made = run_of(BOUGHT)
    falling = replace(made, suites={"shop": replace(made.suites["shop"], scales={"tsq": mistakes}, passes=None)})
    correct = [is_correct(replace(BOUGHT, scores={"tsq": Score(value)}), falling) for value in (0.0, 1.0)]

    assert [True, False] == correct
