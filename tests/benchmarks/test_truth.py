"""The truth server of the benchmark `timing`: its schedule, its answers in the format of the API, and its records."""

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
    """Makes a request, and returns the server's record of it."""
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
    """The first token is due in the given range after the request arrived, the others follow in steps, and the remaining events are due at
    the end.
    """
    request = served(truth, "ttft=10-30,itl=4,tokens=5,tail=2,key=a")
    due = [event.due_ns for event in request.output]

    assert "a" == request.key
    assert ["role", *["content"] * 5, "finish", "usage", "done"] == [event.kind for event in request.events]
    assert 10 * MS <= due[0] - request.arrived_ns <= 30 * MS
    assert [4 * MS] * 4 == pytest.approx([later - earlier for earlier, later in pairwise(due)], abs=1)
    assert {due[-1] + 2 * MS} == {event.due_ns for event in request.events[-3:]}


def test_nothing_is_sent_before_it_is_due(truth: Truth) -> None:
    """No event is sent before its time, and events are sent one after the other."""
    sent = served(truth, "ttft=5,itl=0.5,tokens=50").events

    assert all(event.due_ns <= event.sent_ns <= event.after_ns for event in sent)
    assert all(earlier.after_ns <= later.sent_ns for earlier, later in pairwise(sent))


def test_the_same_key_has_the_same_times(truth: Truth) -> None:
    """Times are drawn from the key, so that a run can be repeated. Different keys have different times."""

    def offsets(key: str) -> list[int]:
        request = served(truth, f"ttft=5-25,itl=2,jitter=0.5,tokens=6,key={key}")
        return [event.due_ns - request.arrived_ns for event in request.output]

    first = offsets("a")

    assert first == pytest.approx(offsets("a"), abs=2)
    assert abs(first[0] - offsets("b")[0]) > 2
    assert all(1 * MS - 2 <= later - earlier <= 3 * MS + 2 for earlier, later in pairwise(first))
    assert len({later - earlier for earlier, later in pairwise(first)}) > 1


def test_steps_of_an_engine_are_shared(truth: Truth) -> None:
    """With a grid, every chunk of every stream is due at a multiple of the step."""
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
def test_the_record_equals_the_stream(truth: Truth, kind: str, kinds: list[str]) -> None:
    """A reader of the stream finds the same events as in the server's record."""
    truth.take()
    answer = streamed(truth, f"kind={kind},tokens=4")
    (request,) = truth.take()

    assert answer.done
    assert kinds == [event.kind for event in request.output]
    assert ["role", *kinds, "finish", "usage"] == [chunk.kind for chunk in answer.chunks]
    assert (4, "usage") == (answer.completion_tokens, answer.token_source)
    assert ("tool_calls" if kind == "tool_call" else "stop") == answer.finish_reason


def test_a_tool_call_can_be_made(truth: Truth) -> None:
    """The pieces of a tool call can be assembled to a name and to arguments that are JSON."""
    whole = json.loads(streamed(truth, "kind=tool_call,tokens=4,role=0").assemble())
    (call,) = whole["choices"][0]["message"]["tool_calls"]

    assert ("call_1", "count", 777) == (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))


def test_chunks_hold_several_tokens(truth: Truth) -> None:
    """If chunks have several tokens, the last chunk has the remaining ones."""
    assert [4, 4, 2] == [event.tokens for event in served(truth, "tokens=10,pack=4").output]


def test_usage_is_sent_on_request(truth: Truth) -> None:
    """Without stream_options no usage is sent, and with `role=0` no role."""
    request = served(truth, "tokens=1,role=0", stream_options=None)

    assert ["content", "finish", "done"] == [event.kind for event in request.events]


def test_an_answer_without_streaming_is_due_with_its_last_token(truth: Truth) -> None:
    """An answer without streaming has all tokens, and is due at the time of the last one."""
    truth.take()
    body: Json = json.loads(ask(truth, "ttft=5,itl=2,tokens=4", stream=False))
    (request,) = truth.take()
    (event,) = request.events

    assert " word word word word" == body["choices"][0]["message"]["content"]
    assert 4 == body["usage"]["completion_tokens"] == event.tokens
    assert 11 * MS == pytest.approx(event.due_ns - request.arrived_ns, abs=1)


async def test_clients_get_the_schedule_of_the_listed_model(truth: Truth) -> None:
    """If the model of a request names no schedule, the schedule of the listed model applies. The key may be anywhere in the request."""
    truth.take()
    reply = await LLM(truth.url, "some-model").chat([{"role": "user", "content": "I am key=customer-7, how are you?"}])
    (request,) = truth.take()

    assert [MODEL] == listed_models(Endpoint(truth.url, MODEL))
    assert " word word word" == reply.text
    assert "customer-7" == request.key


def test_a_request_may_come_in_pieces(truth: Truth) -> None:
    """A request has arrived with its last byte. Several requests may be sent on one connection."""
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
    """Unknown paths are answered with 404, and the server continues."""
    connection = HTTPConnection("127.0.0.1", truth.port, timeout=30)
    for path, status in (("/health", 404), ("/v1/models", 200)):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()

        assert status == answer.status
    connection.close()


def test_without_a_compiler_benchmarks_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that cannot build the server skips its benchmarks, with the reason."""
    monkeypatch.setenv("PATH", "")

    with pytest.raises(BenchmarkSkipped, match=r"needs Linux|install a C compiler"), truth_server():
        pass
