"""Parsing of ReAct answers: no parser faults of other agents, and no text that crashes the parser."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_agentbench.agents.react import (
    AT_LINE,
    EMPTY_ANSWER,
    MISSING_ACTION,
    MISSING_ANSWER,
    MISSING_INPUT,
    Action,
    FinalAnswer,
    ReactTextError,
    read_answer,
)
from pytest_agentbench.records import Json
from tests.lib.test_model_texts_almost_json import OBJECTS

CYCLE = 'Thought: look first\nAction: find\nAction Input: {"item": "lamp"}'


@pytest.mark.parametrize(
    ("text", "tool", "given"),
    [
        (CYCLE, "find", '{"item": "lamp"}'),
        ('Action: find\nAction Input: {"item": "the observation deck"}', "find", '{"item": "the observation deck"}'),
        ('Action: find\nAction Input: {"item": "a | Observation: b"}', "find", '{"item": "a | Observation: b"}'),
        ('Action: note\nAction Input: {"note": "final answer: no"}', "note", '{"note": "final answer: no"}'),
        ('Action: note\nAction Input: {"note": "Thought: Action: x"}', "note", '{"note": "Thought: Action: x"}'),
        ('**Thought:** hm\n**Action:** find\n**Action Input:** {"item": 1}', "find", '{"item": 1}'),
        ('**Action**: `find`\n**Action Input**: `{"item": 1}`', "find", '{"item": 1}'),
        ('**Action: find**\n**Action Input: {"item": 1}**', "find", '{"item": 1}'),
        ('### Action: "find"\n- Action Input: {"item": 1}', "find", '{"item": 1}'),
        ("Action 1: find\nAction 1 Input 1: {}", "find", "{}"),
        ("Thought 2: hm\nAction 2: find\nAction Input 2: {}", "find", "{}"),
        ("ACTION: find\naction input : {}", "find", "{}"),
        ('Action: find\nInput: {"item": 1}', "find", '{"item": 1}'),
        ("Action: find\nAction Input: None", "find", ""),
        ("Action: find\nAction Input: **null**", "find", ""),
        ("Action: find\nAction Input:", "find", ""),
        ("Action:\nfind\nAction Input:\n{}", "find", "{}"),
        ("Action: find\nAction Input: {'item': 'lamp'}", "find", "{'item': 'lamp'}"),
        ("Action: find\nAction Input: {'item': 'it's'}\nObservation: Ann's", "find", "{'item': 'it's'}"),
        ('Action: find\nAction Input: {"item": 1} because it is new', "find", '{"item": 1}'),
        ('Action: find\nAction Input: ```json\n{"item": 1}\n```\nthat is it', "find", '{"item": 1}'),
        ('Action: find\nAction Input: {"item": 1', "find", '{"item": 1'),
        ("Action: find\nAction Input: a lamp\nObservation: yes", "find", "a lamp"),
        ("Action: find\nAction Input: {}\nObservation: 1\nThought: b\nAction: order\nAction Input: {}", "find", "{}"),
        ("Action: find\nAction Input: {}\nObservation: 1\nFinal Answer: done", "find", "{}"),
        ("Thought: I know the final answer: find it\nAction: find\nAction Input: {}", "find", "{}"),
        ("Thought: my next action: look\nAction: find\nAction Input: {}", "find", "{}"),
        ('Thought: yes Action: find Action Input: {"item": 1}', "find", '{"item": 1}'),
        ("<think>Action: order\nAction Input: {}</think>\nAction: find\nAction Input: {}", "find", "{}"),
        ("Thought: a\n<THINK>\nAction: order\nAction Input: {}\n</THINK>\nAction: find\nAction Input: {}", "find", "{}"),
        ("Action: order\nAction Input: {}\nhm, no\n</think>\n\nAction: find\nAction Input: {}", "find", "{}"),
        ('Action: note\nAction Input: {"note": "<think>x</think>"}', "note", '{"note": "<think>x</think>"}'),
    ],
)
def test_actions(text: str, tool: str, given: str) -> None:
    """Weakness 8 of the NeMo toolkit: the first action is parsed, however it is formatted. Labels inside its JSON are ignored."""
    parsed = read_answer(text)

    assert isinstance(parsed, Action)
    assert (tool, given) == (parsed.tool, parsed.input)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Thought: I now know the final answer\nFinal Answer: There is one.", "There is one."),
        ("**Final Answer:** ok", "ok"),
        ("**Final Answer**: ok", "ok"),
        ("**Final Answer: ok**", "ok"),
        ("Final Answer: **42** dollars", "**42** dollars"),
        ("Final answer : yes", "yes"),
        ("Thought: I now know. Final Answer: yes", "yes"),
        ("Final Answer: two lines\n\nAction: none is needed", "two lines\n\nAction: none is needed"),
        ("Thought: done\nAction: None needed\nFinal Answer: yes", "yes"),
        ("<think>Final Answer: no</think>Final Answer: yes", "yes"),
        ("There is one.", "There is one."),
        ("There is one.\nQuestion: shall I order it?", "There is one.\nQuestion: shall I order it?"),
    ],
)
def test_final_answers(text: str, answer: str) -> None:
    """A final answer is the text after the label, without its bold markers, or a text without any label."""
    assert FinalAnswer(answer) == read_answer(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", EMPTY_ANSWER),
        (" \n", EMPTY_ANSWER),
        ("<think>What now?", EMPTY_ANSWER),
        ("<think>What now?</think>", EMPTY_ANSWER),
        ("Thought: I should look", MISSING_ACTION),
        ("Action:\nAction Input: {}", MISSING_ACTION),
        ("Action: find", MISSING_INPUT),
        ('Action: find({"item": 1})', MISSING_INPUT),
        ("Action: find\nObservation: 3\nAction Input: {}", MISSING_INPUT),
        ("Final Answer:", MISSING_ANSWER),
        ("**Final Answer:** ", MISSING_ANSWER),
    ],
)
def test_incomplete_answers(text: str, error: str) -> None:
    """The error for an incomplete answer says what is missing."""
    with pytest.raises(ReactTextError) as caught:
        read_answer(text)

    assert error == str(caught.value)


def test_invented_results_are_dropped() -> None:
    """Text after the first action is dropped, so the model does not see results that it invented."""
    parsed = read_answer(f"<think>hm</think>\n{CYCLE} I guess\nObservation: found\nFinal Answer: yes")

    assert isinstance(parsed, Action)
    assert CYCLE == parsed.text


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,15}", fullmatch=True)
LABELS = ["Thought:", "Action:", "Action Input:", "Observation:", "Final Answer:", "**Action:**", "Action 1:", "Input:", "Question:"]
PIECES = st.sampled_from([*LABELS, "\n", " ", "{", "}", '"', "'", "<think>", "</think>", "```", "find", "None", "*", "_", "#", "1"])
ANY_TEXT = st.text() | st.lists(PIECES | st.text(max_size=3), max_size=25).map("".join)


@given(ANY_TEXT)
def test_any_text(text: str) -> None:
    """The parser raises only its own error for any text, and never returns an empty tool or answer."""
    try:
        parsed = read_answer(text)
    except ReactTextError:
        return

    assert parsed.tool and parsed.tool in text if isinstance(parsed, Action) else parsed.text and parsed.text in text


@pytest.mark.parametrize("piece", [" ", "\n", "*", "* ", "Action:", "action ", "action 1", "{", "<think>", "final answer ", '\\"', "```\n"])
def test_a_model_that_stutters(piece: str) -> None:
    """Parsing a text with endless repetitions takes time proportional to its length."""
    with pytest.raises(ReactTextError):
        read_answer(f"Thought: hm\nAction: {piece * 30_000}")


@given(
    thought=ANY_TEXT,
    tool=NAMES,
    arguments=OBJECTS,
    rest=ANY_TEXT,
    form=st.sampled_from(
        [
            ("Action: %s\nAction Input: ", ""),
            ("**Action:** %s\n**Action Input:** ", ""),
            ("**Action**: `%s`\n**Action Input**: `", "`"),
            ("Action 3: %s\nAction 3 Input 3: ", ""),
            ("action : %s \r\n\naction input :\n", ""),
            ("Action: %s\nAction Input: ```json\n", "\n```"),
            ("Action: %s Input: ", ""),
        ]
    ),
    indent=st.sampled_from([None, 2]),
)
def test_a_well_formed_cycle_is_read_unchanged(
    thought: str, tool: str, arguments: Json, rest: str, form: tuple[str, str], indent: int | None
) -> None:
    """The action of a well-formed cycle is read as it was written, for any arguments and any surrounding text.

    The surrounding text contains no labels before the action, which would be another action, and no tags of thoughts.
    """
    assume("think>" not in (thought + rest).lower())
    assume(not AT_LINE.search(f"{thought}\n"))
    written = json.dumps(arguments, indent=indent)
    parsed = read_answer(f"{thought}\n{form[0] % tool}{written}{form[1]}{rest}")

    assert isinstance(parsed, Action)
    assert (tool, written) == (parsed.tool, parsed.input)
