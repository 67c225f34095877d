"""A stream of chunks becomes one answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.records import Json
from pytest_agentbench.tap.assemble import Answer, read_stream, read_whole
from pytest_agentbench.tap.stream import Event

HEAD: Json = {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m"}

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def odd(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects that have some of these fields, any of which may hold anything; or no object at all."""
    return st.fixed_dictionaries({}, optional={name: value | anything for name, value in fields.items()}) | anything


texts, functions = st.text(max_size=3), odd(name=st.text(max_size=3), arguments=st.text(max_size=3))
pieces = odd(index=st.integers(0, 2), id=texts, type=texts, function=functions)
all_deltas = odd(
    role=texts, content=texts, reasoning=texts, refusal=texts, tool_calls=st.lists(pieces, max_size=3), function_call=functions
)
choices = odd(
    index=st.integers(0, 2), delta=all_deltas, message=anything, text=texts, finish_reason=texts, logprobs=odd(content=st.lists(anything))
)
all_usages = odd(completion_tokens=st.integers(), prompt_tokens_details=odd(cached_tokens=st.integers()))
all_chunks = odd(id=texts, choices=st.lists(choices, max_size=3), usage=all_usages, object=texts, error=st.none())


def read(*data: Any, name: str = "message") -> Answer:
    return read_stream(
        [Event(place, True, name, each if isinstance(each, bytes) else json.dumps(each).encode()) for place, each in enumerate(data)]
    )


