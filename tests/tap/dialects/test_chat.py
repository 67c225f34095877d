"""Chat Completions: a stream of chunks becomes one answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_agentbench.records import Json
from pytest_agentbench.tap.answers import BackendAnswer
from pytest_agentbench.tap.dialects.chat import ChatReader
from pytest_agentbench.tap.dialects.reader import DialectReader
from pytest_agentbench.tap.stream import NetworkRead
from tests.tap.dialects.answer_events import (
    anything,
    assembled,
    cuts,
    fault,
    interleaved,
    kinds,
    objects,
    odd,
    read_recorded,
    tokens,
)
from tests.tap.dialects.answer_events import read as read_of
from tests.tap.dialects.answer_events import read_whole as read_whole_of

HEAD: Json = {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m"}

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


def read(*data: Any, name: str = "message") -> DialectReader:
    return read_of(ChatReader, *data, name=name)


def read_whole(data: Any) -> DialectReader:
    return read_whole_of(ChatReader, data)


def deltas(*deltas: Json, **choice: Any) -> list[Json]:
    """Returns chunks of one choice, the last of which ends it."""
    last = {**HEAD, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop", **choice}]}
    return [{**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas] + [last]


def message(*parts: Json) -> Json:
    whole: Json = assembled(read(*deltas(*parts)))["choices"][0]["message"]
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
    """Pieces of text are joined. Fields without pieces are null, as with a server that does not stream."""
    found = message({"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}, {"content": None})

    assert {"role": "assistant", "content": "Hello", "refusal": None} == found


def test_every_kind_of_text() -> None:
    """Reasoning under either name, refusals and unknown fields are kept separately. Lists and objects are extended."""
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


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_nothing_but_reasoning(name: str) -> None:
    """If only reasoning follows the empty content at the start of vLLM's streams, the content of the answer is null."""
    found = message({"role": "assistant", "content": ""}, {name: "I look"})

    assert {"role": "assistant", "content": None, "refusal": None, name: "I look"} == found


def test_parallel_tool_calls() -> None:
    """Pieces belong to the call with their index, in any order. The first id counts."""
    found = calls(
        call(1, "b", "second", ""),
        call(0, "a", "first", '{"x"'),
        call(1, arguments="[1"),
        call(0, "other", arguments=": 1}"),
        call(1, arguments="]"),
    )

    assert [("a", "function", "first", '{"x": 1}'), ("b", "function", "second", "[1]")] == found


def test_tool_calls_without_a_useful_index() -> None:
    """If a server omits the index, or always sends 0, a name with a new id starts a new call."""
    expected = [("a", "function", "first", "{}"), ("b", "function", "second", "[]")]

    assert expected == calls(call(None, "a", "first", "{}"), call(None, "b", "second", "["), call(None, arguments="]"))
    assert expected == calls(call(0, "a", "first", "{}"), call(0, "b", "second", "["), call(0, arguments="]"))
    without_ids = [(None, *rest) for _, *rest in expected]
    assert without_ids == calls(call(None, None, "first", "{}"), call(None, None, "second", "["), call(None, arguments="]"))
    assert expected[:1] == calls(call(0, "a", "first", "{"), call(0, "a", "first", "}"))


def test_tool_calls_of_other_shapes() -> None:
    """The old function_call is assembled, arguments that are not text are converted, and text besides calls is kept."""
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
    """Choices are sorted by index, lists of logprobs are joined, and the first value of each metadata field is kept."""
    one = {"index": 1, "delta": {"content": "B"}, "logprobs": {"content": [{"token": "B"}], "refusal": None}, "finish_reason": None}
    two = {"index": 0, "delta": {"content": "A"}, "finish_reason": "length", "stop_reason": 5}
    three = {"index": 1, "delta": {"content": "C"}, "logprobs": {"content": [{"token": "C"}], "refusal": None}, "finish_reason": "stop"}
    answer = read({**HEAD, "system_fingerprint": None, "choices": [one]}, {**HEAD, "system_fingerprint": "fp", "choices": [two, three]})

    def choice(index: int, text: str, finish_reason: str, logprobs: Json | None, **more: Any) -> Json:
        said = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": said, "logprobs": logprobs, "finish_reason": finish_reason, **more}

    logprobs = {"content": [{"token": "B"}, {"token": "C"}], "refusal": None}
    choices = [choice(0, "A", "length", None, stop_reason=5), choice(1, "BC", "stop", logprobs)]
    assert {**HEAD, "object": "chat.completion", "system_fingerprint": "fp", "choices": choices} == assembled(answer)


