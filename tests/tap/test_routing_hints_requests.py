"""Labels, headers and rate limits of a backend, as applied to calls through the tap."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.process import Child
from pytest_agentbench.records import Json, LLMCall, RolloutKey, ToldHints
from pytest_agentbench.tap.client import TapControl
from pytest_agentbench.tap.protocol import Budgets, GetTapStats, TapListening, TapStats
from pytest_agentbench.tap.routing_hints import NO_LABEL, Label, make_labels
from tests.tap.conftest import TOKEN, StartTap
from tests.tap.peers import CHAT, DONE, Message, Tap, agent, answering, backend, event, request, response, said, stream, until

NVEXT: Json = {"extra_fields": ["worker_id", "timing"]}
LARGE = {**CHAT, "user": "x" * (3 << 19)}
TOLD = {"worker_id": {"decode_worker_id": 7}, "timing": {"kv_hit_rate": 0.25, "total_time_ms": 9.5}}


async def labelled(tap: Tap, kind: str, upgrade: bool | None = None, **options: Any) -> str:
    """Opens an address with labels and returns its id."""
    label = make_labels({"kind": kind, **options}).label("run:shop.shop-0.1:0123abcd")
    return await tap.open(upgrade, label=label)


async def through(tap: Tap, id: str, *requests: bytes, answer: bytes = b"", **of_backend: Any) -> tuple[list[Message], list[LLMCall]]:
    """Sends requests. Returns what the backend got, and the recorded calls."""
    heard: list[Message] = []
    async with backend(answering(answer or said(), requests=heard)) as url, agent(tap.port) as caller:
        await tap.point_at(url, **of_backend)
        for each in requests:
            await caller.ask(each)
    return heard, await tap.close(id)


@pytest.mark.parametrize("upgrade", [True, False, None])
async def test_fields(tap: Tap, upgrade: bool | None) -> None:
    """Each chat request gets the fields, streamed or not, and nothing else changes."""
    streams = json.dumps({**CHAT, "stream": True, "stream_options": {"include_usage": True}}).encode()
    id = await labelled(tap, "thunderagent", upgrade)
    (one, two), (first, _) = await through(tap, id, request(id), request(id, body=streams))
    added = {"stream": True, "stream_options": {"include_usage": True}} if upgrade else {}

    assert {**CHAT, **added, "program_id": "run:shop.shop-0.1:0123abcd"} == one.json
    assert {**json.loads(streams), "program_id": "run:shop.shop-0.1:0123abcd"} == two.json
    assert (bool(upgrade), "m") == (first.upgraded, first.model)


async def test_a_job(tap: Tap) -> None:
    """An engine with Continuum's scheduler gets the job of each call."""
    id = await labelled(tap, "thunderagent", job=True)
    (heard,), _ = await through(tap, id, request(id))

    assert {"program_id", "job_id", "is_last_step"} == heard.json.keys() - CHAT.keys() - {"stream", "stream_options"}
    assert heard.json["program_id"] == heard.json["job_id"]


ONCE: Json = {"include_usage": True}
RUNNING: Json = {"continuous_usage_stats": True}