def deltas(*deltas: Json, **choice: Any) -> list[Json]:
    """Chunks of one choice, the last of which ends it."""
    last = {**HEAD, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop", **choice}]}
    return [{**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas] + [last]


def message(*parts: Json) -> Json:
    answer = read(*deltas(*parts))

    assert (None, "") == (answer.error_kind, answer.error)
    whole: Json = json.loads(answer.assemble())["choices"][0]["message"]
    return whole


def call(index: int | None, id: str | None = None, name: str | None = None, arguments: str | None = None, **more: Any) -> Json:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    piece = {key: value for key, value in (("index", index), ("id", id)) if value is not None}
    return {"tool_calls": [{**piece, "function": function, **more}]}


def calls(*pieces: Json) -> list[tuple[Any, ...]]:
    found = message({"role": "assistant", "content": None}, *pieces)["tool_calls"]
    assert all({"id", "type", "function"} == each.keys() for each in found)
    return [(each["id"], each["type"], each["function"]["name"], each["function"]["arguments"]) for each in found]


def test_text() -> None:
    """Pieces of text are joined; what no piece mentions is null, as a server that does not stream has it."""
    found = message({"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}, {"content": None})

    assert {"role": "assistant", "content": "Hello", "refusal": None} == found


def test_every_kind_of_text() -> None:
    """Reasoning, under either name, refusal and fields nobody foresaw are kept, each by itself; lists and objects continue."""
    found = message(
        {"role": "assistant", "reasoning": "a"},
        {"reasoning": "b", "reasoning_content": "c"},
        {"reasoning_content": "d"},
        {"refusal": "no"},
        {"refusal": "!"},
        {"annotations": [1], "audio": {"id": "x", "data": "p"}},
        {"annotations": [2], "audio": {"data": "q"}},
    )

    assert {
        "role": "assistant",
        "content": None,
        "reasoning": "ab",
        "reasoning_content": "cd",
        "refusal": "no!",
        "annotations": [1, 2],
        "audio": {"id": "x", "data": "pq"},
    } == found


def test_parallel_tool_calls() -> None:
    """Pieces belong to the call with their index, in whatever order they come; the first id counts."""
    found = calls(
        call(1, "b", "second", ""),
        call(0, "a", "first", '{"x"'),
        call(1, arguments="[1"),
        call(0, "other", arguments=": 1}"),
        call(1, arguments="]"),
    )

    assert [("a", "function", "first", '{"x": 1}'), ("b", "function", "second", "[1]")] == found


def test_tool_calls_without_a_useful_index() -> None:
    """Servers that leave the index out, or write 0 for all calls, open each with a name and an id of its own."""
    expected = [("a", "function", "first", "{}"), ("b", "function", "second", "[]")]

    assert expected == calls(call(None, "a", "first", "{}"), call(None, "b", "second", "["), call(None, arguments="]"))
    assert expected == calls(call(0, "a", "first", "{}"), call(0, "b", "second", "["), call(0, arguments="]"))
    assert expected[:1] == calls(call(0, "a", "first", "{"), call(0, "a", "first", "}"))


def test_tool_calls_of_other_shapes() -> None:
    """The old function_call is put together, arguments that are no text become it, and text beside calls stays."""
    old = message(
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}}, {"function_call": {"arguments": "{}"}}
    )

    assert {"name": "f", "arguments": "{}"} == old["function_call"]
    assert [("a", "function", "f", '{"x":1}')] == calls(
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": 1}}}]}
    )
    assert "Well" == message({"content": "Well"}, call(0, "a", "f", "{}"))["content"]
    assert message({"content": ""}, call(0, "a", "f", "{}"))["content"] is None
    assert "custom" == message(call(0, "a", "f", "{}", type="custom"))["tool_calls"][0]["type"]


def test_several_choices_logprobs_and_head() -> None:
    """Choices come in the order of their index, logprobs are lists that continue, and the head is what a chunk said first."""
    one = {"index": 1, "delta": {"content": "B"}, "logprobs": {"content": [{"token": "B"}], "refusal": None}, "finish_reason": None}
    two = {"index": 0, "delta": {"content": "A"}, "finish_reason": "length", "stop_reason": 5}
    three = {"index": 1, "delta": {"content": "C"}, "logprobs": {"content": [{"token": "C"}], "refusal": None}, "finish_reason": "stop"}
    answer = read({**HEAD, "system_fingerprint": None, "choices": [one]}, {**HEAD, "system_fingerprint": "fp", "choices": [two, three]})

    def choice(index: int, text: str, finish_reason: str, logprobs: Json | None, **more: Any) -> Json:
        said = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": said, "logprobs": logprobs, "finish_reason": finish_reason, **more}

    logprobs = {"content": [{"token": "B"}, {"token": "C"}], "refusal": None}
    choices = [choice(0, "A", "length", None, stop_reason=5), choice(1, "BC", "stop", logprobs)]
    assert {**HEAD, "object": "chat.completion", "system_fingerprint": "fp", "choices": choices} == json.loads(answer.assemble())


def test_usage() -> None:
    """The last usage counts, whether it comes with a choice or alone; counts that are none are not made up."""
    first, *rest = deltas({"content": "A"})
    answer = read(
        {**first, "usage": {"completion_tokens": 1}},
        *rest,
        {**HEAD, "choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": "x"}},
    )

    assert {"completion_tokens": 2, "prompt_tokens": "x"} == json.loads(answer.assemble())["usage"]
    assert (2, None, None) == (
        answer.count("completion_tokens"),
        answer.count("prompt_tokens"),
        answer.count("prompt_tokens_details", "cached_tokens"),
    )
    assert "usage" not in json.loads(read(*deltas({"content": "A"})).assemble())


@pytest.mark.parametrize(
    ("kind", "chunk"),
    [
        ("role", deltas({"role": "assistant", "content": ""})[0]),
        ("role", deltas({"role": "assistant"})[0]),
        ("content", deltas({"role": "assistant", "content": "x"})[0]),
        ("content", deltas({"refusal": "x"})[0]),
        ("reasoning", deltas({"role": "assistant", "reasoning": "x", "content": ""})[0]),
        ("reasoning", deltas({"reasoning_content": "x"})[0]),
        ("content", deltas({"reasoning": "x", "content": "y"})[0]),
        ("tool_call", deltas(call(0, "a", "f", ""))[0]),
        ("tool_call", deltas(call(0, arguments="{"))[0]),
        ("tool_call", deltas({"function_call": {"name": "f"}})[0]),
        ("other", deltas(call(0, "a", arguments=""))[0]),
        ("other", deltas({"tool_calls": []})[0]),
        ("other", deltas({"content": ""})[0]),
        ("other", deltas()[0]),
        ("other", {**HEAD, "choices": []}),
        ("usage", {**HEAD, "choices": [], "usage": {"completion_tokens": 1}}),
        ("content", {**deltas({"content": "x"})[0], "usage": {"completion_tokens": 1}}),
        ("content", {**HEAD, "choices": [{"index": 0, "text": "x", "finish_reason": None}]}),
        ("other", {**HEAD, "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}),
    ],
)
def test_kinds(kind: str, chunk: Json) -> None:
    """Only what a reader would see is output: roles, empty texts and empty pieces of calls are not."""
    answer = read(chunk)

    assert [kind] == [each.kind for each in answer.chunks]


@pytest.mark.parametrize(
    ("data", "kind", "sentence"),
    [
        ([], "empty", "the stream ended without a single event"),
        ([b"[DONE]"], "empty", "the stream ended without a single event"),
        ([{**HEAD, "choices": []}], "empty", "the stream ended without a choice"),
        (deltas({"content": "x"})[:1], "incomplete", "the stream ended without a finish_reason"),
        ([b"{"], "bad_json", "an event is no chunk of an answer (Expecting property name"),
        ([b""], "bad_json", "an event is no chunk of an answer"),
        ([[1]], "bad_json", "an event is no chunk of an answer (list where dict should be): [1]"),
        ([{"choices": {"a": 1}}], "bad_json", "an event is no chunk of an answer (dict where list should be)"),
        ([{"choices": [1]}], "bad_json", "an event is no chunk of an answer (int where dict should be)"),
        ([{"choices": [{"index": []}]}], "bad_json", "an event is no chunk of an answer (list where int should be)"),
        ([{"error": {"message": "too hot", "code": 5}}], "error_event", "too hot"),
        ([{"error": "too hot"}], "error_event", "too hot"),
        ([*deltas({"content": "x"}), {"error": {"code": 5}}], "error_event", "{'code': 5}"),
        ([{"object": "error", "message": "too hot"}], "error_event", "too hot"),
    ],
)
def test_faults(data: list[Any], kind: str, sentence: str) -> None:
    """A fault is named, with what was said about it."""
    answer = read(*data)

    assert kind == answer.error_kind
    assert sentence in answer.error


@pytest.mark.parametrize(("data", "sentence"), [({"message": "too hot"}, "too hot"), (b"too hot", "too hot"), ([1], "[1]")])
def test_events_named_error(data: Any, sentence: str) -> None:
    """An event with the name `error` is one, whatever it holds."""
    answer = read(data, name="error")

    assert ("error_event", sentence) == (answer.error_kind, answer.error)


def test_what_comes_behind_done_is_not_read() -> None:
    """`[DONE]` ends a stream."""
    answer = read(*deltas({"content": "x"}), b"[DONE]", b"{")

    assert answer.error_kind is None


def test_half_an_emoji() -> None:
    """Servers that count in UTF-16 cut an emoji in two; its halves are kept as they are."""
    answer = read(
        b'{"choices": [{"delta": {"content": "\\ud83d"}}]}', b'{"choices": [{"delta": {"content": "\\ude00"}, "finish_reason": "stop"}]}'
    )

    assert answer.error_kind is None
    assert "\ud83d\ude00" == answer.choices[0]["message"]["content"]
    assert "😀" == json.loads(answer.assemble())["choices"][0]["message"]["content"]


def test_answers_that_did_not_stream() -> None:
    """Usage and finish reason are read; an error, a text that is no JSON and an answer without a choice are named."""
    whole = {"choices": [{"index": 0, "message": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}
    answer = read_whole(json.dumps(whole).encode())

    assert (None, "stop", 3) == (answer.error_kind, answer.finish_reason, answer.count("prompt_tokens"))
    assert ["bad_json", "bad_json", "error_event", "empty"] == [
        read_whole(body).error_kind for body in (b"<html>", b"[]", b'{"error": "x"}', b"{}")
    ]


@given(data=st.lists(all_chunks, max_size=4), name=st.sampled_from(["message", "message", "error"]))
def test_any_json(data: list[Any], name: str) -> None:
    """No JSON, however strange, raises anything: it is an answer, or its fault is named."""
    answer = read(*data, name=name)

    assert answer.error_kind or json.loads(answer.assemble())
    assert all(isinstance(text, str | None) for text in (answer.finish_reason, answer.error_kind, answer.error))
    for each in data:
        whole = read_whole(json.dumps(each).encode())
        assert all(isinstance(fact, str | int | None) for fact in (whole.finish_reason, whole.count("completion_tokens"), whole.error))


@pytest.mark.parametrize("depth", [200, 500, 1000, 1010, 1015, 1020, 100_000])
def test_any_depth(depth: int) -> None:
    """Values that are nested deeply are put together, or are a fault; never an error of the tap's own."""
    for value in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        chunk = b'{"choices": [{"index": 0, "delta": {"content": %b}, "finish_reason": "stop"}]}' % value
        answer = read(chunk, chunk)

        assert answer.error_kind == "bad_json" or bool(answer.assemble()) == (answer.error_kind is None)
        assert {"error_event", "bad_json"} >= {read(b'{"error": %b}' % value).error_kind}
        assert {"error_event", "bad_json"} >= {read_whole(b'{"error": {"message": %b}}' % value).error_kind}
