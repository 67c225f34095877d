"""The truth server of the benchmark `timing`: it keeps to its schedule, answers as a server of this API does, and tells what it did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from itertools import pairwise

import pytest

from benchmarks.measurement import BenchmarkSkipped
from benchmarks.truth import Served, Truth, truth_server
from pytest_agentbench.backends.ready import listed_models
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Endpoint, Json
from pytest_agentbench.tap.dialects.chat import ChatReader
from pytest_agentbench.tap.stream import EventReader, NetworkRead

MODEL = "truth/ttft=5,itl=1,tokens=3"
MS = 1_000_000  # nanoseconds


@pytest.fixture(scope="module")
def truth() -> Iterator[Truth]:
    try:
        with truth_server(MODEL) as truth:
            yield truth
    except BenchmarkSkipped as why:
        pytest.skip(str(why))


def ask(truth: Truth, schedule: str, **body: object) -> bytes:
    connection = HTTPConnection("127.0.0.1", truth.port, timeout=30)
    body = {"model": f"truth/{schedule}", "stream": True, "stream_options": {"include_usage": True}, "messages": [], **body}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    answer = connection.getresponse().read()
    connection.close()
    return answer


def served(truth: Truth, schedule: str, **body: object) -> Served:
    """The only request that was made since the last one was taken."""
    truth.take()
    ask(truth, schedule, **body)
    (request,) = truth.take()
    return request


def streamed(truth: Truth, schedule: str) -> ChatReader:
    reading = ChatReader()
    for event in EventReader().feed([NetworkRead(0, None, ask(truth, schedule))]):
        reading.add(event)
    reading.end()
    return reading


def test_events_are_due_by_the_schedule(truth: Truth) -> None:
    """The first token is due in the given range after the request came, the others in steps; the rest is due at the end."""
    request = served(truth, "ttft=10-30,itl=4,tokens=5,tail=2,key=a")
    due = [event.due_ns for event in request.output]

    assert "a" == request.key
    assert ["role", *["content"] * 5, "finish", "usage", "done"] == [event.kind for event in request.events]
    assert 10 * MS <= due[0] - request.arrived_ns <= 30 * MS
    assert [4 * MS] * 4 == pytest.approx([later - earlier for earlier, later in pairwise(due)], abs=1)
    assert {due[-1] + 2 * MS} == {event.due_ns for event in request.events[-3:]}


def test_nothing_is_sent_before_it_is_due(truth: Truth) -> None:
    """Each event is sent at or after its time, one after the other."""
    sent = served(truth, "ttft=5,itl=0.5,tokens=50").events

    assert all(event.due_ns <= event.sent_ns <= event.after_ns for event in sent)
    assert all(earlier.after_ns <= later.sent_ns for earlier, later in pairwise(sent))


def test_the_same_key_has_the_same_times(truth: Truth) -> None:
    """Times are drawn by the key, so that a run can be repeated; other keys have others."""

    def offsets(key: str) -> list[int]:
        request = served(truth, f"ttft=5-25,itl=2,jitter=0.5,tokens=6,key={key}")
        return [event.due_ns - request.arrived_ns for event in request.output]

    first = offsets("a")

    assert first == pytest.approx(offsets("a"), abs=2)
    assert abs(first[0] - offsets("b")[0]) > 2
    assert all(1 * MS - 2 <= later - earlier <= 3 * MS + 2 for earlier, later in pairwise(first))
    assert len({later - earlier for earlier, later in pairwise(first)}) > 1


def test_steps_of_an_engine_are_shared(truth: Truth) -> None:
    """On a grid every chunk of every stream is due at a multiple of the step."""
    for key in "ab":
        due = [event.due_ns for event in served(truth, f"ttft=1-9,itl=4,grid=4,tokens=4,key={key}").output]

        assert {0} == {each % (4 * MS) for each in due}
        assert [4 * MS] * 3 == [later - earlier for earlier, later in pairwise(due)]


@pytest.mark.parametrize(
    ("kind", "kinds"),
    [
        ("content", ["content"] * 4),
        ("reasoning", ["reasoning"] * 2 + ["content"] * 2),
        ("tool_call", ["tool_call"] * 4),
    ],
)
def test_what_is_sent_is_what_is_told(truth: Truth, kind: str, kinds: list[str]) -> None:
    """A reader of the stream finds the events that the server says it sent."""
    truth.take()
    answer = streamed(truth, f"kind={kind},tokens=4")
    (request,) = truth.take()

    assert answer.done
    assert kinds == [event.kind for event in request.output]
    assert ["role", *kinds, "finish", "usage"] == [chunk.kind for chunk in answer.chunks]
    assert (4, "usage") == (answer.completion_tokens, answer.token_source)
    assert ("tool_calls" if kind == "tool_call" else "stop") == answer.finish_reason


def test_a_tool_call_can_be_made(truth: Truth) -> None:
    """The pieces of a tool call come to a name and arguments that are JSON."""
    whole = json.loads(streamed(truth, "kind=tool_call,tokens=4,role=0").assemble())
    (call,) = whole["choices"][0]["message"]["tool_calls"]

    assert ("call_1", "count", 777) == (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))


def test_chunks_hold_several_tokens(truth: Truth) -> None:
    """The last chunk holds what is left."""
    assert [4, 4, 2] == [event.tokens for event in served(truth, "tokens=10,pack=4").output]


def test_usage_comes_where_it_is_asked_for(truth: Truth) -> None:
    """Without stream_options there is no usage, and without a role none is sent."""
    request = served(truth, "tokens=1,role=0", stream_options=None)

    assert ["content", "finish", "done"] == [event.kind for event in request.events]


def test_an_answer_without_streaming_comes_when_its_last_token_would(truth: Truth) -> None:
    """It has all tokens, and is due with the last of them."""
    truth.take()
    body: Json = json.loads(ask(truth, "ttft=5,itl=2,tokens=4", stream=False))
    (request,) = truth.take()
    (event,) = request.events

    assert " word word word word" == body["choices"][0]["message"]["content"]
    assert 4 == body["usage"]["completion_tokens"] == event.tokens
    assert 11 * MS == pytest.approx(event.due_ns - request.arrived_ns, abs=1)


async def test_clients_get_the_schedule_of_the_listed_model(truth: Truth) -> None:
    """A request whose model brings no schedule has that of the listed one; its key may stand anywhere in it."""
    truth.take()
    reply = await LLM(truth.url, "some-model").chat([{"role": "user", "content": "I am key=customer-7, how are you?"}])
    (request,) = truth.take()

    assert [MODEL] == listed_models(Endpoint(truth.url, MODEL))
    assert " word word word" == reply.text
    assert "customer-7" == request.key


def test_a_request_may_come_in_pieces(truth: Truth) -> None:
    """It has arrived when its last byte has, and several may come on one connection."""
    connection = HTTPConnection("127.0.0.1", truth.port, timeout=30)
    truth.take()
    for key in ("first", "second"):
        body = json.dumps({"model": f"truth/tokens=2,key={key}"}).encode()
        connection.putrequest("POST", "/v1/chat/completions")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders()
        connection.send(body[:7])
        connection.send(body[7:])

        assert 2 == json.loads(connection.getresponse().read())["usage"]["completion_tokens"]
    connection.close()

    assert ["first", "second"] == [request.key for request in truth.take()]
    assert [] == truth.take()


def test_other_paths_are_unknown(truth: Truth) -> None:
    """What the server does not know it answers with 404, and goes on."""
    connection = HTTPConnection("127.0.0.1", truth.port, timeout=30)
    for path, status in (("/health", 404), ("/v1/models", 200)):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()

        assert status == answer.status
    connection.close()


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that cannot have the server skips what needs it, and is told why."""
    monkeypatch.setenv("PATH", "")

    with pytest.raises(BenchmarkSkipped, match=r"needs Linux|install a C compiler"), truth_server():
        pass