def test_usage() -> None:
    """The last usage counts, with or without a choice. Invalid counts are not replaced."""
    first, *rest = deltas({"content": "A"})
    last = {**HEAD, "choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": "x"}}
    answer = read({**first, "usage": None}, *rest, last)

    assert last["usage"] == assembled(answer)["usage"]
    assert (None, 2, None, "usage") == tokens(answer)
    assert [None, None, 2] == [chunk.tokens for chunk in answer.chunks]


@pytest.mark.parametrize("details", [None, {}, {"cached_tokens": None}], ids=["null", "empty", "null-in-it"])
def test_unreported_cached_tokens(details: Json | None) -> None:
    """Cached tokens that are not reported are None, not 0, because the server may have cached some."""
    last = {**HEAD, "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": details}}

    assert (7, 2, None, "usage") == tokens(read(*deltas({"content": "A"}), last))


def test_usage_in_every_chunk() -> None:
    """If each chunk has a usage, it gets the number of tokens. Only a count in all chunks, including the last, is `continuous`."""
    counted = [
        {**each, "usage": {"completion_tokens": count}}
        for count, each in enumerate(deltas({"role": "x"}, {"content": "A"}, {"content": "B"}))
    ]
    last = {**HEAD, "choices": [], "usage": {"completion_tokens": 4}}
    answer = read(*counted, last)

    assert [0, 1, 2, 3, 4] == [chunk.tokens for chunk in answer.chunks]
    assert (None, 4, None, "continuous") == tokens(answer)
    assert "usage" == read(*counted[:2], {**counted[2], "usage": None}, *counted[3:], last).token_source
    assert (None, 3, None, "usage") == tokens(read(*counted, {**last, "usage": None}))


def test_tokens_without_a_count() -> None:
    """Without usage, the output chunks are counted. An answer without chunks has no count."""
    answer = read(*deltas({"role": "assistant"}, {"content": "A"}, {"reasoning": "B"}))

    assert "usage" not in assembled(answer)
    assert (None, 2, None, "chunks") == tokens(answer)
    assert (None, None, None, "none") == tokens(read(*deltas({"role": "assistant"})))


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
        ("tool_call", deltas(call(0, "a", "f", "{"))[0]),
        ("tool_call", deltas({"function_call": {"name": "f"}})[0]),
        ("other", deltas(call(0, "a", arguments=""))[0]),
        ("other", deltas({"tool_calls": []})[0]),
        ("other", deltas({"content": ""})[0]),
        ("finish", deltas()[0]),
        ("finish", deltas(delta={"role": "assistant", "content": ""})[0]),
        ("content", deltas(delta={"content": "x"})[0]),
        ("other", deltas(finish_reason=None)[0]),
        ("other", {**HEAD, "choices": []}),
        ("usage", {**HEAD, "choices": [], "usage": {"completion_tokens": 1}}),
        ("content", {**deltas({"content": "x"})[0], "usage": {"completion_tokens": 1}}),
        ("finish", {**deltas()[0], "usage": {"completion_tokens": 1}}),
        ("content", {**HEAD, "choices": [*deltas({"role": "x"})[0]["choices"], *deltas({"content": "x"})[0]["choices"]]}),
    ],
)
def test_kinds(kind: str, chunk: Json) -> None:
    """Only visible output counts as output. Roles, empty texts and empty pieces of calls do not."""
    assert [kind] == kinds(read(chunk))


NO_CALL = {
    "arguments first": (call(0, "a", arguments="{"), "arguments of a tool call came before its name: {"),
    "other index": (call(1, arguments="{"), "arguments of a tool call came before its name: {"),
    "index": ({"tool_calls": [{"index": "0", "function": {"name": "f"}}]}, "the index of a tool call is not a number: '0'"),
    "function": ({"tool_calls": [{"index": 0, "function": "f"}]}, "the function of a tool call is not an object: 'f'"),
    "name": ({"tool_calls": [{"index": 0, "function": {"name": 5}}]}, "the name of a tool is not a text: 5"),
    "call": ({"tool_calls": [5]}, "a tool call is not an object: 5"),
    "calls": ({"tool_calls": {"0": 5}}, "the tool calls are not a list: {'0': 5}"),
    "no name": (call(0, "a", arguments=""), "a tool call has no name"),
    "old form": ({"function_call": {"arguments": "{"}}, "arguments of a tool call came before its name: {"),
}


