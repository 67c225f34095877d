"""The addresses under which attempts call models: who has one, where its calls go, what is known of the models there, and what the stack
is told of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import aiohttp

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import codec
from pytest_agentbench.llm.access import ModelAddress
from pytest_agentbench.llm.client import ModelFacts, missing_key
from pytest_agentbench.metrics.terms import TokenPrices
from pytest_agentbench.records import JUDGE, Access, Endpoint, Json, LLMCall, RolloutKey
from pytest_agentbench.rollouts.pool.announcements import Announcer, total
from pytest_agentbench.runs.attempts import AddressClosed, AddressOpened, AttemptState, LabelReleased, OpenLabel, PoolEntry, RolloutTally
from pytest_agentbench.tap.client import Taps
from pytest_agentbench.tap.protocol import OpenAddress, RolloutAccount, SpendingLimits, TapPorts
from pytest_agentbench.tap.routing_hints import NO_LABEL


class SessionModels:
    """The facts about all models that one pool calls. A server is asked once for a context length that no YAML declares."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], asyncio.Task[ModelFacts]] = {}  # key: URL, model and declared facts

    async def facts(self, endpoint: Endpoint, role: Json) -> ModelFacts:
        """Returns the facts about a model. A role's declarations override those of its endpoint."""
        fields = {**endpoint.request_fields, **(role.get("request_fields") or {})}
        declared = replace(endpoint, request_fields=fields, context_length=role.get("context_length") or endpoint.context_length)
        key = declared.url, declared.model, repr((sorted(fields.items()), declared.context_length))
        if key not in self._known:
            self._known[key] = asyncio.create_task(_completed(declared))
        # Without the shield a cancelled rollout would cancel the task for all others.
        return await asyncio.shield(self._known[key])


async def _completed(endpoint: Endpoint) -> ModelFacts:
    from pytest_agentbench.backends.ready import listed_context

    context = endpoint.context_length or await asyncio.to_thread(listed_context, endpoint)
    return ModelFacts(dict(endpoint.request_fields), context)


TellController = Callable[[PoolEntry], None]


