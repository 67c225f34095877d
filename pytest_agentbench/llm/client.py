"""The model client that agents and scorers get for one rollout. It calls the tap, which records, streams and assembles the answers.

The module also keeps facts about each model: the request fields and numbers of tokens that it accepts. They come from YAML files and
from servers, and are corrected if a server refuses a request.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from pytest_agentbench.errors import AgentError, InfraError, LimitReached
from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.abandoned import refuse_abandoned
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.model_texts import object_text
from pytest_agentbench.metrics.blame import LIMIT, context_is_full
from pytest_agentbench.records import JUDGE, Json
from pytest_agentbench.tap.dialects.reader import error_message, is_error
from pytest_agentbench.tap.http_messages import REFUSALS, TAP_ERROR_TYPE, holds_broken_arguments

if TYPE_CHECKING:
    import aiohttp
    from openai import AsyncOpenAI, OpenAI


#: Characters per token in an ordinary text. It is an estimate, because the model's own tokenizer is not available.
CHARACTERS = 4

#: Characters per token in dense texts such as formulas, and in plain ones.
FEWEST, MOST = 3, 5

#: Tokens that a chat template may add to a prompt.
TEMPLATE = 256

#: Fields that limit the length of an answer. A server supports one of them or both.
OLD_LIMIT, NEW_LIMIT = "max_tokens", "max_completion_tokens"

#: Fields that are never left out, because the request would have another meaning without them.
NEEDED = frozenset({"model", "messages", "tools", "tool_choice", "response_format"})

# Error messages of OpenAI and Azure about fields, and of OpenAI, Azure, vLLM and SGLang about lengths.
_FIELD = re.compile(
    r"'(\w+)' (?:is not supported|does not support \S+) with this model|unrecognized request argument supplied: (\w+)", re.IGNORECASE
)
_INSTEAD = re.compile(r"use '(\w+)' instead", re.IGNORECASE)
_CONTEXT = re.compile(r"context length (?:is|of)(?: only)? (\d+)", re.IGNORECASE)
_PROMPT = re.compile(r"(?<!\d)(\d{1,12}) (?:in the (?:messages|functions)|input tokens|tokens from the input)", re.IGNORECASE)
_LONGEST = re.compile(r"supports at most (\d+) completion tokens", re.IGNORECASE)


class Correction(NamedTuple):
    """A changed request, which the server may accept after it has refused the original one."""

    fault: str  # name of the refused field, or `length`
    body: Json


@dataclass
class ModelFacts:
    """Facts about the requests that one model accepts. All clients of a session that call this model share one object."""

    request_fields: dict[str, str | None] = field(default_factory=dict)  # field -> accepted name, or None if the field is refused
    context_length: int | None = None  # tokens of prompt and answer together
    longest_answer: int | None = None  # tokens

    def fitted(self, body: Json) -> Json:
        """Returns a request whose fields have the names that the model accepts, and whose length limits leave space for the prompt."""
        names = {name: self.request_fields.get(name, name) for name in body}
        fields = {new: body[name] for name, new in names.items() if new is not None and (new == name or new not in body)}
        bounds = [self.longest_answer, *(self._room(fields, limit) for limit in _limits(fields).values())]
        return _with_limit(fields, min((bound for bound in bounds if bound is not None), default=None))

    def _room(self, body: Json, limit: int) -> int | None:
        """Returns how many tokens an answer can have if `limit` tokens certainly do not fit into the context, else None.

        It also returns None if little space is left, because the prompt is only estimated. If the server refuses the
        request, its error message has the exact number.
        """
        characters = _prompt_characters(body)
        if self.context_length is None or characters // MOST + limit <= self.context_length:
            return None
        room = self.context_length - characters // FEWEST - TEMPLATE
        return room if room > self.context_length // 8 else None

    def corrected(self, body: Json, status: int, content: bytes) -> Correction | None:
        """Corrects a request that the server has refused, or returns None if its error message suggests no correction.

        What the message says about the model is stored in this object, so later requests are corrected before they are sent.
        """
        if status not in REFUSALS:
            return None
        message = _error_text(content)
        if (room := self._room_by(message)) is not None:
            return Correction("length", _with_limit(body, room)) if room > 0 else None
        refused = _FIELD.search(message)
        name = next(filter(None, refused.groups())) if refused else ""
        if name not in body or name in NEEDED:
            return None
        instead = _INSTEAD.search(message)
        self.request_fields[name] = instead[1] if instead else OLD_LIMIT if name == NEW_LIMIT else None
        logging.getLogger(__name__).warning("%s does not accept %s: %s", body.get("model"), name, message)
        return Correction(name, self.fitted(body))

    def _room_by(self, message: str) -> int | None:
        """Returns how many tokens an answer can have according to an error message, or None if the message is not about lengths."""
        if (longest := _LONGEST.search(message)) is not None:
            self.longest_answer = int(longest[1])
            return self.longest_answer
        context, prompt = _CONTEXT.search(message), _PROMPT.findall(message)
        if context is None:
            return None
        self.context_length = int(context[1])
        return self.context_length - sum(map(int, prompt)) if prompt else 0


def estimated_tokens(text: str) -> int:
    """Estimates the number of tokens in a text."""
    return -(-len(text) // CHARACTERS)


def _error_text(content: bytes) -> str:
    answer = json_text.json_object(content)
    return error_message(answer) if is_error(answer) else content.decode(errors="replace")


def _prompt_characters(body: Json) -> int:
    """Counts the characters of a request's texts and tools. Pictures are not counted."""
    tools = body.get("tools")
    texts = [text for message in body["messages"] for text in _texts(message)]
    return sum(map(len, texts)) + (len(json_text.dumps(tools)) if tools else 0)