@pytest.mark.parametrize(("delta", "sentence"), NO_CALL.values(), ids=NO_CALL)
def test_invalid_tool_calls(delta: Json, sentence: str) -> None:
    """Invalid tool calls have their own kind of fault, in a stream and in an answer without streaming."""
    assert ("bad_tool_call", sentence) == fault(read(*deltas(delta, {"content": "x"})))
    if "index" not in sentence:  # Calls in answers without streaming have no index.
        assert ("bad_tool_call", sentence) == fault(read_whole({"choices": [{"message": delta, "finish_reason": "stop"}]}))


def test_a_nameless_call_among_others() -> None:
    """One tool call without a name is a fault of the answer, at any position."""
    named = {"id": "a", "function": {"name": "f", "arguments": "{}"}}

    assert "bad_tool_call" == read(*deltas(call(0, "a", "f", "{}"), call(1, "b", arguments="{}"))).error_kind
    assert "bad_tool_call" == read(*deltas(call(0, "a", "f", "{}"), call(1, "b"))).error_kind
    assert (
        "bad_tool_call"
        == read_whole(
            {"choices": [{"message": {"tool_calls": [named, {"id": "b", "function": {"arguments": "{}"}}]}, "finish_reason": "stop"}]}
        ).error_kind
    )


def test_custom_tools() -> None:
    """Custom tools have text as input, instead of arguments."""
    pieces = [{"index": 0, "id": "a", "type": "custom", "custom": {"name": "sh", "input": "l"}}, {"index": 0, "custom": {"input": "s"}}]

    found = message(*({"tool_calls": [piece]} for piece in pieces))["tool_calls"]

    assert [{"id": "a", "type": "custom", "custom": {"name": "sh", "input": "ls"}}] == found


@pytest.mark.parametrize(
    ("data", "kind", "sentence"),
    [
        ([], "empty", "the stream ended without a single event"),
        ([b"[DONE]"], "empty", "the stream ended without a single event"),
        ([{**HEAD, "choices": []}], "no_choices", "the stream ended without a choice"),
        (
            [{**HEAD, "choices": []}, {**HEAD, "choices": [], "usage": {"completion_tokens": 0}}],
            "no_choices",
            "the stream ended without a choice",
        ),
        ([HEAD], "empty", "the stream ended without a choice"),
        (deltas({"content": "x"})[:1], "incomplete", "the stream ended without a finish_reason"),
        (
            deltas({"role": "assistant", "content": ""}, finish_reason="abort"),
            "empty",
            "the stream ended without text and without a tool call",
        ),
        (deltas({"tool_calls": []}, finish_reason="tool_calls"), "empty", "the stream ended without text and without a tool call"),
        ([b"{"], "bad_json", "an event is not a chunk of an answer (Expecting property name"),
        ([b""], "bad_json", "an event is not a chunk of an answer"),
        ([[1]], "bad_json", "an event is not a chunk of an answer (a JSON value in it must be of type dict, not list): [1]"),
        ([{"choices": {"a": 1}}], "bad_json", "an event is not a chunk of an answer (a JSON value in it must be of type list, not dict)"),
        ([{"choices": [1]}], "bad_json", "an event is not a chunk of an answer (a JSON value in it must be of type dict, not int)"),
        (
            [{"choices": [{"index": []}]}],
            "bad_json",
            "an event is not a chunk of an answer (a JSON value in it must be of type int, not list)",
        ),
        ([{"error": {"message": "too hot", "code": 5}}], "error_event", "too hot"),
        ([{"error": "too hot"}], "error_event", "too hot"),
        ([*deltas({"content": "x"}), {"error": {"code": 5}}], "error_event", "{'code': 5}"),
        ([{"object": "error", "message": "too hot"}], "error_event", "too hot"),
    ],
)
def test_faults(data: list[Any], kind: str, sentence: str) -> None:
    """Each fault has its kind and a sentence."""
    answer = read(*data)

    assert kind == answer.error_kind
    assert sentence in answer.error