@pytest.mark.parametrize("upgrade", [True, False, None])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {**ONCE, **RUNNING}, RUNNING, {**ONCE, "x": 1}])
async def test_a_router_that_counts_the_first_usage(tap: Tap, options: Json | None, large: bool, upgrade: bool | None) -> None:
    """ThunderAgent gets only one report of the usage, the last, even if an agent requests more.

    The agent gets the usage that it requested.
    """
    asked = {**(LARGE if large else CHAT), "stream": True, **({} if options is None else {"stream_options": options})}
    answer = stream(event({"content": "Hi"}), event({}, "stop"), event(usage={"prompt_tokens": 3, "completion_tokens": 1}), DONE)
    id = await labelled(tap, "thunderagent", upgrade)
    heard: list[Message] = []
    async with backend(answering(answer, requests=heard)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        got = await caller.ask(request(id, body=json.dumps(asked).encode()))
    (call,) = await tap.close(id)
    others = {name: value for name, value in (options or {}).items() if name not in {**ONCE, **RUNNING}}

    assert {**ONCE, **others} == heard[0].json["stream_options"]
    assert bool((options or {}).get("include_usage")) == (b'"prompt_tokens"' in got.body)
    assert (None, 1, "usage") == (call.error_kind, call.completion_tokens, call.token_source)


async def test_usage_in_each_event_without_such_a_router(tap: Tap) -> None:
    """Without such a router, an agent's option for a usage in each event is kept."""
    body = json.dumps({**CHAT, "stream": True, "stream_options": {**ONCE, **RUNNING}}).encode()
    id = await labelled(tap, "dynamo")
    (heard,), _ = await through(tap, id, request(id, body=body))

    assert {**ONCE, **RUNNING} == heard.json["stream_options"]


async def test_what_the_agent_wrote_stays(tap: Tap) -> None:
    """The session, worker fields and hints of the agent override those of the backend's YAML."""
    id = await labelled(tap, "dynamo", osl=5, priority=1)
    body = json.dumps({**CHAT, "nvext": {"extra_fields": ["timing"], "agent_hints": {"osl": 9}}}).encode()
    (heard,), _ = await through(tap, id, request(id, body=body, headers="X-Dynamo-Session-Id: mine\r\n"))

    assert {"extra_fields": ["timing", "worker_id"], "agent_hints": {"osl": 9, "priority": 1}} == heard.json["nvext"]
    assert "mine" == heard.headers["x-dynamo-session-id"]


#: Where a session's id is put, for a test of labels for any router.
ANYWHERE: Json = {"headers": ["x-session-id"], "fields": ["vllm_xargs.agentic_context.program_id", "session_params.session_id", "user"]}


@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/responses", "/messages", "/embeddings"])
async def test_a_session_of_any_router(tap: Tap, path: str) -> None:
    """The id of the session is in all named headers and fields, but Anthropic Messages get only the headers."""
    id = await labelled(tap, "session", **ANYWHERE)
    name = "run:shop.shop-0.1:0123abcd"
    (heard,), _ = await through(tap, id, request(id, path, b'{"model": "m"}'), answer=response(b"{}"))
    fields = {"vllm_xargs": {"agentic_context": {"program_id": name}}, "session_params": {"session_id": name}, "user": name}

    assert name == heard.headers["x-session-id"]
    assert {"model": "m", **({} if path in ("/messages", "/embeddings") else fields)} == heard.json


async def test_hints_of_any_router(tap: Tap) -> None:
    """Hints are headers of each call beside the session, except those that the agent sends itself."""
    id = await labelled(tap, "session", headers=["x-session-id"], total_requests=12, osl=64, iat=250)
    (heard,), _ = await through(tap, id, request(id, headers="X-Prefix-OSL: 7\r\n"))
    names = ("x-session-id", "x-prefix-id", "x-prefix-total-requests", "x-prefix-osl", "x-prefix-iat")

    assert [*["run:shop.shop-0.1:0123abcd"] * 2, "12", "7", "250"] == [heard.headers[name] for name in names]


TABLE: list[Json] = [
    {"role": "", "turn": turn, "calls": 9, "remaining": remaining, "tokens_p50": 7.0, "tokens_p90": tokens, "next_ms": pause}
    for turn, remaining, tokens, pause in ((1, 1.6, 30.0, 205.4), (2, 0.4, 12.4, None))
]


@pytest.mark.parametrize("kind", ["session", "dynamo"])
async def test_learnt_hints(tap: Tap, kind: str) -> None:
    """Each call has the hints of its number in the session, and later calls those of the last. The record says what the router got."""
    options: Json = {"headers": ["x-session-id"]} if kind == "session" else {}
    labels = make_labels({"kind": kind, **options, "osl": 500, "iat": 99, "table": TABLE})
    id = await tap.open(None, label=labels.of_rollout("s", RolloutKey("shop", "shop-1"), ""))
    heard, calls = await through(tap, id, *[request(id)] * 3)
    told = [(30, 3, 205), (12, 2, 99), (12, 2, 99)]

    if kind == "session":
        assert [("s", *map(str, each)) for each in told] == [
            tuple(each.headers[f"x-prefix-{name}"] for name in ("id", "osl", "total-requests", "iat")) for each in heard
        ]
    else:
        assert [{"osl": tokens} for tokens, *_ in told] == [each.json["nvext"]["agent_hints"] for each in heard]
        assert [f"total_requests:{total}" for _, total, _ in told] == [each.json["nvext"]["annotations"][1] for each in heard]
    assert [ToldHints(30, 7.0, 1.6, 205), *[ToldHints(12, 7.0, 0.4, 99)] * 2] == [each.hints for each in calls]


async def test_what_the_record_says_of_static_hints(tap: Tap) -> None:
    """Of static hints, the record has the tokens and the calls that should follow, down to none."""
    labels = make_labels({"kind": "dynamo", "osl": 64, "total_requests": 2, "priority": 1})
    id = await tap.open(None, label=labels.of_rollout("s", RolloutKey("shop", "shop-1"), ""))
    _, calls = await through(tap, id, *[request(id)] * 3)

    assert [ToldHints(64, None, remaining) for remaining in (1, 0, 0)] == [each.hints for each in calls]


async def test_no_record_without_hints_about_a_call(tap: Tap) -> None:
    """A priority says nothing about a call that could be right or wrong, so the record has no hints."""
    labels = make_labels({"kind": "dynamo", "priority": 1, "table": [{**TABLE[0], "role": "judge"}]})
    id = await tap.open(None, label=labels.of_rollout("s", RolloutKey("shop", "shop-1"), ""))
    _, (call,) = await through(tap, id, request(id))

    assert None is call.hints


async def test_speculative_prefills(tap: Tap) -> None:
    """The record says which chats ask for a speculative prefill, whether a label does or the agent. Calls of other APIs get none."""
    by_label = make_labels({"kind": "dynamo", "speculative_prefill": True}).of_rollout("s", RolloutKey("shop", "shop-1"), "")
    own = {"nvext": {"agent_hints": {"speculative_prefill": False}}}
    asked = {"nvext": {"agent_hints": {"speculative_prefill": True}}}
    large = json.dumps(LARGE).encode()
    found = []
    for label, path, body in (
        (by_label, "/chat/completions", json.dumps(CHAT).encode()),
        (by_label, "/chat/completions", large),
        (by_label, "/chat/completions", json.dumps({**CHAT, **own}).encode()),
        (by_label, "/completions", b'{"model": "m", "prompt": "Hi"}'),
        (NO_LABEL, "/chat/completions", json.dumps({**CHAT, **asked}).encode()),
        (NO_LABEL, "/chat/completions", json.dumps(CHAT).encode()),
    ):
        id = await tap.open(None, label=label)
        _, (call,) = await through(tap, id, request(id, path, body))
        found.append(call.speculative)

    assert [True, True, False, False, True, False] == found


async def test_a_session_that_the_agent_names(tap: Tap) -> None:
    """The session's id that an agent sends itself is kept, in headers and in nested fields, beside the fields that it lacks."""
    id = await labelled(tap, "session", **ANYWHERE)
    body = json.dumps({**CHAT, "user": "me", "vllm_xargs": {"agentic_context": {"program_id": "mine"}, "top": 1}}).encode()
    (heard,), _ = await through(tap, id, request(id, body=body, headers="X-Session-ID: own\r\n"))

    assert ("own", "me") == (heard.headers["x-session-id"], heard.json["user"])
    assert {"agentic_context": {"program_id": "mine"}, "top": 1} == heard.json["vllm_xargs"]
    assert {"session_id": "run:shop.shop-0.1:0123abcd"} == heard.json["session_params"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/chat/completions", {"nvext": NVEXT}),
        ("/completions", {"nvext": NVEXT}),
        ("/responses", {"nvext": NVEXT}),
        ("/messages", {}),
        ("/embeddings", {}),
    ],
)
async def test_what_each_api_takes(tap: Tap, path: str, fields: Json) -> None:
    """Headers are added to each request, fields only in APIs that allow them. Other bodies are not changed by a byte."""
    id = await labelled(tap, "dynamo")
    body = b'{"model":  "m"}'
    (heard,), _ = await through(tap, id, request(id, path, body), answer=response(b"{}"))

    assert "run:shop.shop-0.1:0123abcd" == heard.headers["x-dynamo-session-id"]
    assert {"model": "m", **fields} == heard.json
    assert fields or body == heard.body


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b"\xff"])
async def test_invalid_bodies(tap: Tap, body: bytes) -> None:
    """Invalid bodies are forwarded unchanged with the header, and the backend decides."""
    id = await labelled(tap, "dynamo")
    (heard,), _ = await through(tap, id, request(id, body=body), answer=response(b"no", 400))

    assert (body, "run:shop.shop-0.1:0123abcd") == (heard.body, heard.headers["x-dynamo-session-id"])


