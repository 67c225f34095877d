"""Addresses at the tap (the recording proxy) under which attempts of rollouts call models, and transcripts made of the calls there."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import aiohttp

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import codec
from pytest_agentbench.lib.kept_values import ALL, CALLS, NONE, NodeLine, ValueLine, parsed
from pytest_agentbench.llm.access import ModelAddress, is_backend, missing_key
from pytest_agentbench.llm.client import ModelFacts
from pytest_agentbench.metrics.terms import TokenPrices
from pytest_agentbench.records import JUDGE, Access, Endpoint, Json, KeptCall, LLMCall, Rollout, RolloutKey, kept_calls
from pytest_agentbench.rollouts.pool.announcements import Announcer, total
from pytest_agentbench.runs.attempts import AddressClosed, AddressOpened, AttemptState, LabelReleased, OpenLabel, PoolEntry, RolloutTally
from pytest_agentbench.runs.conversations import ConversationReader, KeptIds, NotKept
from pytest_agentbench.tap.client import Taps
from pytest_agentbench.tap.conversations import ConversationKeeper, KeptBytes
from pytest_agentbench.tap.protocol import OpenAddress, RolloutAccount, SpendingLimits, TapPorts
from pytest_agentbench.tap.routing_hints import NO_LABEL


class UnwrittenConversations(ConversationReader):
    """Reads requests and replies from lines that are not in messages.jsonl yet."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        super().__init__()
        self._lines = {line.id: line for line in map(parsed, lines)}

    def _line(self, id: str) -> ValueLine | NodeLine:
        if id not in self._lines:
            raise NotKept(f"the request or reply {id} was not kept")
        return self._lines[id]


def last_conversation(calls: Sequence[KeptCall], lines: Iterable[bytes]) -> list[Json]:
    """Returns the conversation that ends with the last of some calls, as messages of Chat Completions. Empty if it was not kept.

    Args:
        calls: Successful calls of an agent, in their order.
        lines: The lines for messages.jsonl to which the calls refer.
    """
    try:
        return UnwrittenConversations(lines).conversation([KeptIds(call) for call in calls])
    except NotKept:
        return []


def with_conversation(rollout: Rollout, lines: Sequence[bytes]) -> tuple[Rollout, list[bytes]]:
    """Returns the rollout with a reference to its transcript in messages.jsonl, and the lines to add to that file.

    If the agent left no transcript, the conversation that ends with its last successful call becomes the transcript.

    Args:
        rollout: A finished rollout.
        lines: The lines for messages.jsonl to which the rollout's calls refer.
    """
    messages = [*rollout.messages] or last_conversation(kept_calls(rollout.calls), lines)
    keeper = ConversationKeeper(KeptBytes())
    try:
        node = keeper.chain(messages) if messages else ""
    except TypeError:  # An agent may leave objects that JSON cannot express. The record has them as text.
        return rollout, []
    return dataclasses.replace(rollout, messages=(), conversation=node), [*filter(None, keeper.end().split(b"\n"))]


