"""Facts about what a model accepts: from declarations, and from the error messages of real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from pytest_agentbench.errors import InfraError, LimitReached
from pytest_agentbench.llm.client import LLM, ModelFacts
from pytest_agentbench.records import Json
from tests.web import listening

ASKED: list[Json] = [{"role": "user", "content": "x" * 400}]  # estimated as 100 tokens
ANSWER: Json = {"choices": [{"message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]}

NO_MAX_TOKENS = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
NO_TEMPERATURE = "Unsupported value: 'temperature' does not support {} with this model. Only the default (1) value is supported."
CONTEXT = "This model's maximum context length is 32768 tokens"
EXCEEDED = "Requested token count exceeds the model's maximum context length of 32768 tokens."


class Server:
    """Refuses what a model does not accept, with messages of real servers, and stores the requests."""

    def __init__(self, refusal: Callable[[Json], str], status: int) -> None:
        self.refusal, self.status = refusal, status
        self.bodies: list[Json] = []

    async def chat(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        if words := self.refusal(self.bodies[-1]):
            return web.json_response({"error": {"message": words, "type": "invalid_request_error", "code": None}}, status=self.status)
        return web.json_response(ANSWER)

    @property
    def asked(self) -> list[Json]:
        """Returns the fields of each request except model and messages."""
        return [{name: value for name, value in body.items() if name not in ("model", "messages")} for body in self.bodies]


@asynccontextmanager
async def serving(refusal: Callable[[Json], str], facts: ModelFacts | None = None, status: int = 400) -> AsyncIterator[tuple[Server, LLM]]:
    server, application = Server(refusal, status), web.Application()
    application.router.add_post("/v1/chat/completions", server.chat)
    async with listening(application) as url:
        yield server, LLM(f"{url}/v1", "gpt-5", facts=facts)


def as_gpt_5(body: Json) -> str:
    """Returns OpenAI's message about a request to gpt-5. It names one field at a time."""
    if "max_tokens" in body:
        return NO_MAX_TOKENS
    return NO_TEMPERATURE.format(body["temperature"]) if body.get("temperature", 1) != 1 else ""


def as_an_old_deployment(body: Json) -> str:
    """Returns Azure's message if the version of its API is old."""
    return "Unrecognized request argument supplied: max_completion_tokens" if "max_completion_tokens" in body else ""


async def test_fields_that_are_refused() -> None:
    """Each refused field is sent under its accepted name, or left out, and the client remembers it."""
    async with serving(as_gpt_5) as (server, llm):
        first = await llm.chat(ASKED, temperature=0.2, max_tokens=8000)
        await llm.chat(ASKED, temperature=0.2, max_tokens=4000)

    assert "Yes." == first.text
    assert [
        {"temperature": 0.2, "max_tokens": 8000},
        {"temperature": 0.2, "max_completion_tokens": 8000},
        {"max_completion_tokens": 8000},
        {"max_completion_tokens": 4000},
    ] == server.asked
    assert {"max_tokens": "max_completion_tokens", "temperature": None} == llm.facts.request_fields


async def test_an_old_deployment() -> None:
    """The old name of a limit is used if the server does not know the new one."""
    async with serving(as_an_old_deployment) as (server, llm):
        await llm.chat(ASKED, max_completion_tokens=50)

    assert [{"max_completion_tokens": 50}, {"max_tokens": 50}] == server.asked


@pytest.mark.parametrize(
    "content",
    [b'{"error": {"message": "\\u0027seed\\u0027 is not supported with this model."}}', b"'seed' is not supported with this model"],
)
def test_words_in_other_forms(content: bytes) -> None:
    """Quotes may be escaped, and an error need not be JSON."""
    correction = ModelFacts().corrected({"model": "m", "messages": [], "seed": 1}, 400, content)

    assert correction is not None and "seed" not in correction.body


async def test_fields_that_are_known() -> None:
    """Declared names are used in the first request. An explicit limit with the new name has priority over the old one."""
    facts = ModelFacts({"max_tokens": "max_completion_tokens", "temperature": None})
    async with serving(as_gpt_5, facts) as (server, llm):
        await llm.chat(ASKED, temperature=0.2, max_tokens=8000, max_completion_tokens=10)

    assert [{"max_completion_tokens": 10}] == server.asked


