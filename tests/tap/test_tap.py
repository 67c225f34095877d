"""Calls to a real engine: an agent gets the same answer through the tap as directly."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import openai
import pytest

from pytest_agentbench.records import Json, LLMCall
from tests.tap.conftest import StartEngine
from tests.tap.peers import Message, Tap, agent, answering, backend, request, said, until

TEXT = "Grüße aus Köln 😀, and some more words to stream."
CALLS = [
    {"name": "find", "arguments": {"what": "lamp", "where": ["a", "b"]}},
    {"name": "buy", "arguments": '{"broken": '},
    {"name": "stop"},
]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}} for name in ("find", "buy", "stop")
]

ANSWERS: dict[str, Json] = {
    "text": {"text": TEXT},
    "calls": {"tool_calls": CALLS},
    "text and calls": {"text": TEXT, "tool_calls": CALLS[:1]},
    "large chunks": {"text": TEXT * 20, "tool_calls": CALLS, "tokens_per_chunk": 7},
    "split characters": {"text": TEXT, "split_utf8": True},
    "another finish reason": {"text": TEXT, "finish_reason": "content_filter"},
    "slow": {"text": TEXT, "ttft_ms": 30, "itl_ms": 2, "stall": {"after": 3, "ms": 30}},
}

REQUESTS: dict[str, Json] = {
    "plain": {},
    "cut short": {"max_tokens": 4},
    "stopped": {"stop": ["more"]},
    "forced": {"tool_choice": {"type": "function", "function": {"name": "find"}}},
    "no stream": {"stream": False},
    "null": {"stream": None, "stream_options": None},
}


FAULTS: dict[str, tuple[Json, str]] = {
    "cut": ({"text": TEXT, "cut_after": 3}, "cut"),
    "cut at once": ({"text": TEXT, "cut_after": 0}, "cut"),
    "cut at the end": ({"text": TEXT, "cut_after": 999}, "cut"),
    "cut in a call": ({"tool_calls": CALLS, "cut_after": 8}, "cut"),
    "malformed": ({"text": TEXT, "malformed_json_after": 2}, "bad_json"),
    "error": ({"text": TEXT, "error_event_after": 2}, "error_event"),
    "empty": ({"empty": True}, "empty"),
    "nothing": ({"text": "", "finish_reason": "abort"}, "empty"),
}

OTHERS: dict[str, Json] = {
    "busy": {"status": 429, "message": "Too many.", "retry_after": 3},
    "paced": {"text": "a b c d e f", "ttft_ms": 30, "itl_ms": 15},
    **{f"number {each}.": {"text": f"answer {each} " * 5, "itl_ms": 2} for each in range(20)},
}

RULES = {**ANSWERS, **{name: rule for name, (rule, _) in FAULTS.items()}, **OTHERS}


@pytest.fixture(scope="session")
def url(start_engine: StartEngine) -> str:
    """Starts an engine that answers a request with <NAME> in its text by the rule of that name. Returns its URL."""
    return start_engine(*({"match": {"contains": f"<{name}>"}, **rule} for name, rule in RULES.items()))


def body(rule: str = "text", **more: Any) -> Json:
    return {"model": "m", "messages": [{"role": "user", "content": f"Say <{rule}>"}], "tools": TOOLS, **more}


async def post(session: aiohttp.ClientSession, url: str, body: Json, **headers: str) -> tuple[int, Any]:
    async with session.post(f"{url}/chat/completions", json=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def call(tap: Tap, session: aiohttp.ClientSession, url: str, body: Json, **headers: str) -> tuple[int, Any, LLMCall]:
    """Makes a call through the tap. Returns (status, answer, record)."""
    await tap.point_at(url)
    id = await tap.open()
    status, answer = await post(session, tap.url(id), body, **headers)
    (record,) = await tap.close(id)
    return status, answer, record


@pytest.mark.parametrize("more", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("name", ANSWERS)
async def test_equal_to_the_engine(tap: Tap, url: str, session: aiohttp.ClientSession, name: str, more: Json) -> None:
    """All fields are as without streaming and without a tap, except id and time, which the engine creates for each answer."""
    _, direct = await post(session, url, body(name, **more))
    status, through, record = await call(tap, session, url, body(name, **more))

    direct["usage"].pop("prompt_tokens_details")
    cached = through["usage"].pop("prompt_tokens_details")["cached_tokens"]
    for answer in (direct, through):
        assert answer.pop("id").startswith("chatcmpl-")
        assert isinstance(answer.pop("created"), int)
    assert (200, direct) == (status, through)
    usage = direct["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], cached) == (
        record.prompt_tokens,
        record.completion_tokens,
        record.cached_tokens,
    )
    assert (direct["choices"][0]["finish_reason"], "usage", None) == (record.finish_reason, record.token_source, record.error_kind)
    assert ["role", "finish", "usage"] == [chunk.kind for chunk in record.chunks if chunk.kind not in ("content", "tool_call")]


@pytest.mark.parametrize("name", FAULTS)
async def test_faults_of_the_engine(tap: Tap, url: str, session: aiohttp.ClientSession, name: str) -> None:
    """A fault in the middle of an answer is a 502 with its kind, never a success. The record has what arrived before it."""
    kind = FAULTS[name][1]
    status, answer, record = await call(tap, session, url, body(name))

    assert (502, "agentbench_tap", kind) == (status, answer["error"]["type"], answer["error"]["code"])
    assert answer["error"]["message"] == record.error != ""
    assert (kind, 200) == (record.error_kind, record.http_status)
    assert kind == "empty" or record.chunks[0].kind == "role"


async def test_errors_of_the_engine(tap: Tap, url: str, session: aiohttp.ClientSession) -> None:
    """Other statuses are forwarded as the engine sends them, with Retry-After."""
    await tap.point_at(url)
    id = await tap.open()
    async with session.post(f"{tap.url(id)}/chat/completions", json=body("busy")) as answer:
        got = await answer.json()
    (record,) = await tap.close(id)

    assert (429, "3", "Too many.", "rate_limit_error") == (
        answer.status,
        answer.headers["Retry-After"],
        got["error"]["message"],
        got["error"]["type"],
    )
    assert ("rate_limited", "HTTP 429: Too many.") == (record.error_kind, record.error)


async def test_an_engine_that_dies(tap: Tap, start_engine: StartEngine, session: aiohttp.ClientSession) -> None:
    """A backend that dies during an answer is a `cut`, and one that is dead a failed connection."""
    url = start_engine({"exit": True})
    kinds = [(await call(tap, session, url, body()))[2].error_kind]

    async def is_gone() -> bool:
        kinds.append((await call(tap, session, url, body()))[2].error_kind)
        return kinds[-1] == "connect"

    await until(is_gone, "the end of the process")

    assert {"cut"} == set(kinds[:-1])


async def test_the_openai_client(tap: Tap, url: str) -> None:
    """An agent with the openai SDK gets the same answers, streaming or not. The record shows which it was."""
    await tap.point_at(url)
    id = await tap.open()
    async with openai.AsyncOpenAI(base_url=tap.url(id), api_key="x", max_retries=0) as client:
        whole = await client.chat.completions.create(**body("text and calls"))
        stream: Any = await client.chat.completions.create(**body("text and calls", stream=True))
        pieces = [piece async for piece in stream]
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(**body(model="other"))
        models = await client.models.list()
    first, second, third = await tap.close(id)

    message = whole.choices[0].message
    assert TEXT == message.content == "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert ["find"] == [each.function.name for each in message.tool_calls or () if each.type == "function"]
    assert "m" == models.data[0].id
    assert [False, True, False] == [each.streamed for each in (first, second, third)]
    assert ["usage", "usage", "none"] == [each.token_source for each in (first, second, third)]
    assert first.completion_tokens == second.completion_tokens
    assert [None, None, "http_status"] == [each.error_kind for each in (first, second, third)]


async def test_stamps(tap: Tap, url: str, session: aiohttp.ClientSession) -> None:
    """The times of call, receipt, send, chunks and end are in this order."""
    called = time.monotonic_ns()
    _, _, record = await call(tap, session, url, body("paced"), **{"x-agentbench-called-ns": str(called)})

    assert record.sent_ns is not None
    stamps = [called, record.received_ns, record.sent_ns, *(chunk.at_ns for chunk in record.chunks), record.ended_ns]
    assert (called, sorted(stamps)) == (record.called_ns, stamps)


@pytest.mark.parametrize("called", ["", "soon", "-5", "1.5", "9" * 5000, str(10**19 - 1), "٥"])
async def test_a_client_with_an_implausible_time(tap: Tap, url: str, session: aiohttp.ClientSession, called: str) -> None:
    """A client's time of the call is only recorded if it is plausible."""
    _, _, record = await call(tap, session, url, body(), **{"x-agentbench-called-ns": called})

    assert record.called_ns is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 100_000])
