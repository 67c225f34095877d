"""The addresses under which one attempt calls models: the agent's own, and those of the judges that it and the scorers ask."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from pytest_agentbench.errors import InfraError
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Access, Json, LLMCall, RolloutKey

if TYPE_CHECKING:
    import aiohttp


class Tap(Protocol):
    """What a rollout needs of the tap."""

    async def open(self, key: RolloutKey, access: Access) -> tuple[str, str, str]:
        """A fresh token for an attempt: (its id, the base URL that carries it, the model to ask for)."""

    async def said(self, id: str) -> list[Json]:
        """What the model said under a token with `keep` since this was asked last; breaks off calls under way."""

    async def close(self, id: str) -> list[Json]:
        """Ends the token; the LLM calls made under it."""


class Lines:
    """The tokens of one attempt."""

    def __init__(self, tap: Tap, key: RolloutKey, session: aiohttp.ClientSession | None, unstructured: set[str] | None = None) -> None:
        self._tap, self._key, self._session = tap, key, session
        self._unstructured = set() if unstructured is None else unstructured  # judges that take no schema; attempts tell each other
        self._agent: str | None = None
        self._judges: dict[str, tuple[str, LLM]] = {}  # what is said of the endpoint -> token and client

    async def agent(self, access: Access, sampling: Json) -> LLM:
        """The agent's; raises InfraError when there is no backend to speak to."""
        self._agent, base_url, model = await self._tap.open(self._key, access)
        rest = {name: value for name, value in sampling.items() if name != "model"}
        return LLM(base_url, str(sampling.get("model") or model), rest, self._session, self.judge, self._said)

    async def judge(self, endpoint: Json) -> LLM:
        """A judge's: the backend under test, or an endpoint of its own. The same one for the same endpoint."""
        known = repr(sorted(endpoint.items()))
        if known not in self._judges:
            access = Access(upgrade=True, judge=True, endpoint=endpoint or None)
            id, base_url, model = await self._tap.open(self._key, access)
            self._judges[known] = id, LLM(base_url, model, session=self._session)
            self._judges[known][1].structured = known not in self._unstructured
        return self._judges[known][1]

    async def _said(self) -> list[Json]:
        """To the agent, since this was asked last. Raises InfraError when the tap cannot be asked."""
        assert self._agent is not None
        return await self._tap.said(self._agent)

    async def agent_is_done(self) -> tuple[LLMCall, ...]:
        """Ends the agent's address; its calls. Raises InfraError when the tap cannot be asked."""
        assert self._agent is not None
        id, self._agent = self._agent, None
        return tuple(map(LLMCall.from_dict, await self._tap.close(id)))

    async def judges_are_done(self) -> tuple[LLMCall, ...]:
        """Ends the judges' addresses; their calls. Raises InfraError when the tap cannot be asked."""
        calls: list[LLMCall] = []
        while self._judges:
            known, (id, judge) = self._judges.popitem()
            self._unstructured.update([] if judge.structured else [known])
            calls += map(LLMCall.from_dict, await self._tap.close(id))
        return tuple(sorted(calls, key=lambda call: call.received_ns))

    async def hang_up(self) -> None:
        """Ends whatever is still open; nobody wants the calls."""
        ids = [id for id, _ in self._judges.values()] + ([self._agent] if self._agent else [])
        self._judges, self._agent = {}, None
        for id in ids:
            with suppress(InfraError):
                await self._tap.close(id)