class SessionModels:
    """Looks up facts about the models that one pool calls: extra request fields and context length.

    If no YAML declares the context length, the server is asked for it once.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], asyncio.Task[ModelFacts]] = {}  # key: URL, model and declared facts

    async def facts(self, endpoint: Endpoint, role: Json) -> ModelFacts:
        """Returns extra request fields and context length of a model. `role` may declare other values than the endpoint."""
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
    """Opens and closes the addresses under which the attempts of one pool call models, and labels the calls for the stack.

    An address is a token in the URL of the tap, `NUMBER-SECRET`. It identifies the attempt, or a role in it. The number begins with that
    of the pool, so no two pools of a session use the same one. The secret is derived from the session's, so a later pool knows the token
    of a number. The controller is told of an address before the address is opened and after it was closed. The controller writes the
    number to attempts.jsonl, so that a later pool can close what this one leaves open.

    Not thread-safe: all methods run on the pool's event loop.
    """

    def __init__(self, run: str, pool: int, secret: str, tell: TellController, why_not: Callable[[], str], before: RolloutTally) -> None:
        """Creates the addresses of pool number `pool`.

        Args:
            run: Name of the session. The ids of rollouts in the stack begin with it.
            pool: Number of the pool within its session.
            secret: The session's token.
            tell: Sends an entry for attempts.jsonl to the controller.
            why_not: Returns why the backend is not available, or an empty text.
            before: Counts of the rollouts that earlier pools of the session have labelled, and whose end they have told the stack.
        """
        self._run, self._pool, self._secret, self._tell, self._why_not, self._before = run, pool, secret, tell, why_not, before
        self.session: aiohttp.ClientSession | None = None
        self.taps: Taps | None = None
        self.endpoint: Endpoint | None = None
        self.salt = ""  # text before the system prompts of agents
        self.keep = ALL  # what is kept of the calls: `all`, `calls` or `none`, as in --agentbench-keep
        self.left_calls: Mapping[RolloutKey, Sequence[LLMCall]] = {}  # calls of attempts that were in flight when an earlier pool died
        self.nodes: dict[str, RolloutTally] = {}  # name of a node worker -> its counts
        self._url = ""
        self._count = 0
        self._announcers: dict[str, Announcer] = {}  # URL of an endpoint -> its announcer
        self._models = SessionModels()
        self._announcer_of: dict[str, Announcer] = {}  # token -> announcer that has labelled it
        self._rollouts: dict[str, RolloutKey] = {}  # token of an open address -> its rollout
        self._lines: defaultdict[RolloutKey, list[bytes]] = defaultdict(list)  # lines for messages.jsonl of rollouts without a record

    async def connect(self, taps: TapPorts) -> None:
        """Connects to these taps instead of the earlier ones. Raises OSError if that fails."""
        self._url = f"http://127.0.0.1:{taps.port}"
        if self.taps is not None:
            self.taps.disconnect()
        self.taps = None
        self.taps = await Taps.connect(taps.control_ports, taps.token)

    @property
    def has_taps(self) -> bool:
        """Whether all taps are connected, as far as this process knows."""
        return self.taps is not None and not self.taps.any_lost

    async def point_at(self, endpoint: Endpoint, *, anew: bool = False) -> None:
        """Has the taps forward calls to this endpoint from now on, and labels later rollouts in the way that its stack reads.

        Args:
            endpoint: The backend.
            anew: Whether to tell the taps even if the endpoint has not changed.

        Raises:
            ConfigError: The endpoint's YAML names an unknown kind of labels (marks on calls that name the rollout).
            InfraError: The taps are not connected, or refuse.
        """
        if self.taps is None:
            raise InfraError("the tap is not available; see backend/tap.log in the run directory")
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
        """Opens an address for one attempt, or for a role in it. Raises InfraError if the backend or the tap is not available."""
        return await self._open(key, access, lent=False)

    async def lend(self, key: RolloutKey, access: Access) -> ModelAddress:
        """Opens an address for a test process, which can use the address even after this pool has died."""
        return await self._open(key, access, lent=True)

    async def _open(self, key: RolloutKey, access: Access, *, lent: bool) -> ModelAddress:
        model = await self._model(access)
        if self.taps is None or self.endpoint is None:
            raise InfraError(self._why_not() or "the backend is not available")
        facts = role_facts(access, self.endpoint)
        other = _other_endpoint(access.role, facts) if facts.get("url") else None
        self._count += 1
        token = token_of(f"{self._pool}.{self._count}", self._secret)
        address = _address(token, access, facts, facts.get("prices") if other else self.endpoint.prices)
        self._rollouts[token] = key
        announcer, label = self.announcer_at(self.endpoint), NO_LABEL
        if other is None:
            self._announcer_of[token] = announcer
            label = announcer.announce(token, key, access.role)
        id = announcer.id_of(token)
        announced = None if id is None else OpenLabel(id, self.endpoint.url)
        self._tell(AddressOpened(number_of(token), key, lent, announced, self.tally))
        try:
            upstream = None if other is None else self.taps.upstream(other)
            salt = "" if access.role == JUDGE else self.salt
            kept = NONE if access.role and self.keep == CALLS else self.keep
            await self.taps.open(replace(address, label=label, elsewhere=upstream, salt=salt, kept=kept))
        except InfraError:
            self._closed(token)
            raise
        return ModelAddress(token, f"{self._url}/r/{token}/v1", facts.get("model") or self.endpoint.model, model)

    async def _model(self, access: Access) -> ModelFacts | None:
        """Returns extra request fields and context length of the model that `access` names, or None if the backend is not available."""
        if self.endpoint is None:
            return None
        facts = role_facts(access, self.endpoint)
        at = _other_endpoint(access.role, facts) if facts.get("url") else self.endpoint
        return await self._models.facts(replace(at, model=access.model or facts.get("model") or at.model), facts)

    async def said(self, token: str) -> list[Json]:
        """Returns the model's messages at an address since the last call of this method, if the tap keeps them.

        Raises InfraError if the tap fails.
        """
        return await self._connected_taps().messages(token)

    async def close(self, token: str) -> tuple[LLMCall, ...]:
        """Closes an address: the tap cancels open calls, then the stack is told that the rollout has ended. Returns all calls.

        Raises InfraError if the tap is not available.
        """
        calls: tuple[LLMCall, ...] = ()
        try:
            calls, lines = await self._connected_taps().close(token)
            self._lines[self._rollouts[token]] += lines
            if token in self._announcer_of:
                calls = await self._announcer_of[token].complete(token, calls)
        finally:
            self._closed(token, calls)
        return calls

    async def conversation(self, key: RolloutKey, calls: Sequence[KeptCall]) -> list[Json]:
        """Returns the conversation that ends with the last of some calls of a rollout, whose addresses are closed. See `llm.access.Tap`."""
        return last_conversation(calls, self._lines.get(key, ())) if calls else []

    def add_lines(self, key: RolloutKey, lines: Sequence[bytes]) -> None:
        """Keeps lines for messages.jsonl to which the calls of a rollout refer, which another process has made."""
        if lines:
            self._lines[key] += lines

    def take_lines(self, key: RolloutKey) -> list[bytes]:
        """Returns the lines for messages.jsonl to which the calls of a rollout refer, and keeps them no longer."""
        return self._lines.pop(key, [])

    def _closed(self, token: str, calls: Sequence[LLMCall] = ()) -> None:
        self._rollouts.pop(token, None)
        announcer = self._announcer_of.pop(token, None)
        unreleased = announcer is not None and announcer.end(token, calls)
        self._tell(AddressClosed(number_of(token), len(calls), unreleased, self.tally))

    def _connected_taps(self) -> Taps:
        if self.taps is None:
            raise InfraError(self._why_not() or "the tap is not available; see backend/tap.log in the run directory")
        return self.taps

    def _released(self, id: str) -> None:
        self._tell(LabelReleased(id, self.tally))

    async def take_over(self, left: AttemptState, endpoints: Sequence[Endpoint]) -> None:
        """Closes the addresses that dead pools left open, except those of test processes.

        Stores the calls made there in `left_calls`. Tells the stacks at `endpoints` the end of all rollouts whose end they do not know yet.
        """
        for endpoint in endpoints:
            self.announcer_at(endpoint)
        calls: defaultdict[RolloutKey, list[LLMCall]] = defaultdict(list)
        for address in left.addresses.values():
            token = token_of(address.number, self._secret)
            self._rollouts[token] = address.key
            if address.label is not None and (announcer := self._announcers.get(address.label.url)) is not None:
                announcer.adopt(token, address.label.id)
                self._announcer_of[token] = announcer
            if not address.lent:
                with suppress(InfraError):  # The tap has died, too, so these calls are lost.
                    calls[address.key] += await self.close(token)
        self.release(left.labels.values())
        self.left_calls = calls

    def release(self, labels: Iterable[OpenLabel]) -> None:
        """Begins to tell the stacks that these rollouts have ended, whose labels another process has given."""
        for label in labels:
            if (announcer := self._announcers.get(label.url)) is not None:
                announcer.adopt(label.id, label.id)
                announcer.end(label.id)

    async def release_all(self) -> None:
        """Tells the stacks the end of all rollouts whose end they do not know yet."""
        await asyncio.gather(*(each.release_all() for each in self._announcers.values()))

    @property
    def tally(self) -> RolloutTally:
        """Counts of the rollouts that this pool and the earlier ones have labelled, and whose end they have told the stack."""
        return total([self._before, *self.nodes.values(), *(each.tally for each in self._announcers.values())])


def token_of(number: str, secret: str) -> str:
    """Returns the token of address `number`. It contains a hash with `secret`, the session's token, so other sessions cannot guess it."""
    return f"{number}-{hashlib.blake2b(number.encode(), key=secret.encode(), digest_size=16).hexdigest()}"


