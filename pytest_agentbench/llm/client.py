"""The light client of built-in agents, bound to one rollout: it calls the tap, which times, streams and assembles."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from pytest_agentbench.errors import AgentError, InfraError, LimitReached
from pytest_agentbench.lib import json_text
from pytest_agentbench.lib.abandoned import refuse_abandoned
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.model_texts import object_text
from pytest_agentbench.llm.model_facts import ModelFacts
from pytest_agentbench.metrics.blame import LIMIT, context_is_full
from pytest_agentbench.records import JUDGE, Json
from pytest_agentbench.tap.http_messages import OURS, REFUSALS, holds_broken_arguments

if TYPE_CHECKING:
    import aiohttp
    from openai import AsyncOpenAI, OpenAI

#: What openai clients send as their key; the tap puts the backend's in its place.
NO_KEY = "agentbench"

#: Header in which a client tells the tap when it was called; the time from there to the send is the client queue.
CALLED = "x-agentbench-called-ns"

#: Header in which a client lets the tap make a stream of a call that does not stream.
UPGRADE = "x-agentbench-stream-upgrade"


@dataclass(frozen=True)
class RequestedCall:
    """A tool call as the model asked for it."""

    id: str
    name: str
    arguments: str  # JSON text, as the model wrote it


@dataclass(frozen=True)
class Reply:
    """One answer of the model."""

    said: Json  # the assistant message as the model wrote it
    finish_reason: str | None
    usage: Json

    @property
    def message(self) -> Json:
        """The message ready to be appended to the conversation: servers take back no arguments that are no JSON object."""
        if not self.said.get("tool_calls"):
            return self.said
        return {**self.said, "tool_calls": [*map(_sendable, self.said["tool_calls"])]}

    @property
    def text(self) -> str:
        return self.said.get("content") or ""

    @property
    def tool_calls(self) -> list[RequestedCall]:
        return [
            RequestedCall(call["id"], call["function"]["name"], call["function"].get("arguments") or "")
            for call in self.said.get("tool_calls") or ()
        ]

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing: no tool call, and white space at most."""
        return not self.said.get("tool_calls") and not self.text.strip()

    def with_one_call(self) -> Reply:
        """The same, as if its first tool call were the only one."""
        calls = self.said.get("tool_calls") or []
        return dataclasses.replace(self, said={**self.said, "tool_calls": calls[:1]}) if calls[1:] else self


def _sendable(call: Json) -> Json:
    function = call["function"]
    return {**call, "function": {**function, "arguments": object_text(function.get("arguments") or "")}}


