"""The addresses under which one attempt calls models: the agent's own, and those of the roles that it and the scorers ask."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pytest_agentbench.errors import InfraError
from pytest_agentbench.llm.client import LLM, ModelFacts
from pytest_agentbench.records import JUDGE, Access, Json, LLMCall, RolloutKey

if TYPE_CHECKING:
    import aiohttp


#: Of a rollout that names no roles.
NO_ROLES: Mapping[str, Json] = {}


class ModelAddress(NamedTuple):
    """The address under which an attempt calls a model through the tap."""

    id: str  # the token
    base_url: str  # an URL with the token in it
    model: str  # the model's name in requests
    facts: ModelFacts | None = None  # facts about the model


class Tap(Protocol):
    """What a rollout needs of the tap."""

    async def open(self, key: RolloutKey, access: Access) -> ModelAddress:
        """A fresh token for an attempt."""

    async def said(self, id: str) -> list[Json]:
        """What the model said under a token with `keep` since this was asked last; breaks off calls under way."""

    async def close(self, id: str) -> Sequence[LLMCall]:
        """Ends the token; the LLM calls made under it."""


class ModelAddresses:
    """The tokens of one attempt."""

    def __init__(
        self,
        tap: Tap,
        key: RolloutKey,
        session: aiohttp.ClientSession | None,
        unstructured: set[str] | None = None,
        roles: Mapping[str, Json] = NO_ROLES,
        limits: Mapping[str, Json] = NO_ROLES,
    ) -> None:
        """`roles` has what the suite says of each role by name, `limits` what the agent and its roles may spend together."""
        self._tap, self._key, self._session, self._roles = tap, key, session, roles
        self._account: Json = {"account": secrets.token_hex(8), "limits": dict(limits)} if limits else {}
        self._unstructured = set() if unstructured is None else unstructured  # endpoints that take no schema; attempts tell each other
        self._agent: str | None = None
        self._open: dict[tuple[str, str], tuple[str, LLM]] = {}  # role and what is said of its endpoint -> token and client
        self._lock = asyncio.Lock()  # tasks of one agent may ask for a role at once, and a second token would never be closed

    async def agent(self, access: Access, sampling: Json) -> LLM:
        """The agent's; raises InfraError when there is no backend to speak to."""
        model = str(sampling.get("model") or "")
        address = await self._tap.open(self._key, replace(access, model=model, **self._account))
        self._agent = address.id
        rest = {name: value for name, value in sampling.items() if name != "model"}
        return LLM(address.base_url, model or address.model, rest, self._session, self.role, self._said, address.facts)

    async def role(self, name: str, endpoint: Json | None = None) -> LLM:
        """That of whoever plays a role: the backend under test, or an endpoint of its own, `endpoint` where that is given.

        The same one for the same endpoint. Raises InfraError for a role that nobody plays, and where it cannot be asked.
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
        """To the agent, since this was asked last. Raises InfraError when the tap cannot be asked."""
        assert self._agent is not None
        return await self._tap.said(self._agent)

    async def close_agent(self) -> tuple[LLMCall, ...]:
        """Ends the agent's address and those of its roles; their calls. Raises InfraError when the tap cannot be asked."""
        assert self._agent is not None
        id, self._agent = self._agent, None
        calls = await self._tap.close(id)
        return _in_order([*calls, *await self._close_roles([known for known in self._open if known[0] != JUDGE])])

    async def close_judges(self) -> tuple[LLMCall, ...]:
        """Ends the judges' addresses; their calls. Raises InfraError when the tap cannot be asked."""
        return _in_order(await self._close_roles([*self._open]))

    async def _close_roles(self, which: Iterable[tuple[str, str]]) -> list[LLMCall]:
        calls: list[LLMCall] = []
        for known in which:
            id, llm = self._open.pop(known)
            self._unstructured.update([] if llm.structured else [known[1]])
            calls += await self._tap.close(id)
        return calls

    async def close_all(self) -> None:
        """Ends whatever is still open; nobody wants the calls."""
        ids = [id for id, _ in self._open.values()] + ([self._agent] if self._agent else [])
        self._open, self._agent = {}, None
        for id in ids:
            with suppress(InfraError):
                await self._tap.close(id)


def _in_order(calls: Iterable[LLMCall]) -> tuple[LLMCall, ...]:
    return tuple(sorted(calls, key=lambda call: call.received_ns))
