"""The policy `lexical` as a judge: it fills in known forms by shared words, and any other schema with the smallest value."""

from __future__ import annotations

import json
from typing import Any

import fastjsonschema
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.agents.self_evaluating import EVALUATION, VERDICT
from pytest_agentbench.engine.lexical.policy import Lexical, minimal
from pytest_agentbench.llm.judge import Form, fill_template, numbered, read
from pytest_agentbench.records import Json
from pytest_agentbench.scorers.action_completion import PROMPT, _form
from tests.engine.conftest import Ask

QUESTION = "My card was stolen, please block it. How much is in my savings account? Where is a branch in Denver?"


def answer(prompt: str, form: Form) -> Json:
    """Returns the policy's answer to a form, parsed like a judge's answer."""
    messages = [{"role": "user", "content": prompt}]
    return read(Lexical().reply({"messages": messages, "response_format": form.response_format}).text, form)


def verdict(calls: str, text: str = "") -> Json:
    return answer(
        fill_template(EVALUATION, {"question": QUESTION, "tools": "- find_branch: A branch.", "tool_calls": calls, "answer": text}), VERDICT
    )


@pytest.mark.parametrize(
    ("calls", "text", "is_sufficient", "confidence", "missing"),
    [
        ('1. block_card()\n2. get_account_balance(kind="savings")\n3. find_branch()', "", True, 1.0, 0),
        ("1. block_card()\n2. get_account_balance()", "", True, 0.67, 1),
        ("1. block_card()", "", False, 0.67, 2),
        ("1. block_card()", "Your savings are 5. Branches are closed.", True, 1.0, 0),
        ("No tool calls were made.", "", False, 1.0, 3),
    ],
)
def test_a_verdict(calls: str, text: str, is_sufficient: bool, confidence: float, missing: int) -> None:
    """Work is sufficient if at least half of the sentences in the request share a word with it.

    The other sentences are the missing steps.
    """
    said = verdict(calls, text)

    assert (is_sufficient, confidence, missing) == (said["is_sufficient"], said["confidence"], len(said["missing_steps"]))
    assert said == verdict(calls, text)
    assert bool(missing) == bool(said["suggestions"])


def test_goals() -> None:
    """A goal is completed if half of its words are in the calls and the answer."""
    goals = ["Block the stolen card", "Hear the savings balance", "Find a branch in Denver", "?"]
    values = {
        "question": QUESTION,
        "goals": numbered(goals),
        "tool_calls": '1. block_card(why="stolen")\n2. find_branch()',
        "answer": "Done.",
    }
    said = answer(fill_template(PROMPT, values), _form(len(goals)))

    assert [True, False, True, False] == [said[f"goal_{number}"]["completed"] for number in range(1, 5)]


LEAVES = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "minLength": 3},
        {"type": "integer", "minimum": 4},
        {"type": "number", "maximum": -2},
        {"type": "integer", "exclusiveMinimum": 7, "maximum": 9},
        {"type": "boolean"},
        {"type": "null"},
        {"type": ["string", "null"]},
        {"const": 0},
        {"enum": [None, 1]},
        {},
    ]
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda items, least: {"type": "array", "items": items, "minItems": least}, inner, st.integers(0, 2)),
        st.builds(lambda each: {"anyOf": each}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(
            lambda each, count: {"type": "object", "properties": each, "required": [*each][:count], "additionalProperties": False},
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.integers(0, 3),
        ),
    ),
    max_leaves=6,
)


@given(SCHEMAS)
def test_other_schemas(schema: Json) -> None:
    """The answer to any other schema is the smallest value that fits."""
    fastjsonschema.validate(schema, minimal(schema, schema))


def test_schemas_that_refer_to_others() -> None:
    """References are followed, up to a maximum depth for schemas that contain themselves."""
    schema: Json = {
        "$ref": "#/$defs/node",
        "$defs": {"node": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
    }
    endless: Json = {"type": "object", "properties": {"again": {"$ref": "#"}}, "required": ["again"]}

    assert {"n": 0} == minimal(schema, schema)
    assert '{"again": {"again"' == json.dumps(minimal(endless, endless))[:18]


def test_on_the_wire(lexical: str, ask: Ask) -> None:
    """A request with a schema gets JSON, with or without tools. A request for text gets text."""
    wanted = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"n": {"const": 5}}, "required": ["n"]}},
    }
    answers = [content(ask(lexical, "Hello", **more)) for more in ({"response_format": wanted}, {"response_format": {"type": "text"}}, {})]

    assert {"n": 5} == json.loads(answers[0])
    assert answers[1] == answers[2] != answers[0]


@pytest.mark.parametrize("wanted", [5, {"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": []}}])
def test_an_invalid_format(lexical: str, ask: Ask, wanted: Any) -> None:
    """An invalid response_format is refused, and the error names the parameter."""
    refused = ask(lexical, "Hello", response_format=wanted)

    assert (400, "response_format") == (refused.status_code, refused.json()["error"]["param"])


def content(answered: httpx.Response) -> str:
    return str(answered.json()["choices"][0]["message"]["content"])
