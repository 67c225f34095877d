"""The URLs at the tap (the recording proxy) under which one attempt calls models: one for its agent, and one for each role or judge."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pytest_agentbench.errors import InfraError
from pytest_agentbench.llm.client import LLM, ModelFacts
from pytest_agentbench.records import JUDGE, Access, Json, KeptCall, LLMCall, RolloutKey, kept_calls

if TYPE_CHECKING:
    import aiohttp


#: The roles of a rollout without roles, and its limits if there are none.
NO_ROLES: Mapping[str, Json] = {}


class ModelAddress(NamedTuple):
    """A URL of the tap that is valid for one attempt and leads to one model."""

    id: str  # token of the address
    base_url: str  # URL that contains the token
    model: str  # name of the model in requests
    facts: ModelFacts | None = None  # facts about the model


class Tap(Protocol):
    """The interface of the tap for rollouts: opens and closes the addresses under which an attempt calls models."""

    async def open(self, key: RolloutKey, access: Access) -> ModelAddress:
        """Creates a token for an attempt of the rollout `key`. Returns an address with the token, which permits the calls in `access`."""

    async def said(self, id: str) -> list[Json]:
        """Returns the model's answers at the address with the token `id` since the last call of this method.

        Cancels the LLM calls in progress. The address must have been opened with `Access.keep`, so that the tap keeps the answers.
        """

    async def close(self, id: str) -> Sequence[LLMCall]:
        """Closes the address with the token `id`, which then refuses calls. Returns the LLM calls that were made at it."""

    async def conversation(self, key: RolloutKey, calls: Sequence[KeptCall]) -> list[Json]:
        """Returns the conversation that ends with the last of some calls, as messages of Chat Completions.

        The calls are successful calls of an agent, in their order, made at closed addresses of the rollout `key`. Returns nothing if
        there are no calls, or if the session does not keep what they requested.
        """


class ModelAddresses:
    """The addresses under which one attempt calls models. Closing an address returns its LLM calls; each is closed exactly once.

    `agent` opens the address of the agent, `role` those of roles and judges. `close_agent` closes the addresses of the agent and its
    roles, `close_judges` those of judges, after the scorers have finished. `close_all` closes the rest, for example after an error.
    """

    def __init__(
        self,
        tap: Tap,
        key: RolloutKey,
        session: aiohttp.ClientSession | None,
        unstructured: set[str] | None = None,
        roles: Mapping[str, Json] = NO_ROLES,
        limits: Mapping[str, Json] = NO_ROLES,
    ) -> None:
        """Creates the object without opening an address.

        `roles` is role -> settings from the suite. `limits` are the most calls, tokens and costs of the agent and its roles together.
        """
        self._tap, self._key, self._session, self._roles = tap, key, session, roles
        self._account: Json = {"account": secrets.token_hex(8), "limits": dict(limits)} if limits else {}
        self._unstructured = set() if unstructured is None else unstructured  # endpoints that refuse schemas, shared by all attempts
        self._agent: str | None = None
        self._open: dict[tuple[str, str], tuple[str, LLM]] = {}  # (role, settings of its endpoint) -> token, client
        self._lock = asyncio.Lock()  # Concurrent requests for a role must not open a second token, which would never be closed.

    async def agent(self, access: Access, sampling: Json) -> LLM:
        """Opens the address of the agent, and returns the agent's client. Raises InfraError if there is no backend."""
        model = str(sampling.get("model") or "")
        address = await self._tap.open(self._key, replace(access, model=model, **self._account))
        self._agent = address.id
        rest = {name: value for name, value in sampling.items() if name != "model"}
        return LLM(address.base_url, model or address.model, rest, self._session, self.role, self._said, address.facts)

    async def role(self, name: str, endpoint: Json | None = None) -> LLM:
        """Returns the client of a role, and opens an address for it if the attempt has none.

        The role is played by `endpoint`, or else by the endpoint in the suite's settings, or else by the backend under test. Raises
        InfraError if the role has no model, or if the address cannot be opened.
        """
        facts = self._roles.get(name) if endpoint is None else endpoint
        known = name, repr(sorted((facts or {}).items()))
        async with self._lock:
            if known not in self._open:
                account = {} if name == JUDGE else self._account
                at = await self._tap.open(self._key, Access(upgrade=True, role=name, endpoint=facts, **account))
                self._open[known] = at.id, LLM(at.base_url, at.model, session=self._session, facts=at.facts)
                self._open[known][1].structured = known[1] not in self._unstructured
            return self._open[known][1]

    async def _said(self) -> list[Json]:
        """Returns the model's answers to the agent since the last call of this method. Raises InfraError if the tap does not answer."""
        assert self._agent is not None
        return await self._tap.said(self._agent)

    async def close_agent(self) -> tuple[LLMCall, ...]:
        """Closes the addresses of the agent and its roles. Returns their calls. Raises InfraError if the tap does not answer."""
        assert self._agent is not None
        id, self._agent = self._agent, None
        calls = await self._tap.close(id)
        return _in_order([*calls, *await self._close_roles([known for known in self._open if known[0] != JUDGE])])

    async def conversation(self, calls: Iterable[LLMCall]) -> list[Json]:
        """Returns the last conversation of the agent in calls that `close_agent` has returned, as messages of Chat Completions."""
        return await self._tap.conversation(self._key, kept_calls(calls))

    async def close_judges(self) -> tuple[LLMCall, ...]:
        """Closes the addresses of judges. Returns their calls. Raises InfraError if the tap does not answer."""
        return _in_order(await self._close_roles([*self._open]))

    async def _close_roles(self, which: Iterable[tuple[str, str]]) -> list[LLMCall]:
        calls: list[LLMCall] = []
        for known in which:
            id, llm = self._open.pop(known)
            self._unstructured.update([] if llm.structured else [known[1]])
            calls += await self._tap.close(id)
        return calls

    async def close_all(self) -> None:
        """Closes all open addresses and discards their calls."""
        ids = [id for id, _ in self._open.values()] + ([self._agent] if self._agent else [])
        self._open, self._agent = {}, None
        for id in ids:
            with suppress(InfraError):
                await self._tap.close(id)


def _in_order(calls: Iterable[LLMCall]) -> tuple[LLMCall, ...]:
    return tuple(sorted(calls, key=lambda call: call.received_ns))


def is_backend(role: Json, url: str, *, plays_roles: bool) -> bool:
    """Returns whether a role (a model such as a judge) is played by the backend under test, so that the backend's own key applies.

    Args:
        role: Settings of the role's endpoint, with its `url`.
        url: URL of the backend.
        plays_roles: Whether the backend answers for all roles, as a recording does.
    """
    return plays_roles or str(role.get("url", "")).rstrip("/") == url.rstrip("/")


def missing_key(endpoint: Json) -> str:
    """Returns a sentence if the API key of a role's endpoint is not in the environment, else an empty text.

    `endpoint` has the settings of the endpoint: its `url`, and in `api_key` the name of an environment variable.
    """
    name = endpoint.get("api_key")
    if not name or os.environ.get(name):
        return ""
    return f"{endpoint['url']} needs an API key: the environment variable {name} is not set"
