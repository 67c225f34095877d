"""Answers of judges are parsed leniently and validated strictly. Missing values are never guessed."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.agents.self_evaluating import VERDICT
from pytest_agentbench.errors import InfraError, JudgeError
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.llm.judge import Form, calls_text, fill_template, numbered, read
from pytest_agentbench.records import Json, ToolCall

FORM = Form(
    "mark",
    {
        "type": "object",
        "properties": {"why": {"type": "string"}, "good": {"type": "boolean"}, "sure": {"type": "number", "minimum": 0, "maximum": 1}},
        "required": ["why", "good", "sure"],
        "additionalProperties": False,
    },
)
MARK: Json = {"why": "a } in it", "good": True, "sure": 0.5}
TEXT = json.dumps(MARK)


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        f"```json\n{TEXT}\n```",
        f"Let me see. {TEXT} That is all.",
        f'<think>{{"why": "", "good": false, "sure": 1}} or not?</think>\n{TEXT}',
        f"no opening tag {{</think>{TEXT}",
        f'First thought: {{"why": "", "good": false, "sure": 1}}. On reflection: {TEXT}',
        f'{TEXT} where {{"this": "is something else"}}',
        f"{{ {{ {TEXT}",
        json.dumps({**MARK, "score": 7}),
        json.dumps({**MARK, "good": "True", "sure": " 0.5 "}),
    ],
    ids=["plain", "fenced", "text", "thoughts", "half thoughts", "last", "last that fits", "open braces", "more keys", "texts"],
)
def test_the_verdict_in_an_answer(text: str) -> None:
    """The last object in the answer that fits is used, whatever is around it. Unambiguous strings are converted."""
    assert MARK == read(text, FORM)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "there is no JSON object in it"),
        ("yes, it is good", "there is no JSON object in it"),
        (TEXT[:-1], "there is no JSON object in it"),
        ("[1, 2]", "there is no JSON object in it"),
        ("<think>" + TEXT + "</think>", "there is no JSON object in it"),
        (TEXT.replace("0.5", "NaN"), "there is no JSON object in it"),
        (json.dumps({**MARK, "sure": "very"}), "data.sure must be number"),
        (json.dumps({**MARK, "sure": "nan"}), "data.sure must be number"),
        (json.dumps({**MARK, "sure": True}), "data.sure must be number"),
        (json.dumps({**MARK, "sure": 90}), "data.sure must be smaller than or equal to 1"),
        (TEXT.replace("0.5", "1e999"), "data.sure must be smaller than or equal to 1"),
        (json.dumps({**MARK, "good": "maybe"}), "data.good must be boolean"),
        (json.dumps({**MARK, "good": None}), "data.good must be boolean"),
        ('{"good": true, "sure": 1}', "data must contain ['why'] properties"),
        ('{"a":' * 5000, "there is no JSON object in it"),
    ],
)
def test_an_answer_without_a_verdict(text: str, fault: str) -> None:
    """If an answer does not contain a verdict, the error has the reason and a quotation of the judge."""
    with pytest.raises(JudgeError) as caught:
        read(text, FORM)

    assert f"{fault}; the judge said {beginning(text, 200)!r}" == str(caught.value)
    assert isinstance(caught.value, InfraError)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.sampled_from(["true", "0.9", "nan"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*VERDICT.schema["properties"], "x"]), inner, max_size=6),
)


@given(ANYTHING.map(json.dumps) | st.text(), st.text(max_size=10))
def test_nothing_else_is_raised(text: str, more: str) -> None:
    """Any answer is either a verdict with a boolean and a number from 0 to 1, or a JudgeError."""
    with suppress(JudgeError):
        verdict = read(more + text + more, VERDICT)

        assert type(verdict["is_sufficient"]) is bool
        assert 0 <= verdict["confidence"] <= 1
        assert {*VERDICT.schema["properties"]} == {*verdict}


@given(st.dictionaries(st.sampled_from(["question", "answer"]), st.text(), min_size=2))
def test_templates(values: dict[str, str]) -> None:
    """Only the names in a template are replaced, once. Other braces stay, and inserted values are not searched for names."""
    template = 'Return {"a": {question}} or {0} {} {{answer}} {other}'

    assert f'Return {{"a": {values["question"]}}} or {{0}} {{}} {{{values["answer"]}}} {{other}}' == fill_template(template, values)


def test_calls() -> None:
    """Calls are numbered, with their arguments as JSON and their problems, one line each."""
    calls = (
        ToolCall("send", {"to": "Zoë", "sum": 5}, 1),
        ToolCall("lost", {}, 2, problem="unknown_tool", detail="there is no tool 'lost'"),
    )

    assert "1. send(to=\"Zoë\", sum=5)\n2. lost() failed: there is no tool 'lost'" == calls_text(calls)
    assert "No tool calls were made." == calls_text(())
    assert "1. a b\n2. c" == numbered(["a\n  b", "c"])
