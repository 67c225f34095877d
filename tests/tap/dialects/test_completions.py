"""The older Completions: a stream of chunks becomes one answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects.completions import CompletionsReader
from tests.tap.dialects.answer_events import (
    anything,
    assembled,
    cuts,
    fault,
    interleaved,
    kinds,
    odd,
    read,
    read_recorded,
    read_whole,
    tokens,
)

HEAD: Json = {"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m"}


def piece(text: Any, finish_reason: str | None = None, index: int = 0, **more: Any) -> Json:
    return {**HEAD, "choices": [{"index": index, "text": text, "finish_reason": finish_reason, **more}]}


def test_a_stream_of_vllm() -> None:
    """Texts and lists of logprobs are joined."""
    answer = read_recorded(CompletionsReader, "vllm-completions.sse")

    logprobs = {"text_offset": [0, 3], "token_logprobs": [-1.5, -0.5], "tokens": [" is", " blue"], "top_logprobs": [None, None]}
    choice = {"index": 0, "text": " is blue", "logprobs": logprobs, "finish_reason": "length", "stop_reason": None}
    usage = {"prompt_tokens": 4, "total_tokens": 6, "completion_tokens": 2}
    head = {"id": "cmpl-2", "object": "text_completion", "created": 1, "model": "Q"}
    assert {**head, "choices": [choice], "usage": usage} == assembled(answer)
    assert (["content", "content", "usage"], "length", True) == (kinds(answer), answer.finish_reason, answer.done)
    assert (4, 2, None, "usage") == tokens(answer)


@st.composite
def answers(draw: st.DrawFn) -> Json:
    reasons = st.sampled_from(["stop", "length"])
    texts = draw(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=3))
    more: Json = draw(st.sampled_from([{}, {"logprobs": None}]))  # Dynamo omits it.
    choices = [{"index": index, "text": text, **more, "finish_reason": draw(reasons)} for index, text in enumerate(texts)]
    return {**HEAD, "choices": choices, **draw(st.sampled_from([{}, {"usage": {"completion_tokens": 3}}]))}


@given(data=st.data(), whole=answers())
def test_an_answer_cut_into_pieces(data: st.DataObject, whole: Json) -> None:
    """However an answer is split into pieces, and in any order of them, the assembled answer is the same."""
    queues = []
    for choice in whole["choices"]:
        more = {name: choice[name] for name in choice.keys() & {"logprobs"}}
        pieces = [piece(text, index=choice["index"], **more) for text in data.draw(cuts(choice["text"]))]
        queues.append([*pieces, piece("", choice["finish_reason"], choice["index"], **more)])
    chunks = data.draw(interleaved(queues))
    usage = [{**HEAD, "choices": [], "usage": whole["usage"]}] if "usage" in whole else []

    answer = read(CompletionsReader, *chunks, *usage)

    assert whole == assembled(answer)
    assert sum(bool(each["choices"][0]["text"]) for each in chunks) == kinds(answer).count("content")
    assert len(queues) == kinds(answer).count("finish")
    assert read_whole(CompletionsReader, whole).error_kind is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([], ("empty", "the stream ended without a single event")),
        ([{**HEAD, "choices": []}], ("no_choices", "the stream ended without a choice")),
        ([piece(""), piece("", "stop")], (None, "")),
        ([piece(""), piece("", "abort")], ("empty", "the stream ended without text and without a tool call")),
        ([piece("", "length")], (None, "")),
        ([piece("x")], ("incomplete", "the stream ended without a finish_reason")),
        ([piece("x", "stop"), {"error": {"message": "too hot"}}], ("error_event", "too hot")),
    ],
)
def test_faults(data: list[Json], expected: tuple[str | None, str]) -> None:
    """Each fault has its kind and a sentence."""
    assert expected == fault(read(CompletionsReader, *data))


def test_an_invalid_text() -> None:
    """A text that is not a string is a `bad_json` fault."""
    assert "bad_json" == read(CompletionsReader, piece(5)).error_kind == read_whole(CompletionsReader, piece(5, "stop")).error_kind


texts = st.text(max_size=3)
all_chunks = odd(
    choices=st.lists(odd(index=st.integers(0, 2), text=texts, finish_reason=texts), max_size=3), usage=odd(completion_tokens=st.integers())
)


@given(data=st.lists(all_chunks | anything, max_size=4))
def test_any_json(data: list[Any]) -> None:
    """Any JSON value is read as an answer or a fault, and none raises an exception."""
    answer = read(CompletionsReader, *data)

    assert answer.error_kind or json.loads(answer.assemble())
    for each in data:
        assert isinstance(read_whole(CompletionsReader, each).error, str)


def test_asking_for_a_stream() -> None:
    """Requests are streamed as in Chat Completions, but not with `best_of`, whose result is known only at the end."""
    asked = {"model": "m", "prompt": ["a", "b"], "echo": True}

    assert {**asked, "stream": True, "stream_options": {"include_usage": True}} == json.loads(CompletionsReader.as_stream(asked) or b"")
    assert CompletionsReader.as_stream({**asked, "best_of": 3}) is None