class Addresses:
    """The addresses under which the attempts of one pool call models.

    An address is its token, `NUMBER-SECRET`. The number begins with that of the pool, so no two pools of a session use the same one. The
    secret is derived from the session's, so a later pool knows the token of a number. The controller is told of an address before it is
    opened and after it was closed. It writes the number down, so that a later pool can close what this one leaves open.

    Not thread-safe: all methods run on the pool's event loop.
    """

    def __init__(self, run: str, pool: int, secret: str, tell: TellController, why_not: Callable[[], str], before: RolloutTally) -> None:
        """Creates the addresses of pool number `pool`.

        Args:
            run: Beginning of the ids that the stack gets.
            pool: Number of the pool within its session.
            secret: The session's token.
            tell: Tells the controller.
            why_not: Returns why there is no backend.
            before: Tally of earlier pools of the session.
        """
        self._run, self._pool, self._secret, self._tell, self._why_not, self._before = run, pool, secret, tell, why_not, before
        self.session: aiohttp.ClientSession | None = None
        self.taps: Taps | None = None
        self.endpoint: Endpoint | None = None
        self.salt = ""  # before the system prompts of agents
        self.left_calls: Mapping[RolloutKey, Sequence[LLMCall]] = {}  # calls of attempts that were in flight when an earlier pool died
        self._url = ""
        self._count = 0
        self._announcers: dict[str, Announcer] = {}  # by the URL of their endpoints
        self._models = SessionModels()
        self._holders: dict[str, Announcer] = {}  # token -> who has told the stack of it

    async def connect(self, taps: TapPorts) -> None:
        """To the taps as they are now; raises OSError."""
        self._url = f"http://127.0.0.1:{taps.port}"
        if self.taps is not None:
            self.taps.disconnect()
        self.taps = None
        self.taps = await Taps.connect(taps.control_ports, taps.token)

    @property
    def has_taps(self) -> bool:
        """Whether all of them are there, as far as this process knows."""
        return self.taps is not None and not self.taps.any_lost

    async def point_at(self, endpoint: Endpoint, *, anew: bool = False) -> None:
        """Where calls go from now on, and who is told of rollouts; raises ConfigError for labels that nobody knows.

        With `anew` the taps are told where that is even though it has not changed.
        """
        if self.taps is None:
            raise InfraError("the tap is away")
        self.announcer_at(endpoint)
        if anew or endpoint != self.endpoint:
            await self.taps.point_at(endpoint)
        self.endpoint = endpoint

    def announcer_at(self, endpoint: Endpoint) -> Announcer:
        assert self.session is not None
        if endpoint.url not in self._announcers:
            self._announcers[endpoint.url] = Announcer(endpoint, self.session, self._run, self._released)
        return self._announcers[endpoint.url]

    async def open(self, key: RolloutKey, access: Access) -> ModelAddress:
        """A token of the tap for one attempt, or for a role in it; raises InfraError when there is no backend to speak to."""
        return await self._open(key, access, lent=False)

    async def lend(self, key: RolloutKey, access: Access) -> ModelAddress:
        """Opens an address for a test process, which continues to call there when this pool dies."""
        return await self._open(key, access, lent=True)

    async def _open(self, key: RolloutKey, access: Access, *, lent: bool) -> ModelAddress:
        model = await self._model(access)
        if self.taps is None or self.endpoint is None:
            raise InfraError(self._why_not() or "the backend is not there")
        facts = played(access, self.endpoint)
        elsewhere = _elsewhere(access.role, facts) if facts.get("url") else None
        self._count += 1
        token = token_of(f"{self._pool}.{self._count}", self._secret)
        address = _address(token, access, facts, facts.get("prices") if elsewhere else self.endpoint.prices)
        announcer, label = self.announcer_at(self.endpoint), NO_LABEL
        if elsewhere is None:
            self._holders[token] = announcer
            label = announcer.announce(token, key, access.role)
        id = announcer.id_of(token)
        announced = None if id is None else OpenLabel(id, self.endpoint.url)
        self._tell(AddressOpened(number_of(token), key, lent, announced, self.tally))
        try:
            there = None if elsewhere is None else self.taps.upstream(elsewhere)
            salt = "" if access.role == JUDGE else self.salt
            await self.taps.open(replace(address, label=label, elsewhere=there, salt=salt))
        except InfraError:
            self._closed(token)
            raise
        return ModelAddress(token, f"{self._url}/r/{token}/v1", facts.get("model") or self.endpoint.model, model)

    async def _model(self, access: Access) -> ModelFacts | None:
        """Returns the facts about the model that is called, or None if the backend is not available."""
        if self.endpoint is None:
            return None
        facts = played(access, self.endpoint)
        at = _elsewhere(access.role, facts) if facts.get("url") else self.endpoint
        return await self._models.facts(replace(at, model=access.model or facts.get("model") or at.model), facts)

    async def said(self, token: str) -> list[Json]:
        """Raises InfraError when the tap cannot be asked."""
        return await self._there().messages(token)

    async def close(self, token: str) -> tuple[LLMCall, ...]:
        """Ends an attempt: the tap breaks its calls off, and then the stack is told. Raises InfraError when the tap cannot be asked."""
        calls: tuple[LLMCall, ...] = ()
        try:
            calls = await self._there().close(token)
            if token in self._holders:
                calls = await self._holders[token].complete(token, calls)
        finally:
            self._closed(token, calls)
        return calls

    def _closed(self, token: str, calls: Sequence[LLMCall] = ()) -> None:
        announcer = self._holders.pop(token, None)
        unreleased = announcer is not None and announcer.over(token, calls)
        self._tell(AddressClosed(number_of(token), len(calls), unreleased, self.tally))

    def _there(self) -> Taps:
        if self.taps is None:
            raise InfraError(self._why_not() or "the tap is away")
        return self.taps

    def _released(self, id: str) -> None:
        self._tell(LabelReleased(id, self.tally))

    async def take_over(self, left: AttemptState, endpoints: Sequence[Endpoint]) -> None:
        """Closes the addresses that earlier pools have left open, keeps their calls, and releases their labels at `endpoints`."""
        for endpoint in endpoints:
            self.announcer_at(endpoint)
        calls: defaultdict[RolloutKey, list[LLMCall]] = defaultdict(list)
        for address in left.addresses.values():
            token = token_of(address.number, self._secret)
            if address.label is not None and (announcer := self._announcers.get(address.label.url)) is not None:
                announcer.adopt(token, address.label.id)
                self._holders[token] = announcer
            if not address.lent:
                with suppress(InfraError):  # The tap has died as well, so these calls are not known any more.
                    calls[address.key] += await self.close(token)
        for label in left.labels.values():
            if (announcer := self._announcers.get(label.url)) is not None:
                announcer.adopt(label.id, label.id)
                announcer.over(label.id)
        self.left_calls = calls

    async def release_all(self) -> None:
        """Releases all that is not released."""
        await asyncio.gather(*(each.release_all() for each in self._announcers.values()))

    @property
    def tally(self) -> RolloutTally:
        """Of this pool and those before it."""
        return total([self._before, *(each.tally for each in self._announcers.values())])


