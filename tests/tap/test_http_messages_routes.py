"""The requests that an agent may send to its address, and what happens to all others."""

from __future__ import annotations

import pytest

from pytest_agentbench.tap.dialects import DIALECTS
from pytest_agentbench.tap.http_messages import UNMEASURED, refusal, split_target
from tests.tap.peers import Message, Tap, agent, answering, backend, request, response, said, text_of

RELAYED = [
    *(("POST", route) for route in (*DIALECTS, *UNMEASURED)),
    *(
        (method, path)
        for method in ("GET", "HEAD")
        for path in ("/models", "/models/m", "/models/some/m", "/models/some%2Fm", "/responses/r1")
    ),
]

#: Other ways to write a path that some server or router takes for that of a call.
DISGUISES = [
    "/%63hat/completions",
    "/%2563hat/completions",
    "/chat%2Fcompletions",
    "/chat/completions/",
    "/chat//completions",
    "//chat/completions",
    "/./chat/completions",
    "/x/../chat/completions",
    "/%2e%2e/v1/chat/completions",
    "/models/../chat/completions",
    "/models/%2e%2e/chat/completions",
    "/v1/chat/completions",
    "/%76%31/chat/completions",
    "/Chat/Completions",
    "/chat/completions;a=b",
    "/chat/completions%20",
    "/chat\\completions",
    "/openai/deployments/m/chat/completions",
    "/generate",
    "/completion",
    "",
    "/",
]


@pytest.mark.parametrize(("method", "route"), RELAYED)
def test_allowed_requests(method: str, route: str) -> None:
    """LLM calls, requests for models, and requests that do not run the model are forwarded."""
    assert refusal(method.encode(), route) is None


@pytest.mark.parametrize("route", DISGUISES)
@pytest.mark.parametrize("method", ["POST", "GET", "PUT"])
def test_other_spellings_of_a_path(method: str, route: str) -> None:
    """No other spelling of a call's path is forwarded, with any method."""
    refused = refusal(method.encode(), route)

    assert refused is not None
    assert 404 == refused[0]


@pytest.mark.parametrize(
    ("method", "route"),
    [
        *((method, "/chat/completions") for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS")),
        *((method, "/models/m") for method in ("POST", "DELETE")),
        ("GET", "/tokenize"),
    ],
)
def test_other_methods(method: str, route: str) -> None:
    """A path that is allowed for one method is not allowed for others, so the backend's key cannot be used to change or delete anything."""
    refused = refusal(method.encode(), route)

    assert refused is not None
    assert 405 == refused[0]


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("/r/abc/v1/chat/completions", ("abc", "/chat/completions")),
        ("/r/abc/chat/completions?x=1", ("abc", "/chat/completions?x=1")),
        ("/r/abc/v1//chat/completions", ("abc", "//chat/completions")),
        ("/r/abc//chat/completions", ("abc", "//chat/completions")),
        ("/%72/abc/v1/chat/completions", ("", "/%72/abc/v1/chat/completions")),
        ("//r/abc/v1/chat/completions", ("", "//r/abc/v1/chat/completions")),
        ("http://tap/r/abc/v1/chat/completions", ("", "http://tap/r/abc/v1/chat/completions")),
    ],
)
def test_addresses(target: str, parts: tuple[str, str]) -> None:
    """The path of a rollout's address must be exactly as given."""
    assert parts == split_target(target)


async def test_a_refusal_is_seen(tap: Tap) -> None:
    """A refused request does not reach the backend. The agent is told what is allowed, and the request is recorded among the calls."""
    id = await tap.open()
    requests: list[Message] = []
    async with backend(answering(said(), requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url, api_key="secret")
        disguised = await caller.ask(request(id, "/%63hat/completions"))
        deleting = await caller.ask(request(id, "/models/m", method="DELETE"))
        got = await caller.ask(request(id, "/chat/completions?x=1"))
    first, second, third = await tap.close(id)

    assert [404, 405, 200] == [disguised.status, deleting.status, got.status]
    assert ["POST /chat/completions?x=1 HTTP/1.1"] == [each.first for each in requests]
    sentence = disguised.json["error"]["message"]
    assert sentence.startswith(
        "POST /%63hat/completions is not forwarded, because it would not be measured. "
        "Below OPENAI_BASE_URL, the tap forwards LLM calls (POST /chat/"
    )
    assert ("refused", sentence, "", None) == (first.error_kind, first.error, first.dialect, first.sent_ns)
    assert ("refused", True) == (second.error_kind, second.error.startswith("DELETE /models/m is not forwarded"))
    assert (None, "chat") == (third.error_kind, third.dialect)


async def test_allowed_requests_that_are_not_calls(tap: Tap) -> None:
    """Requests that are not LLM calls are forwarded unchanged, and not recorded."""
    id = await tap.open()
    requests: list[Message] = []
    async with backend(answering(response(b"[]"), requests=requests)) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        answers = [await caller.ask(request(id, route, b"{}")) for route in UNMEASURED]
        answers.append(await caller.ask(request(id, "/models/some%2Fm?x=1", method="GET")))

    assert {(200, b"[]")} == {(each.status, each.body) for each in answers}
    assert [*(f"POST {route} HTTP/1.1" for route in UNMEASURED), "GET /models/some%2Fm?x=1 HTTP/1.1"] == [each.first for each in requests]
    assert [] == await tap.close(id)


async def test_other_requests_do_not_count_as_the_first_call(tap: Tap) -> None:
    """Other requests do not count towards the single call of a rollout, and are still allowed after it."""
    id = await tap.open(calls=1)
    models = request(id, "/models", method="GET")
    async with backend(answering(response(b"{}"), response(b"{}"), said("first"), response(b"{}"))) as url, agent(tap.port) as caller:
        await tap.point_at(url)
        before = [await caller.ask(each) for each in (models, request(id, "/tokenize", b"{}"), request(id, "/generate", b"{}"))]
        call, second = await caller.ask(request(id)), await caller.ask(request(id))
        after = await caller.ask(models)

    assert [200, 200, 404] == [each.status for each in before]
    assert ("first", 410, 200) == (text_of(call), second.status, after.status)
    assert ["refused", None] == [call.error_kind for call in await tap.close(id)]