@pytest.mark.parametrize("delta", [{"content": "x"}, {"refusal": "x"}, {"reasoning": "x"}, {"audio": {"data": "x"}}, call(0, "a", "f")])
def test_any_output_is_not_empty(delta: Json) -> None:
    """An answer with text, reasoning, a refusal, audio or a call is not empty."""
    assert read(*deltas({"role": "assistant", "content": ""}, delta, finish_reason="tool_calls")).error_kind is None


@pytest.mark.parametrize("finish_reason", ["length", "content_filter"])
def test_truncated_answers(finish_reason: str) -> None:
    """Truncated answers may be empty."""
    assert read(*deltas({"role": "assistant"}, finish_reason=finish_reason)).error_kind is None
    assert read_whole({"choices": [{"message": {"content": None}, "finish_reason": finish_reason}]}).error_kind is None


@pytest.mark.parametrize(("data", "sentence"), [({"message": "too hot"}, "too hot"), (b"too hot", "too hot"), ([1], "[1]")])
def test_events_named_error(data: Any, sentence: str) -> None:
    """An event named `error` is an error, whatever its data."""
    answer = read(data, name="error")

    assert ("error_event", sentence) == (answer.error_kind, answer.error)


def test_events_after_done_are_ignored() -> None:
    """Events after `[DONE]` are ignored."""
    answer = read(*deltas({"content": "x"}), b"[DONE]", b"{")

    assert (True, None) == (answer.done, answer.error_kind)
    assert not read(*deltas({"content": "x"})).done


def test_nothing_is_read_after_a_fault() -> None:
    """The first fault counts, and chunks after it are not kept."""
    answer = read(deltas({"content": "x"})[0], b"{", b"[", *deltas({"content": "y"}), b"[DONE]")

    assert (["content"], "bad_json", False) == (kinds(answer), answer.error_kind, answer.done)


def test_half_an_emoji() -> None:
    """Some servers count in UTF-16 and split an emoji. The halves are joined."""
    answer = read(
        b'{"choices": [{"delta": {"content": "\\ud83d"}}]}', b'{"choices": [{"delta": {"content": "\\ude00"}, "finish_reason": "stop"}]}'
    )

    assert "😀" == assembled(answer)["choices"][0]["message"]["content"]