def token_of(number: str, secret: str) -> str:
    """Returns the token of an address; `secret` is the session's, so nobody else can derive it."""
    return f"{number}-{hashlib.blake2b(number.encode(), key=secret.encode(), digest_size=16).hexdigest()}"


def number_of(token: str) -> str:
    """Returns the number of an address, which is no secret."""
    return token.partition("-")[0]


def played(access: Access, backend: Endpoint) -> Json:
    """What is known of whoever plays a role: what the backend says of it goes before what the suite says.

    Raises InfraError where neither knows it; the agent and the judge are the backend itself then.
    """
    facts = backend.roles.get(access.role, access.endpoint)
    if facts is None and access.role not in ("", JUDGE):
        raise InfraError(f"nobody plays the role {access.role!r}; `roles` of suite.yaml or of the backend's YAML has to name it")
    if facts and str(facts.get("url", "")).rstrip("/") == backend.url:
        return {name: value for name, value in facts.items() if name not in ("url", "api_key", "prices")}  # it is the backend under test
    return facts or {}


def _address(token: str, access: Access, facts: Json, prices: Json | None) -> OpenAddress:
    """Returns an address with what may be spent under it; raises InfraError for a limit of cost without prices, or values that are none."""
    try:
        limits = codec.read(SpendingLimits, facts.get("limits", {}), "limits")
        account = RolloutAccount(access.account, codec.read(SpendingLimits, access.limits, "limits")) if access.account else None
        known = None if prices is None else codec.read(TokenPrices, prices, "prices")
    except ValueError as error:
        raise InfraError(f"{access.role or 'the agent'}: {error}") from error
    if known is None and (lacking := limits.cost or access.limits.get("cost")):
        raise InfraError(f"limits: cost: {lacking:g}: nobody knows what {access.role or 'the agent'} costs; give its endpoint `prices`")
    return OpenAddress(
        token, access.upgrade, keep=access.keep, calls=access.calls, role=access.role, limits=limits, prices=known, account=account
    )


def _elsewhere(role: str, settings: Json) -> Endpoint:
    """An endpoint beside the backend under test; raises InfraError when its key is not there."""
    if why := missing_key(settings):
        raise InfraError(why)
    name = settings.get("api_key")
    return Endpoint(settings["url"].rstrip("/"), settings["model"], role, os.environ[name] if name else None)