async def test_large_bodies(tap: Tap) -> None:
    """Large bodies get their labels in a separate process."""
    id = await labelled(tap, "dynamo")
    (heard,), (call,) = await through(tap, id, request(id, body=json.dumps(LARGE).encode()), answer=said())

    assert {**LARGE, "nvext": NVEXT} == heard.json
    assert "run:shop.shop-0.1:0123abcd" == heard.headers["x-dynamo-session-id"]
    assert None is call.error_kind


async def test_without_labels(tap: Tap) -> None:
    """Without labels the body is forwarded byte for byte."""
    id = await tap.open(upgrade=None, label=make_labels({}).label("x"))
    body = b'{"model":  "m", "messages": []}'
    (heard,), _ = await through(tap, id, request(id, body=body))

    assert (body, None) == (heard.body, heard.headers.get("x-dynamo-session-id"))


@pytest.mark.parametrize("headers", [{"a b": "c"}, {"a": "b\r\nc: d"}])
async def test_invalid_labels(tap: Tap, headers: dict[str, str]) -> None:
    """Invalid labels are refused, and the address is not opened."""
    before = await tap.control.ask(GetTapStats(), TapStats)
    with pytest.raises(InfraError, match="the tap refused the message OpenAddress: the labels of the calls are not valid"):
        await tap.open(label=Label(headers))

    assert before == await tap.control.ask(GetTapStats(), TapStats)