SAID: Json = {"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}


def test_answers_that_did_not_stream() -> None:
    """Usage and finish reason are read from an answer without streaming."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
    answer = read_whole({"choices": [SAID], "usage": usage})

    assert (None, "stop", []) == (answer.error_kind, answer.finish_reason, answer.chunks)
    assert (3, 2, 1, "usage") == tokens(answer)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"error": "x"}, ("error_event", "x")),
        ({}, ("empty", "the answer came without a choice")),
        ({"choices": []}, ("no_choices", "the answer came without a choice")),
        *(({"choices": [{**SAID, "message": {"content": content}}]}, (None, "")) for content in ("", " ", None)),
        (
            {"choices": [{**SAID, "message": {"content": ""}, "finish_reason": "tool_calls"}]},
            ("empty", "the answer came without text and without a tool call"),
        ),
        ({"choices": [{**SAID, "finish_reason": None}]}, ("incomplete", "the answer came without a finish_reason")),
    ],
)
def test_faults_of_answers_that_did_not_stream(data: Json, expected: tuple[str | None, str]) -> None:
    """An answer without streaming can have the same faults as a stream."""
    assert expected == fault(read_whole(data))


@pytest.mark.parametrize("data", [b"<html>", [], {"choices": [5]}])
def test_bad_json_of_answers_that_did_not_stream(data: Any) -> None:
    """A body that is not an answer of this API is a `bad_json` fault."""
    assert "bad_json" == read_whole(data).error_kind


LOGPROB = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
words = st.text(max_size=12)


@st.composite
def messages(draw: st.DrawFn) -> Json:
    """Messages with some output."""
    message: Json = {"role": "assistant", "content": draw(words | st.none()), "refusal": draw(words | st.none())}
    for name in draw(st.sets(st.sampled_from(["reasoning", "reasoning_content"]))):
        message[name] = draw(words)
    names = draw(st.lists(st.sampled_from(["find", "buy"]), max_size=3))
    if names or message.get("reasoning") or message.get("reasoning_content"):
        message["content"] = message["content"] or None
    if names:
        message["tool_calls"] = [
            {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": json.dumps(draw(objects))}}
            for place, name in enumerate(names)
        ]
    if not any(value for name, value in message.items() if name != "role"):
        message["content"] = "x"
    return message


@st.composite
def answers(draw: st.DrawFn) -> Json:
    """Answers without streaming."""
    choices = [
        {
            "index": index,
            "message": draw(messages()),
            "logprobs": draw(st.none() | st.builds(lambda count: {"content": [LOGPROB] * count, "refusal": None}, st.integers(1, 4))),
            "finish_reason": draw(st.sampled_from(["stop", "tool_calls", "length"])),
            **draw(st.sampled_from([{}, {"stop_reason": None}, {"stop_reason": "###"}, {"token_ids": [1, 2, 3]}])),
        }
        for index in range(draw(st.integers(1, 3)))
    ]
    more: Json = draw(
        st.sampled_from(
            [
                {},
                {"system_fingerprint": "fp", "service_tier": None},
                {"nvext": {"worker_id": {"prefill": 1, "decode": 2}, "timing": {"ms": 1.5}}},
            ]
        )
    )
    usage: Json = draw(st.sampled_from([{}, {"usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}}]))
    return {**HEAD, "object": "chat.completion", "choices": choices, **more, **usage}


@st.composite
def streams(draw: st.DrawFn, whole: Json) -> list[Json]:
    """The chunks in which a server might send an answer."""

    def said(message: Json) -> list[Json]:
        texts = [
            [{name: piece} for piece in draw(cuts(text))] for name, text in message.items() if isinstance(text, str) and name != "role"
        ]
        calls = []
        for index, call in enumerate(message.get("tool_calls", ())):
            first, *rest = draw(cuts(call["function"]["arguments"]))
            opening = {**call, "index": index, "function": {**call["function"], "arguments": first}}
            pieces = [opening, *({"index": index, "function": {"arguments": piece}} for piece in rest)]
            calls.append([{"tool_calls": [piece]} for piece in pieces])
        nulls = {name: None for name in ("content", "refusal") if message[name] is None}
        return [{"role": "assistant", **nulls}, *draw(interleaved([*texts, *calls]))]

    def pieces(choice: Json) -> list[Json]:
        ends = {name: value for name, value in choice.items() if name not in ("index", "message", "logprobs")}
        logprobs = (choice["logprobs"] or {}).get("content", [])
        deltas: list[Json] = [{"delta": delta, "finish_reason": None, "logprobs": None} for delta in said(choice["message"])]
        for place, logprob in enumerate(logprobs):
            deltas[min(place, len(deltas) - 1)].setdefault("said", []).append(logprob)
        for delta in deltas:
            if "said" in delta:
                delta["logprobs"] = {"content": delta.pop("said"), "refusal": None}
        return [{"index": choice["index"], **each} for each in [*deltas, {"delta": {}, **ends}]]

    chunks = [{**HEAD, "choices": [piece]} for piece in draw(interleaved([pieces(choice) for choice in whole["choices"]]))]
    extra = {name: value for name, value in whole.items() if name not in (*HEAD, "choices", "usage")}
    chunks[draw(st.integers(0, len(chunks) - 1))] |= extra
    return [*chunks, {**HEAD, "choices": [], "usage": whole["usage"]}] if "usage" in whole else chunks


@given(data=st.data(), whole=answers())
def test_an_answer_cut_into_deltas(data: st.DataObject, whole: Json) -> None:
    """However an answer is split into pieces, and in any order of them, the assembled answer is the same."""
    chunks = data.draw(streams(whole))

    assert whole == assembled(read(*chunks, b"[DONE]"))
    assert read_whole(whole).error_kind is None


def test_fields_beside_the_choices() -> None:
    """Objects are merged field by field, and lists are joined. For any other field, the last value that is not empty counts."""
    first, second, last = deltas({"content": "a"}, {"content": "b"})
    first |= {"id": "", "nvext": {"completion_token_ids": [5], "worker_id": 1}, "citations": ["x"], "prompt_filter_results": [1]}
    second |= {"nvext": {"completion_token_ids": [5], "timing": {"ms": 2}}, "citations": ["x", "y"]}
    last |= {"id": "", "created": 0}

    found = assembled(read(first, second, last))

    assert {"completion_token_ids": [5, 5], "worker_id": 1, "timing": {"ms": 2}} == found["nvext"]
    assert ("c1", 7, ["x", "y"], [1]) == (found["id"], found["created"], found["citations"], found["prompt_filter_results"])


def test_a_stream_of_vllm() -> None:
    """A stream with continuous usage, reasoning under both names, and a call is read."""
    answer = read_recorded(ChatReader, "vllm-chat.sse")

    call = {"id": "chatcmpl-tool-1", "type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}}
    message = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning": "I look",
        "reasoning_content": "I look",
        "tool_calls": [call],
    }
    found = assembled(answer)["choices"][0]
    assert message == found["message"]
    assert ["role", "reasoning", "tool_call", "tool_call", "finish", "usage"] == kinds(answer)
    assert [0, 2, 3, 6, 7, 7] == [chunk.tokens for chunk in answer.chunks]
    assert (9, 7, 8, "continuous") == tokens(answer)
    assert (True, "tool_calls", [5] * 6) == (answer.done, answer.finish_reason, [chunk.lag_ns for chunk in answer.chunks])


def test_a_stream_of_dynamo() -> None:
    """A stream with a comment, Dynamo's extensions, and a role in each chunk is read."""
    answer = read_recorded(ChatReader, "dynamo-chat.sse")

    found = assembled(answer)
    message = {"role": "assistant", "content": "Blue sky", "refusal": None, "reasoning_content": None}
    assert [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}] == found["choices"]
    assert {"worker_id": {"prefill_worker_id": 4}, "timing": {"total_time_ms": 8.5}} == found["nvext"]
    assert (["content", "content", "finish", "usage"], [2, 3, 4, 5]) == (kinds(answer), [chunk.at_ns for chunk in answer.chunks])
    assert (4, 2, 3, "usage") == tokens(answer)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("vllm-reasoning-and-call", {"content": None, "reasoning": "I look it up."}),
        ("vllm-parallel-calls", {"content": None}),
        ("dynamo-reasoning-and-call", {"content": None, "reasoning_content": "I look it up."}),
        ("dynamo-parallel-calls", {"content": "\n"}),
    ],
)
def test_captured_calls(file: str, said: Json) -> None:
    """Recorded streams of real servers have the expected tool calls, each with its own id."""
    message = assembled(read_recorded(ChatReader, f"captured-{file}.sse"))["choices"][0]["message"]

    calls = message.pop("tool_calls")
    cities = ["Rome", "Oslo"][: 2 if "parallel" in file else 1]
    assert [{"name": "find", "arguments": f'{{"city": "{city}"}}'} for city in cities] == [call["function"] for call in calls]
    assert len(cities) == len({call["id"] for call in calls})
    assert {"role": "assistant", "refusal": None, **said} == message