async def test_bodies_that_the_tap_cannot_read(tap: Tap, url: str, session: aiohttp.ClientSession, content: bytes) -> None:
    """Unreadable bodies are forwarded to the backend."""
    await tap.point_at(url)
    id = await tap.open()
    async with (
        session.post(f"{url}/chat/completions", data=content) as direct,
        session.post(f"{tap.url(id)}/chat/completions", data=content) as through,
    ):
        assert (400, await direct.read()) == (through.status, await through.read())
    (record,) = await tap.close(id)

    assert ("http_status", len(content)) == (record.error_kind, record.request_bytes)


async def test_odd_requests(tap: Tap, url: str, session: aiohttp.ClientSession) -> None:
    """A request with unusual values in the fields that the tap reads is streamed or not, but always forwarded."""
    for odd in ({"stream_options": "x"}, {"stream_options": {"include_usage": False}}, {"stream": 0}, {"stream": ""}):
        status, _, record = await call(tap, session, url, body(**odd))
        assert status in (200, 400)
        assert (status == 200) == (record.error_kind is None)
    status, answer, _ = await call(tap, session, url, body(model={"x": 1}))

    assert (400, "model") == (status, answer["error"]["param"])


async def test_half_an_emoji_in_a_request(tap: Tap) -> None:
    """Requests with halves of UTF-16 surrogate pairs are streamed like any other."""
    id = await tap.open()
    requests: list[Message] = []
    content = b'{"model": "m", "messages": [{"role": "user", "content": "\\ud83d"}]}'
    async with backend(answering(said(), requests=requests)) as raw, agent(tap.port) as caller:
        await tap.point_at(raw)
        answer = await caller.ask(request(id, body=content))

    assert 200 == answer.status
    upgrade = {"stream": True, "stream_options": {"include_usage": True}}
    assert {"model": "m", "messages": [{"role": "user", "content": "\ud83d"}], **upgrade} == requests[0].json


async def test_many_calls_at_once(tap: Tap, url: str, session: aiohttp.ClientSession) -> None:
    """Answers of simultaneous calls are not mixed up, and each rollout gets its own records."""
    await tap.point_at(url)
    ids = [await tap.open() for _ in range(20)]

    async def ask(each: int) -> str:
        _, answer = await post(session, tap.url(ids[each]), body(f"number {each}."))
        return str(answer["choices"][0]["message"]["content"])

    for _ in range(3):
        assert [f"answer {each} " * 5 for each in range(20)] == await asyncio.gather(*map(ask, range(20)))
    assert [3] * 20 == [len(await tap.close(id)) for id in ids]