def _texts(message: Json) -> list[str]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    calls = message.get("tool_calls")
    return [str(part["text"]) for part in parts if isinstance(part, Mapping) and part.get("text")] + ([str(calls)] if calls else [])


def _with_limit(body: Json, most: int | None) -> Json:
    """Returns a request whose length limits are at most `most` tokens. If that is None, returns the request unchanged."""
    return body if most is None else {**body, **{name: min(limit, most) for name, limit in _limits(body).items()}}


def _limits(body: Json) -> dict[str, int]:
    """Returns the fields of a request that limit the length of the answer, with their numbers of tokens."""
    return {name: body[name] for name in (OLD_LIMIT, NEW_LIMIT) if isinstance(body.get(name), int)}


#: Placeholder for the key of openai clients. The tap replaces it by the backend's key.
NO_KEY = "agentbench"

#: Header with the time at which the client was called. The time from then until the request is sent counts as client queue.
CALLED = "x-agentbench-called-ns"

#: Header that allows the tap to request a stream from the backend for a call that does not stream.
UPGRADE = "x-agentbench-stream-upgrade"


@dataclass(frozen=True)
class RequestedCall:
    """A tool call that the model requested."""

    id: str
    name: str
    arguments: str  # JSON text, as the model wrote it


@dataclass(frozen=True)
class Reply:
    """One answer of the model."""

    raw_message: Json  # assistant message of the model, unchanged
    finish_reason: str | None
    usage: Json

    @property
    def message(self) -> Json:
        """The model's message as it is added to the conversation.

        Tool arguments that are not a JSON object are repaired, because servers would refuse them in the next request.
        """
        if not self.raw_message.get("tool_calls"):
            return self.raw_message
        return {**self.raw_message, "tool_calls": [*map(_sendable, self.raw_message["tool_calls"])]}

    @property
    def text(self) -> str:
        return self.raw_message.get("content") or ""

    @property
    def tool_calls(self) -> list[RequestedCall]:
        return [
            RequestedCall(call["id"], call["function"]["name"], call["function"].get("arguments") or "")
            for call in self.raw_message.get("tool_calls") or ()
        ]

    @property
    def is_empty(self) -> bool:
        """Whether the answer is empty: no tool calls, and no text except white space."""
        return not self.raw_message.get("tool_calls") and not self.text.strip()

    def with_one_call(self) -> Reply:
        """Returns the reply without the tool calls after the first one."""
        calls = self.raw_message.get("tool_calls") or []
        return dataclasses.replace(self, raw_message={**self.raw_message, "tool_calls": calls[:1]}) if calls[1:] else self