def test_captured_nvext() -> None:
    """Dynamo sends token ids in each chunk, and workers and times at the end. They are merged into one object."""
    nvext = assembled(read_recorded(ChatReader, "captured-dynamo-nvext.sse"))["nvext"]

    assert {"completion_token_ids", "timing", "worker_id"} == nvext.keys()
    assert 20 == len(nvext["completion_token_ids"])
    assert {"prefill_worker_id", "prefill_dp_rank", "decode_worker_id", "decode_dp_rank"} == nvext["worker_id"].keys()


ASKED: Json = {"model": "m", "messages": [], "n": 2, "logprobs": True}


def test_asking_for_a_stream() -> None:
    """A request that is changed into a streamed one has usage at the end. Its other fields and stream options are kept."""
    streamed = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}

    for more in ({}, {"stream": False}, {"stream": None}, {"stream_options": None}, {"stream_options": {"include_usage": False}}):
        assert streamed == json.loads(ChatReader.as_stream({**ASKED, **more}) or b"")
    more = {"stream_options": {"continuous_usage_stats": True, "include_obfuscation": False}}
    assert {"include_obfuscation": False, "include_usage": True} == json.loads(ChatReader.as_stream({**ASKED, **more}) or b"")[
        "stream_options"
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"stream": True},
        {"stream": "yes"},
        {"stream": ""},
        {"stream_options": "x"},
        {"audio": {"format": "wav"}},
        {"prompt_logprobs": 1},
        {"use_beam_search": True},
    ],
)
def test_requests_that_are_not_streamed(more: Json) -> None:
    """Requests that already stream, are invalid, or cannot be streamed are not changed."""
    assert ChatReader.as_stream({**ASKED, **more}) is None