@pytest.mark.parametrize(
    ("answer", "server"),
    [
        (
            stream(
                event({"content": "Hi"}, nvext={"worker_id": TOLD["worker_id"]}),
                event({}, "stop", nvext={**TOLD, "completion_token_ids": [1, 2]}),
                event(usage={"completion_tokens": 1}),
                DONE,
            ),
            TOLD,
        ),
        (stream(event({"content": "Hi"}, "stop", nvext={"worker_id": None}), DONE), None),
        (stream(event({"content": "Hi"}, "stop", nvext=5), DONE), None),
        (said(), None),
        (
            response(json.dumps({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}], "nvext": TOLD}).encode()),
            TOLD,
        ),
    ],
)
async def test_worker_and_times_of_the_server(tap: Tap, answer: bytes, server: Json | None) -> None:
    """The record has the worker and the server's times, from the last chunk or an answer without streaming. The journal keeps them."""
    id = await labelled(tap, "dynamo", True)
    _, (call,) = await through(tap, id, request(id), answer=answer)

    assert server == call.server
    assert call == codec.received(LLMCall, json.loads(json.dumps(codec.plain(call))))


#: Path of a call -> an answer in its API and the answer's id.
CALLED: Json = {
    "chat/completions": {"id": "chatcmpl-7", "choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]},
    "responses": {"id": "resp_7", "object": "response", "status": "completed", "output": []},
    "messages": {"id": "msg_7", "type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn", "usage": {}},
}


@pytest.mark.parametrize("path", CALLED)
async def test_the_id_of_an_answer(tap: Tap, path: str) -> None:
    """The record has the answer's id in all APIs. An id that is not text is dropped."""
    ids = []
    for answer in (CALLED[path], {**CALLED[path], "id": 7}):
        id = await tap.open()
        _, (call,) = await through(tap, id, request(id, path=f"/{path}"), answer=response(json.dumps(answer).encode()))
        ids.append(call.response_id)

    assert [CALLED[path]["id"], None] == ids


async def test_headers_of_the_backend(tap: Tap) -> None:
    """Headers of the backend are added to each request, and replace the agent's headers with these names."""
    id = await tap.open()
    own = "x-team: agents\r\nX-Own: 1\r\nauthorization: Bearer agent\r\n"
    (heard,), _ = await through(tap, id, request(id, headers=own), headers={"X-Team": "bench", "Authorization": "Basic abc"})

    assert ("bench", "1", "Basic abc") == tuple(heard.headers[name] for name in ("x-team", "x-own", "authorization"))


@pytest.mark.parametrize("of_backend", [{"headers": {"a": "b\n"}}, {"headers": {"": "b"}}])
async def test_invalid_headers(tap: Tap, of_backend: Json) -> None:
    """A backend with an invalid header is refused."""
    with pytest.raises(InfraError, match="the tap refused the message PointAt: calls cannot be sent to"):
        await tap.point_at("http://127.0.0.1:9", **of_backend)


@pytest.mark.parametrize("rate", [0, -1])
async def test_invalid_rates(tap: Tap, rate: float) -> None:
    """A backend whose rate limit is not positive is refused."""
    with pytest.raises(InfraError, match="the tap refused the message PointAt: calls cannot be sent to"):
        await tap.point_at("http://127.0.0.1:9", requests_per_minute=rate)


async def test_a_rate_limit(start_tap: StartTap) -> None:
    """Calls are sent one by one at equal intervals. The wait does not count for TTFT or time limits, and is recorded."""
    tap = await opened(start_tap(token=TOKEN, budgets=Budgets(call=0.45)))
    id = await tap.open()
    async with backend(answering(said())) as url:
        await tap.point_at(url, requests_per_minute=120)
        await asyncio.gather(*(_asks(tap, request(id)) for _ in range(3)))
    calls = await tap.close(id)
    tap.control.close()
    sent = sorted(call.sent_ns or 0 for call in calls)

    assert [None] * 3 == [call.error_kind for call in calls]
    assert [] == [gap for gap in (later - earlier for earlier, later in pairwise(sent)) if gap < 450_000_000]
    assert [] == [call for call in calls if not 0 <= call.held_ns <= (call.sent_ns or 0) - call.received_ns]
    assert 100_000_000 < max(call.held_ns for call in calls)


async def test_calls_that_leave_while_they_are_held(start_tap: StartTap) -> None:
    """Calls whose agent disconnects while they wait are never sent, and do not delay later ones."""
    tap = await opened(start_tap(token=TOKEN))
    id, other = await tap.open(), await tap.open()
    heard: list[Message] = []
    async with backend(answering(said(), requests=heard)) as url:
        await tap.point_at(url, requests_per_minute=60)
        await _asks(tap, request(id))
        async with agent(tap.port) as leaving:
            await leaving.send(request(id))
            await until(lambda: _in_flight(tap, 1), "the held call")
        await until(tap.is_idle, "its end")
        await _asks(tap, request(other))
    _, left = await tap.close(id)
    (following,) = await tap.close(other)
    tap.control.close()

    assert (None, "client_gone", None) == (left.sent_ns, left.error_kind, following.error_kind)
    assert 2 == len(heard)


async def opened(child: Child) -> Tap:
    ports = child.ready(TapListening)
    return Tap(child, ports, await TapControl.connect(ports.control_port, TOKEN))


async def _in_flight(tap: Tap, count: int) -> bool:
    return await tap.in_flight() == count


async def _asks(tap: Tap, data: bytes) -> Message:
    async with agent(tap.port) as caller:
        return await caller.ask(data)