class LLM:
    """Calls the model on behalf of one rollout."""

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
        self.base_url = base_url  # of the tap, with this rollout's token in it; ends in /v1
        self.model = model
        self.sampling = {name: value for name, value in (sampling or {}).items() if value is not None}
        self.transcript: list[Json] = []  # the conversation of the last call, its answer included
        self.structured = True  # whether it may be asked for JSON by a schema; false once its server has refused that
        self.facts = ModelFacts() if facts is None else facts  # shared with the model's other clients
        self._session, self._roles, self._said = session, roles, said

    async def role(self, name: str) -> LLM:
        """Calls whoever plays a role of the suite: its calls are recorded as the role's.

        Raises InfraError for a role that nobody plays, and when it cannot be asked.
        """
        return await self._played(name, None)

    async def judge(self, endpoint: Json | None = None) -> LLM:
        """Calls a model that judges: its calls are recorded as a judge's, and are no part of the agent's work.

        `endpoint` is {url, model, api_key}, the last one the name of an environment variable; without it the judge is the suite's, or
        where that names none the backend under test. Raises InfraError when it cannot be asked.
        """
        return await self._played(JUDGE, endpoint)

    async def _played(self, role: str, endpoint: Json | None) -> LLM:
        await refuse_abandoned()
        if self._roles is None:
            raise InfraError(f"nobody plays the role {role!r} here")
        return await self._roles(role, endpoint)

    async def said(self) -> list[Json]:
        """What the model said since this was asked last, {text, tool_calls: [{id, name, arguments}]} for each answer that came whole.

        Only for black boxes (`black_box`), once whatever called has ended: calls under way are broken off.
        Raises InfraError when the tap cannot be asked.
        """
        await refuse_abandoned()
        return [*map(json_text.readable, await self._said())] if self._said is not None else []

    async def chat(self, messages: Sequence[Json], tools: Sequence[Json] = (), **overrides: Any) -> Reply:
        """One Chat Completions call. `overrides` are request fields (temperature, tool_choice, ...).

        It has the field names that the model accepts. It is repeated once for each field, or length, that the server's error names.
        Raises LimitReached when the context is full, AgentError when the history is refused for arguments of the model that are no JSON
        object, and InfraError for whatever else keeps it from answering. What the model says may be nothing (`Reply.is_empty`).
        """
        await refuse_abandoned()
        called = time.monotonic_ns()
        body = {"model": self.model, **self.sampling, "messages": list(messages), **({"tools": list(tools)} if tools else {}), **overrides}
        self.transcript = list(messages)
        answer = await self._post(self.facts.fitted(body), called)
        try:
            choice = answer["choices"][0]
            message = {"role": "assistant", **{name: value for name, value in choice["message"].items() if value is not None}}
        except (LookupError, TypeError, AttributeError) as error:
            raise InfraError(f"the answer holds no message: {beginning(str(answer), 200)}") from error
        message.setdefault("content", "")
        reply = Reply(message, choice.get("finish_reason"), answer.get("usage") or {})
        self.transcript = [*messages, reply.message]
        return reply

    def openai(self) -> AsyncOpenAI:
        """An openai client that speaks through the tap, without retries and timeouts of its own."""
        from openai import AsyncOpenAI

        return AsyncOpenAI(base_url=self.base_url, api_key=NO_KEY, max_retries=0, timeout=None)

    def openai_sync(self) -> OpenAI:
        """The same for code that blocks; call it in a thread (`asyncio.to_thread`), or other rollouts wait as well."""
        from openai import OpenAI

        return OpenAI(base_url=self.base_url, api_key=NO_KEY, max_retries=0, timeout=None)

    async def _post(self, body: Json, called: int) -> Any:
        if self._session is not None:
            return await self._answer(self._session, body, called)
        import aiohttp

        async with aiohttp.ClientSession() as session:  # a client used by hand leaves nothing open behind it
            return await self._answer(session, body, called)

    async def _answer(self, session: aiohttp.ClientSession, body: Json, called: int) -> Any:
        """Returns the server's answer. A refused request is corrected by the server's error message, once for each fault."""
        corrected: set[str] = set()
        while True:
            sent = json_text.dumps(body)
            status, content = await self._sent(session, sent, called)
            if status == 200:
                break
            again = self.facts.corrected(body, status, content)
            if again is None or again.fault in corrected or again.body == body:
                raise failure(status, content, sent)
            corrected.add(again.fault)
            body, called = again.body, time.monotonic_ns()
        try:
            return json_text.readable(json_text.loads(content))
        except ValueError as error:
            raise InfraError(f"the answer is not JSON: {beginning(content, 200)!r}") from error

    async def _sent(self, session: aiohttp.ClientSession, body: bytes, called: int) -> tuple[int, bytes]:
        """(status, content) of the answer to one request."""
        import aiohttp  # here: a controller that only looks the agents up has no use for it

        headers = {"content-type": "application/json", CALLED: str(called), UPGRADE: "yes"}
        no_limit = aiohttp.ClientTimeout(total=None)  # budgets belong to the pool and the tap
        try:
            async with session.post(f"{self.base_url}/chat/completions", data=body, headers=headers, timeout=no_limit) as response:
                return response.status, await response.read()
        except aiohttp.ClientError as error:
            raise InfraError(f"the call did not go through: {error!r}") from error


def failure(status: int, content: bytes, request: bytes = b"") -> Exception:
    """The error that an answer other than 200 to a call with the body `request` means for the rollout."""
    text = content.decode(errors="replace")
    try:
        error = orjson.loads(content)["error"]
        message, code = str(error["message"]), str(error.get("code"))
        if error.get("type") == OURS:
            return LimitReached(message) if code == LIMIT else InfraError(message)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        message, code = beginning(text, 300), ""
    if context_is_full(status, f"{code} {message}"):
        return LimitReached(f"context: {message}")
    if status in REFUSALS and holds_broken_arguments(request):
        return AgentError(f"HTTP {status}: {message}; the history holds tool arguments of the model that are no JSON object")
    return InfraError(f"HTTP {status}: {message}")