@given(data=st.lists(all_chunks, max_size=4), name=st.sampled_from(["message", "message", "error"]))
def test_any_json(data: list[Any], name: str) -> None:
    """Any JSON value is read as an answer or a fault, and none raises an exception."""
    answer = read(*data, name=name)

    assert answer.error_kind or json.loads(answer.assemble())
    assert all(isinstance(text, str | None) for text in (answer.finish_reason, answer.error_kind, answer.error))
    for each in data:
        whole = read_whole(each)
        assert all(isinstance(fact, str | int | None) for fact in (whole.finish_reason, whole.completion_tokens, whole.error))


@pytest.mark.parametrize("depth", [200, 500, 1000, 1010, 1015, 1020, 100_000])
def test_any_depth(depth: int) -> None:
    """Deeply nested values are assembled, or are a fault, and never raise another exception."""
    for value in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        chunk = b'{"choices": [{"index": 0, "delta": {"content": %b}, "finish_reason": "stop"}]}' % value
        answer = read(chunk, chunk)

        assert answer.error_kind == "bad_json" or bool(answer.assemble()) == (answer.error_kind is None)
        assert {"error_event", "bad_json"} >= {read(b'{"error": %b}' % value).error_kind}
        assert {"error_event", "bad_json"} >= {read_whole(b'{"error": {"message": %b}}' % value).error_kind}


class Parsing(ChatReader):
    """A reader that parses each event, even repeated ones."""

    def _repeating(self, data: bytes) -> None:
        del data


simple = st.sampled_from(["a", "b", " ", "", '"', "\\", "\n", "\x01", "\N{OWL}", "\u2028", '","content":"', "}"])
same_deltas = st.fixed_dictionaries(
    {}, optional={"content": simple, "reasoning": simple, "reasoning_content": simple, "refusal": simple, "role": st.just("assistant")}
)
same_choices = st.fixed_dictionaries(
    {"delta": same_deltas},
    optional={
        "index": st.integers(0, 1),
        "finish_reason": st.sampled_from([None, "stop"]),
        "logprobs": st.sampled_from([None, {"content": [1]}]),
    },
)
same_chunks = st.fixed_dictionaries(
    {"choices": st.lists(same_choices, min_size=1, max_size=2)},
    optional={
        "id": st.sampled_from(["c1", "c2"]),
        "usage": st.sampled_from([None, {"completion_tokens": 3}]),
        "nvext": st.sampled_from([{"worker_id": {"id": 1}}, {"ids": [1]}, {"content": "a"}]),
    },
)


def heard(dialect: type[ChatReader], texts: list[bytes]) -> ChatReader:
    """Returns the reader of a stream whose events arrive one by one."""
    answer = BackendAnswer(dialect, 200, [(b"content-type", b"text/event-stream")])
    for place, text in enumerate(texts):
        answer.take(NetworkRead(place, 5, b"data: %b\n\n" % text))
    answer.end(is_complete=True)
    assert isinstance(answer.reader, dialect)
    return answer.reader


def understood(dialect: type[ChatReader], texts: list[bytes]) -> object:
    answer = heard(dialect, texts)
    return answer.chunks, answer.assemble(), answer.error_kind, answer.error


@settings(max_examples=300)
@given(st.lists(st.tuples(same_chunks, st.sampled_from([1, 2, 3, 40]), st.booleans()), max_size=6))
def test_repeated_events(events: list[tuple[Json, int, bool]]) -> None:
    """Repeated events are read without parsing, with the same result."""
    texts = [json.dumps(event, ensure_ascii=escaped).encode() for event, times, escaped in events for _ in range(times)]

    assert understood(Parsing, texts) == understood(ChatReader, texts)


said = simple.map(lambda text: json.dumps(text)[1:-1].encode()) | st.sampled_from(["\N{OWL}".encode(), b"\xf0\x9f", b"\xa6\x89", b"\n"])


@settings(max_examples=300)
@given(st.sampled_from(["content", "reasoning"]), st.lists(said, max_size=6))
def test_events_that_differ_in_their_text(name: str, texts: list[bytes]) -> None:
    """The fast path also handles texts that are empty, are not text, or form a character only together."""
    events = [b'{"choices":[{"delta":{"%b":"%b"}}]}' % (name.encode(), text) for text in (b"once", b"upon", *texts, b"a time")]

    assert understood(Parsing, events) == understood(ChatReader, events)
