"""Anthropic's Messages: content blocks are assembled from their pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects.messages import MessagesReader
from tests.tap.dialects.answer_events import assembled, cuts, fault, kinds, objects, odd, read, read_recorded, read_whole, tokens

HEAD: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "c", "stop_sequence": None}
OPENING: Json = {
    "type": "message_start",
    "message": {**HEAD, "content": [], "stop_reason": None, "usage": {"input_tokens": 3, "output_tokens": 1}},
}
CALL: Json = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {}}
TEXT: Json = {"type": "text", "text": ""}


def opened(block: Any, index: Any = 0) -> Json:
    return {"type": "content_block_start", "index": index, "content_block": block}


def piece(of: str, index: Any = 0, **more: Any) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": {"type": of, **more}}


def typed(text: Any, index: Any = 0) -> Json:
    return piece("input_json_delta", index, partial_json=text)


def ended(stop_reason: str | None = "end_turn", **more: Any) -> Json:
    return {"type": "message_delta", "delta": {"stop_reason": stop_reason, "stop_sequence": None}, "usage": {"output_tokens": 9}, **more}


HI = [OPENING, opened(TEXT), piece("text_delta", text="Hi")]


def test_a_stream_of_anthropic() -> None:
    """Thinking with its signature, text with a citation, and a call with an object as input are assembled."""
    answer = read_recorded(MessagesReader, "anthropic-messages.sse")

    citation = {"type": "char_location", "cited_text": "a", "document_index": 0}
    content = [
        {"type": "thinking", "thinking": "Let me look", "signature": "EqQB"},
        {"type": "text", "text": "Found", "citations": [citation]},
        {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"what": "lamp"}},
    ]
    counts = {"input_tokens": 12, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 100, "output_tokens": 89}
    assert {**HEAD, "content": content, "stop_reason": "tool_use", "usage": {**counts, "service_tier": "standard"}} == assembled(answer)
    said = ["role", "reasoning", "reasoning", "content", "tool_call", "tool_call", "tool_call", "finish"]
    assert said == [kind for kind in kinds(answer) if kind != "other"]
    assert [3, 4, 8, 11, 13, 14] == [chunk.at_ns for chunk in answer.chunks if chunk.kind in ("reasoning", "content", "tool_call")]
    assert (117, 89, 100, "usage") == tokens(answer)
    assert (True, "tool_use") == (answer.done, answer.finish_reason)


@st.composite
def answers(draw: st.DrawFn) -> Json:
    """Messages without streaming."""
    text, citation = st.text(min_size=1, max_size=12), {"type": "char_location", "cited_text": "a"}
    blocks = st.one_of(
        st.builds(lambda said: {"type": "text", "text": said}, text),
        st.builds(lambda said, count: {"type": "text", "text": said, "citations": [citation] * count}, text, st.integers(0, 2)),
        st.builds(lambda said, signature: {"type": "thinking", "thinking": said, "signature": signature}, text, text),
        st.builds(lambda value, kind: {**CALL, "type": kind, "input": value}, objects, st.sampled_from(["tool_use", "server_tool_use"])),
        st.just({"type": "redacted_thinking", "data": "EmwK"}),
    )
    usage: Json = draw(st.sampled_from([{}, {"cache_read_input_tokens": 4}, {"service_tier": "standard"}]))
    return {
        **HEAD,
        "content": draw(st.lists(blocks, min_size=1, max_size=4)),
        "stop_reason": draw(st.sampled_from(["end_turn", "tool_use", "max_tokens"])),
        "usage": {"input_tokens": 3, "output_tokens": 9, **usage},
    }


def pieces(draw: Any, block: Json, index: int) -> list[Json]:
    """The events in which a server might send a block."""
    if "input" in block:
        texts = draw(cuts(json.dumps(block["input"]))) if block["input"] or draw(st.booleans()) else []
        return [opened({**block, "input": {}}, index), *(typed(text, index) for text in texts)]
    if "thinking" in block:
        said = [piece("thinking_delta", index, thinking=text) for text in draw(cuts(block["thinking"]))]
        signed = piece("signature_delta", index, signature=block["signature"])
        return [opened({**block, "thinking": "", "signature": ""}, index), *said, signed]
    if "text" in block:
        cited = [piece("citations_delta", index, citation=citation) for citation in block.get("citations", ())]
        said = [piece("text_delta", index, text=text) for text in draw(cuts(block["text"]))]
        empty: Json = {"citations": []} if "citations" in block else {}
        return [opened({"type": "text", "text": "", **empty}, index), *said, *cited]
    return [opened(block, index)]


@given(data=st.data(), whole=answers())
def test_an_answer_cut_into_deltas(data: st.DataObject, whole: Json) -> None:
    """However an answer is split into pieces, the assembled answer is the same."""
    counts = whole["usage"]
    start = {**WHOLE, "content": [], "stop_reason": None, "usage": {**counts, "output_tokens": 1}}
    events: list[Json] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(whole["content"]):
        events += [*pieces(data.draw, block, index), {"type": "content_block_stop", "index": index}]
    cumulative = {"output_tokens": counts["output_tokens"], "cache_read_input_tokens": counts.get("cache_read_input_tokens")}
    usage = {name: count for name, count in cumulative.items() if name in counts}

    answer = read(MessagesReader, *events, ended(whole["stop_reason"], usage=usage), {"type": "message_stop"})

    assert whole == assembled(answer)
    assert 3 + counts.get("cache_read_input_tokens", 0) == answer.prompt_tokens
    assert read_whole(MessagesReader, whole).error_kind is None


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("role", OPENING),
        ("other", {"type": "ping"}),
        ("other", opened(TEXT)),
        ("content", opened({"type": "text", "text": "x"})),
        ("reasoning", opened({"type": "thinking", "thinking": "x"})),
        ("tool_call", opened(CALL)),
        ("tool_call", opened({**CALL, "type": "mcp_tool_use"})),
        ("other", opened({"type": "web_search_tool_result", "content": [{"type": "web_search_result"}]})),
        ("other", {"type": "content_block_stop", "index": 0}),
        ("other", ended(None)),
        ("finish", ended()),
        ("other", {"type": "message_stop"}),
        ("other", {"type": "something new"}),
    ],
)
def test_kinds(kind: str, event: Json) -> None:
    """Only text, thinking and calls are output."""
    assert [kind] == kinds(read(MessagesReader, event))


@pytest.mark.parametrize(
    ("kind", "block", "event"),
    [
        ("content", TEXT, piece("text_delta", text="x")),
        ("other", TEXT, piece("text_delta", text="")),
        ("other", TEXT, piece("citations_delta", citation={})),
        ("reasoning", {"type": "thinking"}, piece("thinking_delta", thinking="x")),
        ("other", {"type": "thinking"}, piece("signature_delta", signature="x")),
        ("tool_call", CALL, typed("{")),
        ("other", CALL, typed("")),
        ("other", {"type": "x"}, piece("something_new", text="x")),
    ],
)
def test_kinds_of_deltas(kind: str, block: Json, event: Json) -> None:
    """Empty pieces, citations and signatures are not output."""
    assert kind == kinds(read(MessagesReader, opened(block), event))[-1]


def test_whatever_else_comes_is_kept() -> None:
    """Unknown fields and unknown blocks are kept. The counts at the end replace earlier ones."""
    result = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "web_search_result", "url": "u"}]}
    start = {**OPENING["message"], "container": {"id": "c"}, "usage": {"input_tokens": 0, "output_tokens": 0, "inference_geo": "eu"}}
    last = ended(usage={"input_tokens": 7, "output_tokens": 9, "inference_geo": None}, context_management={"applied_edits": []})
    compaction = [
        opened({"type": "compaction", "content": ""}, 1),
        piece("compaction_delta", 1, content="so"),
        piece("compaction_delta", 1, content=" far"),
    ]

    found = assembled(read(MessagesReader, {"type": "message_start", "message": start}, opened(result), *compaction, last))

    assert [result, {"type": "compaction", "content": "so far"}] == found["content"]
    assert ({"id": "c"}, {"applied_edits": []}) == (found["container"], found["context_management"])
    assert {"input_tokens": 7, "output_tokens": 9, "inference_geo": "eu"} == found["usage"]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], ("empty", "the stream ended without a single event")),
        (HI, ("incomplete", "the stream ended without a stop_reason")),
        ([*HI, {"type": "message_stop"}], ("incomplete", "the stream ended without a stop_reason")),
        ([OPENING, ended()], (None, "")),
        ([OPENING, ended("tool_use")], ("empty", "the stream ended without text and without a tool call")),
        ([OPENING, opened(TEXT), ended()], (None, "")),
        ([OPENING, opened({"type": "thinking", "thinking": ""}), ended()], (None, "")),
        ([*HI, {"type": "error", "error": {"type": "overloaded_error", "message": "too hot"}}], ("error_event", "too hot")),
        ([opened({**CALL, "name": ""})], ("bad_tool_call", "a tool call has no valid name: ''")),
        ([opened(CALL), typed(5)], ("bad_tool_call", "the input of a tool call is not a text: 5")),
        ([opened(TEXT), typed("{")], ("bad_tool_call", "input of a tool call arrived outside of a tool call: {")),
        ([typed("{")], ("bad_tool_call", "a piece of a block arrived before the block was opened: 0")),
        ([opened(CALL), typed("{", "0")], ("bad_tool_call", "a piece of a block arrived before the block was opened: '0'")),
        ([opened(CALL), typed('{"a": '), ended()], (None, "")),
        ([opened(CALL), typed("[]"), ended()], (None, "")),
        ([piece("text_delta", text="x")], ("bad_json", "a piece of a block arrived before the block was opened: 0")),
    ],
)
def test_faults(events: list[Any], expected: tuple[str | None, str]) -> None:
    """Each fault has its kind and a sentence. Empty complete answers, and input that is not JSON, are not faults of the server."""
    assert expected == fault(read(MessagesReader, *events))


@pytest.mark.parametrize(
    "event", [5, {"type": "message_start"}, opened(5), opened(TEXT, "0"), {"type": "content_block_delta", "index": 0}, ended(usage=5)]
)
def test_bad_json(event: Any) -> None:
    """An event that is not of this API is a `bad_json` fault."""
    assert "bad_json" == read(MessagesReader, opened(TEXT), event).error_kind


def test_invalid_texts() -> None:
    """A text that is not a string is a `bad_json` fault."""
    assert "bad_json" == read(MessagesReader, opened(TEXT), piece("text_delta", text=5)).error_kind


@pytest.mark.parametrize("stop_reason", ["max_tokens", "model_context_window_exceeded", "refusal"])
def test_truncated_answers(stop_reason: str) -> None:
    """Truncated answers may be empty. A truncated call keeps the input of its first event."""
    assert [] == assembled(read(MessagesReader, OPENING, ended(stop_reason)))["content"]
    assert [CALL] == assembled(read(MessagesReader, OPENING, opened(CALL), typed('{"a"'), ended(stop_reason)))["content"]


def test_the_end_mark() -> None:
    """A stream ends at `message_stop`, and later events are ignored. Without it, a stream with a stop reason is complete."""
    marked, unmarked = read(MessagesReader, *HI, ended(), {"type": "message_stop"}, b"{"), read(MessagesReader, *HI, ended())

    assert [(True, None), (False, None)] == [(answer.done, answer.error_kind) for answer in (marked, unmarked)]


def test_tokens_of_a_stream_that_was_cut() -> None:
    """The count in the first event is not that of the answer. In a truncated stream, output chunks are counted instead."""
    assert (3, 1, None, "chunks") == tokens(read(MessagesReader, *HI))


WHOLE: Json = {
    **HEAD,
    "content": [{"type": "text", "text": "Hi"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 2},
}


def test_answers_that_did_not_stream() -> None:
    """Usage and finish reason are read from an answer without streaming."""
    answer = read_whole(MessagesReader, WHOLE)

    assert ((None, ""), "end_turn", (3, 2, None, "usage")) == (fault(answer), answer.finish_reason, tokens(answer))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"type": "error", "error": {"type": "x", "message": "too hot"}}, ("error_event", "too hot")),
        ({**WHOLE, "stop_reason": None}, ("incomplete", "the answer came without a stop_reason")),
        ({**WHOLE, "content": []}, (None, "")),
        ({**WHOLE, "content": [], "stop_reason": "tool_use"}, ("empty", "the answer came without text and without a tool call")),
        ({**WHOLE, "content": [{"type": "tool_use", "input": {}}]}, ("bad_tool_call", "a tool call has no valid name: None")),
    ],
)
def test_faults_of_answers_that_did_not_stream(data: Json, expected: tuple[str | None, str]) -> None:
    """An answer without streaming can have the same faults as a stream."""
    assert expected == fault(read_whole(MessagesReader, data))


@pytest.mark.parametrize("data", [b"<html>", [], {"content": [5]}])
def test_bad_json_of_answers_that_did_not_stream(data: Any) -> None:
    """A body that is not an answer of this API is a `bad_json` fault."""
    assert "bad_json" == read_whole(MessagesReader, data).error_kind


events = st.sampled_from(["message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop", "x"])
types = st.sampled_from(["text", "thinking", "tool_use", "text_delta", "thinking_delta", "input_json_delta", "citations_delta", "x"])
blocks = odd(
    type=types,
    text=st.text(max_size=3),
    name=st.text(max_size=2),
    input=odd(),
    partial_json=st.text(max_size=2),
    stop_reason=st.text(max_size=2),
)


@given(
    data=st.lists(
        odd(
            type=events, index=st.integers(0, 1), delta=blocks, content_block=blocks, message=blocks, usage=odd(output_tokens=st.integers())
        ),
        max_size=5,
    )
)
def test_any_json(data: list[Any]) -> None:
    """Any JSON value is read as an answer or a fault, and none raises an exception."""
    answer = read(MessagesReader, *data)

    assert answer.error_kind or json.loads(answer.assemble())
    for each in data:
        whole = read_whole(MessagesReader, each)
        assert all(isinstance(fact, str | int | None) for fact in (whole.finish_reason, whole.completion_tokens, whole.error))


def test_asking_for_a_stream() -> None:
    """A request that is changed into a streamed one keeps all other fields."""
    asked = {"model": "c", "max_tokens": 5, "messages": []}

    assert {**asked, "stream": True} == json.loads(MessagesReader.as_stream(asked) or b"")
    assert MessagesReader.as_stream({**asked, "stream": True}) is None