@pytest.mark.parametrize(
    ("words", "tries"),
    [
        (NO_MAX_TOKENS, 2),  # the message is about both names of the limit
        ("Unsupported parameter: 'messages' is not supported with this model.", 1),
        ("Unsupported parameter: 'seed' is not supported with this model.", 1),  # a field that was not sent
        ("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.", 1),
        ("Something else.", 1),
    ],
)
async def test_a_refusal_that_stays(words: str, tries: int) -> None:
    """A refusal without a new fact ends the call, with the server's message."""
    async with serving(lambda _: words) as (server, llm):
        with pytest.raises((InfraError, LimitReached), match=words.partition("(")[0][:40]):
            await llm.chat(ASKED, max_tokens=50)

    assert tries == len(server.bodies)


async def test_other_statuses() -> None:
    """A request is not corrected after a server error."""
    async with serving(lambda _: NO_MAX_TOKENS, status=500) as (server, llm):
        with pytest.raises(InfraError):
            await llm.chat(ASKED, max_tokens=50)

    assert 1 == len(server.bodies)


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        # Messages of vLLM in three versions, of SGLang, and of OpenAI without and with functions.
        (f"'max_tokens' is too large: 40000. {CONTEXT} and your request has 768 input tokens (40000 > 32768 - 768).", 32000),
        (f"{CONTEXT}. However, your request has 768 input tokens plus 40000 'max_tokens'.", 32000),
        ("You passed 768 input tokens and requested 40000 output tokens. However, the model's context length is only 32768 tokens", 32000),
        (f"{EXCEEDED} You requested a total of 40768 tokens: 768 tokens from the input messages and 40000 for the completion.", 32000),
        (f"{CONTEXT}. However, you requested 40768 tokens (768 in the messages, 40000 in the completion).", 32000),
        (
            f"{CONTEXT}. However, you requested 40868 tokens (768 in the messages, 100 in the functions, and 40000 in the completion).",
            31900,
        ),
        ("max_tokens is too large: 40000. This model supports at most 16384 completion tokens, whereas you provided 40000.", 16384),
    ],
)
async def test_lengths_that_are_refused(words: str, limit: int) -> None:
    """If the requested length is refused, it is reduced to the length that the server allows."""
    async with serving(lambda body: words if body["max_tokens"] > limit else "") as (server, llm):
        await llm.chat(ASKED, max_tokens=40000)

    assert [40000, limit] == [body["max_tokens"] for body in server.bodies]
    assert (32768, None) == (llm.facts.context_length, None) or 16384 == llm.facts.longest_answer


@pytest.mark.parametrize(
    ("context", "characters", "asked", "sent"),
    [
        (32768, 300, 40000, 32768 - 100 - 256),  # 100 tokens of dense text and 256 of a chat template are subtracted
        (32768, 300, 8000, 8000),  # fits
        (32768, 100_000, 12000, 12000),  # fits plain text; for other text the server refuses the length
        (None, 400, 40000, 40000),  # the context length is unknown
        (32768, 90_000, 40000, 40000),  # little is left, and an estimate is too coarse, so the server has to count
    ],
)
def test_lengths_that_are_known(context: int | None, characters: int, asked: int, sent: int) -> None:
    """The requested length is at most what the model's declared limits allow after the prompt."""
    body: Json = {"model": "m", "messages": [{"role": "user", "content": "x" * characters}], "max_tokens": asked}

    assert sent == ModelFacts(context_length=context).fitted(body)["max_tokens"]


@pytest.mark.parametrize(
    ("message", "more"),
    [
        ({"content": [{"type": "text", "text": "x" * 300}, {"type": "image_url", "image_url": {"url": "x" * 9000}}]}, {}),
        ({"content": "x" * 296}, {"tools": [{}]}),
    ],
)
def test_what_a_prompt_is_made_of(message: Json, more: dict[str, Any]) -> None:
    """Texts in parts and tools count, but pictures do not."""
    body: Json = {"model": "m", "messages": [{"role": "user", **message}], "max_tokens": 50_000, **more}

    assert 10_000 - 100 - 256 == ModelFacts(context_length=10_000).fitted(body)["max_tokens"]


def test_an_answer_without_a_limit() -> None:
    """A request without a length limit gets none."""
    body: Json = {"model": "m", "messages": ASKED}

    assert body == ModelFacts(context_length=1000, longest_answer=10).fitted(body)