def _sendable(call: Json) -> Json:
    function = call["function"]
    return {**call, "function": {**function, "arguments": object_text(function.get("arguments") or "")}}


class LLM:
    """A client for calls of one model in one rollout. The agent, each role (a further model that it calls) and each judge have one.

    `role` and `judge` return clients of other models.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        sampling: Mapping[str, Any] | None = None,
        session: aiohttp.ClientSession | None = None,
        roles: Callable[[str, Json | None], Awaitable[LLM]] | None = None,
        said: Callable[[], Awaitable[list[Json]]] | None = None,
        facts: ModelFacts | None = None,
    ) -> None:
        self.base_url = base_url  # URL of the tap with this rollout's token; ends in /v1
        self.model = model
        self.sampling = {name: value for name, value in (sampling or {}).items() if value is not None}
        self.transcript: list[Json] = []  # conversation of the last call, including its answer
        self.structured = True  # whether requests may contain a JSON Schema; False after the server has refused one
        self.facts = ModelFacts() if facts is None else facts  # facts shared with other clients of the model
        self._session, self._roles, self._said = session, roles, said

    async def role(self, name: str) -> LLM:
        """Returns a client of the model that plays a role of the suite. Its calls are recorded as the role's.

        Raises InfraError if the role has no model, or if the model cannot be reached.
        """
        return await self._role_client(name, None)

    async def judge(self, endpoint: Json | None = None) -> LLM:
        """Returns a client of a model that judges. Its calls are recorded as a judge's, and do not count as work of the agent.

        `endpoint` is {url, model, api_key}; `api_key` is the name of an environment variable. Without `endpoint`, the judge is that of the
        suite, or the backend under test if the suite names none. Raises InfraError if the judge cannot be reached.
        """
        return await self._role_client(JUDGE, endpoint)

    async def _role_client(self, role: str, endpoint: Json | None) -> LLM:
        await refuse_abandoned()
        if self._roles is None:
            why = "only agents and scorers of a pytest session can call roles and judges"
            raise InfraError(f"no model for the role {role!r} is available here: {why}")
        return await self._roles(role, endpoint)

    async def said(self) -> list[Json]:
        """Returns the model's answers since the last call of this method, as {text, tool_calls: [{id, name, arguments}]}.

        It is meant for agents with `black_box`, whose own code calls the model without this client. Incomplete answers are left out, and
        calls in progress are cancelled, so call it after that code has ended. Raises InfraError if the tap does not answer.
        """
        await refuse_abandoned()
        return [*map(json_text.readable, await self._said())] if self._said is not None else []

    async def chat(self, messages: Sequence[Json], tools: Sequence[Json] = (), **overrides: Any) -> Reply:
        """Makes one Chat Completions call. `overrides` are request fields such as temperature or tool_choice. The reply may be empty.

        Fields get the names that the model accepts. If the server refuses a field or length, the call is corrected and repeated, at most
        once for each field and once for the length.

        Raises:
            LimitReached: The context is full.
            AgentError: The history was refused because it contains tool arguments of the model that are not a JSON object.
            InfraError: Any other failure.
        """
        await refuse_abandoned()
        if isinstance(messages, str | Mapping):
            raise TypeError(
                "llm.chat takes a list of messages, such as [{'role': 'user', 'content': '...'}], not " + type(messages).__name__
            )
        called = time.monotonic_ns()
        body = {"model": self.model, **self.sampling, "messages": list(messages), **({"tools": list(tools)} if tools else {}), **overrides}
        self.transcript = list(messages)
        answer = await self._post(self.facts.fitted(body), called)
        try:
            choice = answer["choices"][0]
            message = {"role": "assistant", **{name: value for name, value in choice["message"].items() if value is not None}}
        except (LookupError, TypeError, AttributeError) as error:
            raise InfraError(
                f"the server's answer to a chat request contains no message; is it a model server? {beginning(str(answer), 200)}"
            ) from error
        message.setdefault("content", "")
        reply = Reply(message, choice.get("finish_reason"), answer.get("usage") or {})
        self.transcript = [*messages, reply.message]
        return reply

    def openai(self) -> AsyncOpenAI:
        """Returns an openai client that calls the model through the tap, without its own retries and timeouts."""
        from openai import AsyncOpenAI

        return AsyncOpenAI(base_url=self.base_url, api_key=NO_KEY, max_retries=0, timeout=None)

    def openai_sync(self) -> OpenAI:
        """Returns an openai client for blocking code. Use it in a thread (`asyncio.to_thread`), otherwise it blocks other rollouts."""
        from openai import OpenAI

        return OpenAI(base_url=self.base_url, api_key=NO_KEY, max_retries=0, timeout=None)

    async def _post(self, body: Json, called: int) -> Any:
        if self._session is not None:
            return await self._answer(self._session, body, called)
        import aiohttp

        async with aiohttp.ClientSession() as session:  # A client outside of a rollout has no shared session.
            return await self._answer(session, body, called)

    async def _answer(self, session: aiohttp.ClientSession, body: Json, called: int) -> Any:
        """Sends a request, and returns the answer as JSON.

        If the server refuses a field or length, the request is corrected and sent again, at most once for each field and once for the
        length. Any other refusal raises the exception that the function `failure` returns.
        """
        corrected: set[str] = set()
        while True:
            request = json_text.dumps(body)
            status, content = await self._send(session, request, called)
            if status == 200:
                break
            correction = self.facts.corrected(body, status, content)
            if correction is None or correction.fault in corrected or correction.body == body:
                raise failure(status, content, request)
            corrected.add(correction.fault)
            body, called = correction.body, time.monotonic_ns()
        try:
            return json_text.readable(json_text.loads(content))
        except ValueError as error:
            raise InfraError(
                f"the server's answer to a chat request is not JSON; is it a model server? {beginning(content, 200)!r}"
            ) from error

    async def _send(self, session: aiohttp.ClientSession, body: bytes, called: int) -> tuple[int, bytes]:
        """Sends one request. Returns (status, content) of the answer."""
        import aiohttp  # Imported here because controllers import agents, but do not call models.

        headers = {"content-type": "application/json", CALLED: str(called), UPGRADE: "yes"}
        no_limit = aiohttp.ClientTimeout(total=None)  # The pool and the tap enforce the time limits.
        try:
            async with session.post(f"{self.base_url}/chat/completions", data=body, headers=headers, timeout=no_limit) as response:
                return response.status, await response.read()
        except aiohttp.ClientError as error:
            raise InfraError(f"the model could not be called: {error!r}") from error


def failure(status: int, content: bytes, request: bytes = b"") -> Exception:
    """Returns the exception for a model call that was not answered with status 200. `request` is the body of the call.

    It is LimitReached for a used-up limit or a full context, AgentError for broken tool arguments in the history, else InfraError.
    """
    text = content.decode(errors="replace")
    try:
        error = orjson.loads(content)["error"]
        message, code = str(error["message"]), str(error.get("code"))
        if error.get("type") == TAP_ERROR_TYPE:
            return LimitReached(message) if code == LIMIT else InfraError(message)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        message, code = beginning(text, 300), ""
    if context_is_full(status, f"{code} {message}"):
        return LimitReached(f"context: {message}")
    if status in REFUSALS and holds_broken_arguments(request):
        return AgentError(f"HTTP {status}: {message}; the history contains tool arguments of the model that are not a JSON object")
    return InfraError(f"HTTP {status}: {message}")
