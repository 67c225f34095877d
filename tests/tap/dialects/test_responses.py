"""Responses: the last event of a stream is the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.records import Json
from pytest_agentbench.tap.dialects.responses import ResponsesReader
from tests.tap.dialects.answer_events import anything, assembled, cuts, fault, kinds, objects, odd, read, read_recorded, read_whole, tokens

CALL: Json = {"id": "fc_1", "type": "function_call", "status": "completed", "arguments": "{}", "call_id": "call_1", "name": "find"}
TEXT: Json = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi", "annotations": []}]}


def response(*output: Any, status: str | None = "completed", **more: Any) -> Json:
    return {"id": "resp_1", "object": "response", "status": status, "output": list(output), **more}


def completed(*output: Any, event: str = "response.completed", **more: Any) -> Json:
    return {"type": event, "response": response(*output, **more)}


def delta(of: str, text: Any = "x", **more: Any) -> Json:
    return {"type": f"response.{of}.delta", "delta": text, "output_index": 0, **more}


def test_a_stream_of_openai() -> None:
    """The final response is the answer. Texts and arguments are output, but the events that open and close them are not."""
    answer = read_recorded(ResponsesReader, "openai-responses.sse")

    found = assembled(answer)
    assert ("resp_1", "completed", "find", 39) == (found["id"], found["status"], found["output"][0]["name"], found["usage"]["total_tokens"])
    said = [chunk.kind for chunk in answer.chunks if chunk.kind != "other"]
    assert ["reasoning", "tool_call", "content", "content", "reasoning", "finish"] == said
    assert [0, 1, 2, 3, 5, 6, 8, 9, 10] == [chunk.at_ns for chunk in answer.chunks if chunk.kind == "other"]
    assert (30, 9, 20, "usage") == tokens(answer)
    assert (True, "completed") == (answer.done, answer.finish_reason)


@st.composite
def answers(draw: st.DrawFn) -> Json:
    """Responses without streaming."""
    said, arguments = draw(st.text(min_size=1, max_size=12)), json.dumps(draw(objects))
    items = [
        {"id": "rs", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": said}]},
        {"id": "msg", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said, "annotations": []}]},
        {"id": "no", "type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": said}]},
        {**CALL, "arguments": arguments},
    ]
    output = draw(st.lists(st.sampled_from(items), min_size=1, max_size=4))
    return response(*output, usage=draw(st.sampled_from([None, {"input_tokens": 4, "output_tokens": 3}])))


@given(data=st.data(), whole=answers())
def test_an_answer_cut_into_deltas(data: st.DataObject, whole: Json) -> None:
    """However an answer is split, it is the final response, and each delta with text is output."""
    events: list[Json] = [{"type": "response.created", "response": response(status="in_progress")}]
    for index, item in enumerate(whole["output"]):
        part = item.get("content", [{"type": "function_call_arguments", "text": item.get("arguments")}])[0]
        pieces = data.draw(cuts(part.get("text") or part.get("refusal") or ""))
        events.append({"type": "response.output_item.added", "output_index": index, "item": {**item, "content": []}})
        events += [delta(part["type"], piece, output_index=index) for piece in pieces]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})

    answer = read(ResponsesReader, *events, {"type": "response.completed", "response": whole})

    assert whole == assembled(answer)
    assert [bool(event.get("delta")) for event in events] == [kind not in ("other", "finish") for kind in kinds(answer)[:-1]]
    assert read_whole(ResponsesReader, whole).error_kind is None


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], ("empty", "the stream ended without a single event")),
        ([delta("output_text")], ("incomplete", "the stream ended without response.completed")),
        ([delta("output_text"), b"[DONE]"], ("incomplete", "the stream ended without response.completed")),
        ([completed()], (None, "")),
        ([completed({"type": "reasoning", "summary": []})], (None, "")),
        ([completed({"type": "message", "content": []})], (None, "")),
        ([completed(status=None)], ("empty", "the stream ended without text and without a tool call")),
        ([completed(event="response.failed", status="failed", error={"message": "too hot"})], ("error_event", "too hot")),
        ([completed(event="response.failed", status="failed", error=None)], ("error_event", "the response failed")),
        ([{"type": "error", "code": "x", "message": "too hot", "param": None}], ("error_event", "too hot")),
        ([{"type": "error", "error": {"message": "too hot"}}], ("error_event", "too hot")),
        ([delta("function_call_arguments", "{")], ("bad_tool_call", "arguments of a tool call came before its name: {")),
        ([delta("function_call_arguments", 5)], ("bad_tool_call", "arguments of a tool call are not a text: 5")),
        ([delta("function_call_arguments", "", output_index="x")], ("bad_tool_call", "the index of a tool call is not a number: 'x'")),
        ([completed({**CALL, "name": ""})], ("bad_tool_call", "a tool call has no name")),
    ],
)
def test_faults(events: list[Any], expected: tuple[str, str]) -> None:
    """Each fault has its kind and a sentence."""
    assert expected == fault(read(ResponsesReader, *events))


@pytest.mark.parametrize(
    "event", [5, {"type": "response.completed"}, {"type": "response.completed", "response": []}, delta("output_text", 5), completed(5)]
)
def test_bad_json(event: Any) -> None:
    """An event that is not of this API is a `bad_json` fault."""
    assert "bad_json" == read(ResponsesReader, event).error_kind


def test_an_event_named_error() -> None:
    """An event named `error` is an error, whatever its data."""
    assert ("error_event", "too hot") == fault(read(ResponsesReader, {"message": "too hot"}, name="error"))


def test_an_incomplete_response() -> None:
    """A truncated response is an answer, even an empty one. Its finish reason is the reason for the truncation."""
    answer = read(
        ResponsesReader, completed(event="response.incomplete", status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    )

    assert ("incomplete", True, "max_output_tokens") == (assembled(answer)["status"], answer.done, answer.finish_reason)


def test_a_final_response_without_its_output() -> None:
    """If the final response has no output, the completed items are used."""
    answer = read(ResponsesReader, delta("output_text"), {"type": "response.output_item.done", "item": TEXT}, completed())

    assert [TEXT] == assembled(answer)["output"]


def test_events_after_the_end_are_ignored() -> None:
    """Events after the end are ignored. Some servers add a [DONE]."""
    answer = read(ResponsesReader, completed(TEXT), b"[DONE]", b"{")

    assert (["finish"], None) == (kinds(answer), answer.error_kind)


def test_answers_that_did_not_stream() -> None:
    """Usage and finish reason are read from an answer without streaming."""
    usage = {"input_tokens": 4, "input_tokens_details": {"cached_tokens": 1}, "output_tokens": 2}
    answer = read_whole(ResponsesReader, response(TEXT, usage=usage))

    assert ((None, ""), "completed", (4, 2, 1, "usage")) == (fault(answer), answer.finish_reason, tokens(answer))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (response(status="queued", background=True), (None, "")),
        (response(TEXT, status=None), (None, "")),
        (response(status="queued"), ("incomplete", "the response is queued")),
        (response(TEXT, status="cancelled"), ("incomplete", "the response is cancelled")),
        (response(), (None, "")),
        (response(status=None), ("empty", "the answer came without text and without a tool call")),
        (response(status="failed", error={"message": "too hot"}), ("error_event", "too hot")),
        (response(status="failed"), ("error_event", "the response failed")),
        (response({**CALL, "name": None}), ("bad_tool_call", "a tool call has no name")),
    ],
)
def test_faults_of_answers_that_did_not_stream(data: Json, expected: tuple[str | None, str]) -> None:
    """An answer without streaming can have the same faults as a stream. A background answer in progress is not a fault."""
    assert expected == fault(read_whole(ResponsesReader, data))


@pytest.mark.parametrize("data", [b"<html>", [], {"output": [5]}])
def test_bad_json_of_answers_that_did_not_stream(data: Any) -> None:
    """A body that is not an answer of this API is a `bad_json` fault."""
    assert "bad_json" == read_whole(ResponsesReader, data).error_kind


names = st.sampled_from(
    [
        *("response." + name for name in ("output_text.delta", "function_call_arguments.delta", "output_item.added")),
        "response.output_item.done",
        "response.completed",
        "response.failed",
        "x",
    ]
)
items = odd(
    type=st.sampled_from(["message", "reasoning", "function_call"]),
    name=st.text(max_size=2),
    content=st.lists(odd(text=st.text(max_size=2))),
)
finals = odd(
    status=st.text(max_size=3),
    output=st.lists(items, max_size=2),
    usage=odd(output_tokens=st.integers()),
    incomplete_details=odd(reason=anything),
)


@given(data=st.lists(odd(type=names, delta=st.text(max_size=3), item=items, response=finals), max_size=4))
def test_any_json(data: list[Any]) -> None:
    """Any JSON value is read as an answer or a fault, and none raises an exception."""
    answer = read(ResponsesReader, *data)

    assert answer.error_kind or json.loads(answer.assemble())
    for each in data:
        whole = read_whole(ResponsesReader, each)
        assert all(isinstance(fact, str | int | None) for fact in (whole.finish_reason, whole.completion_tokens, whole.error))


def test_asking_for_a_stream() -> None:
    """A request that is changed into a streamed one keeps all other fields. Background requests are not streamed."""
    asked = {"model": "m", "input": "Hello"}

    assert {**asked, "stream": True} == json.loads(ResponsesReader.as_stream({**asked, "stream": False}) or b"")
    assert [None, None] == [ResponsesReader.as_stream({**asked, **more}) for more in ({"stream": True}, {"background": True})]