def number_of(token: str) -> str:
    """Returns the number in the token of an address. Unlike the token it is not secret."""
    return token.partition("-")[0]


def role_facts(access: Access, backend: Endpoint) -> Json:
    """Returns the settings of the model that plays a role. Settings in the backend's YAML take precedence over those of the suite.

    If neither names the role, the backend itself plays the agent (an empty role) and the judge. Raises InfraError for any other role.
    For a role that the backend plays, its own URL, key and prices apply, so these are left out.
    """
    facts = backend.roles.get(access.role, access.endpoint)
    if facts is None and access.role not in ("", JUDGE):
        raise InfraError(f"no model plays the role {access.role!r}; name one in `roles` of suite.yaml or of the backend's YAML")
    if facts and is_backend(facts, backend.url, plays_roles=backend.plays_roles):
        return {name: value for name, value in facts.items() if name not in ("url", "api_key", "prices")}
    return facts or {}


def _address(token: str, access: Access, facts: Json, prices: Json | None) -> OpenAddress:
    """Returns the message that opens an address at the tap, with its spending limits and prices.

    Raises InfraError for invalid limits or prices, or a cost limit without prices.
    """
    try:
        limits = codec.read(SpendingLimits, facts.get("limits", {}), "limits")
        account = RolloutAccount(access.account, codec.read(SpendingLimits, access.limits, "limits")) if access.account else None
        token_prices = None if prices is None else codec.read(TokenPrices, prices, "prices")
    except ValueError as error:
        raise InfraError(f"{access.role or 'the agent'}: {error}") from error
    if token_prices is None and (cost_limit := limits.cost or access.limits.get("cost")):
        raise InfraError(
            f"limits: cost: {cost_limit:g}: {access.role or 'the agent'} has no known price; "
            "add `prices` to the backend's YAML, or to the role if it has a `url`"
        )
    return OpenAddress(
        token, access.upgrade, keep=access.keep, calls=access.calls, role=access.role, limits=limits, prices=token_prices, account=account
    )


def _other_endpoint(role: str, settings: Json) -> Endpoint:
    """Returns the endpoint of a role that the backend does not play. Raises InfraError if its API key is missing."""
    if why := missing_key(settings):
        raise InfraError(why)
    name = settings.get("api_key")
    return Endpoint(settings["url"].rstrip("/"), settings["model"], role, os.environ[name] if name else None)
