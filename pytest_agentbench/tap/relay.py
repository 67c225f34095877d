"""What the tap knows: the rollouts that may call, the calls they made, and where calls go."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never
from weakref import WeakValueDictionary

from pytest_agentbench.lib import json_text, messages, wire
from pytest_agentbench.lib.introductions import Introductions
from pytest_agentbench.metrics.blame import LIMIT
from pytest_agentbench.records import LLMCall
from pytest_agentbench.tap import http_messages
from pytest_agentbench.tap.agents import UNKNOWN_ADDRESS, AgentConnection, Refusal
from pytest_agentbench.tap.budgets import Account
from pytest_agentbench.tap.cpu_turns import FairQueue
from pytest_agentbench.tap.exchange import Exchange
from pytest_agentbench.tap.http_messages import Headers, Request, encode_headers
from pytest_agentbench.tap.protocol import (
    NO_LIMITS,
    TO_TAP,
    AddressCalls,
    Budgets,
    CloseAddress,
    FromTap,
    GetTapStats,
    KeptReplies,
    KeptReply,
    OpenAddress,
    PointAt,
    TakeReplies,
    TapDone,
    TapRefusal,
    TapStats,
    ToTap,
    UpstreamFacts,
)
from pytest_agentbench.tap.upgrade import LARGE, BodyChanges, apply_changes, apply_in_subprocess
from pytest_agentbench.tap.upstream import Upstream

MOST_CLOSED = 4096  # closed tokens that are told apart from unknown ones


@dataclass
class Caller:
    """Whoever calls under an open address."""

    address: OpenAddress
    headers: Headers  # labels, for every request that has none of the name
    upstream: Upstream | None  # where its calls go; None: where all go
    accounts: tuple[Account, ...]  # of its role and its rollout, as far as they have limits
    exchanges: list[Exchange] = field(default_factory=list)
    refused: list[LLMCall] = field(default_factory=list)  # what was asked and not relayed

    @property
    def is_used_up(self) -> bool:
        """Whether all LLM calls were made that are relayed."""
        calls = self.address.calls
        return calls is not None and sum(exchange.request.dialect is not None for exchange in self.exchanges) >= calls

    def limit_refusal(self) -> str:
        """Why it may make no further LLM call; empty where it may."""
        return next(filter(None, (account.refusal() for account in self.accounts)), "")


class Relay:
    """All state of a tap."""

    def __init__(self, token: str, budgets: Budgets) -> None:
        self.introductions, self.budgets = Introductions(token), budgets
        self.work_queue = FairQueue()
        self.upstream: Upstream | None = None
        self.other_upstreams: list[Upstream] = []  # other places that calls go to
        self.open: dict[str, Caller] = {}
        self.closed: OrderedDict[str, None] = OrderedDict()
        self.unidentified: dict[AgentConnection, None] = {}  # connections that have not asked for a rollout's calls, the oldest first
        self.rewriting: set[asyncio.Task[None]] = set()
        self.accounts: WeakValueDictionary[str, Account] = WeakValueDictionary()  # of rollouts, while one of their addresses is open

    def knows(self, id: str) -> bool:
        """Whether this is the address of a rollout, of one that has ended perhaps."""
        return id in self.open or id in self.closed

    def refusal(self, id: str, request: Request) -> Refusal | None:
        """Why a request is not relayed; None where it is."""
        if id in self.closed:
            return Refusal(410, "the rollout of this address has ended")
        if id not in self.open:
            return UNKNOWN_ADDRESS
        caller = self.open[id]
        if refusal := http_messages.refusal(request.method, request.route):
            caller.refused.append(http_messages.refusal_record(request, refusal[1]))
            return Refusal(*refusal)
        if request.dialect is not None and (exceeded := _further_call_refusal(caller, request)) is not None:
            return exceeded
        return None if self.upstream or caller.upstream else Refusal(503, "the backend is not ready")

    def begin(self, id: str, agent: AgentConnection, request: Request) -> Exchange:
        """Sends a request on its way that `refusal` has nothing against."""
        caller = self.open[id]
        address, upstream = caller.address, caller.upstream or self.upstream
        assert upstream is not None
        exchange = Exchange(agent, request, self.budgets, caller.headers, address.keep, upstream.key_advice)
        caller.exchanges.append(exchange)
        dialect = request.dialect
        if dialect is None:
            upstream.send(exchange)
            return exchange
        for account in caller.accounts:
            account.entries.append((lambda: exchange.record, address.prices))
        label, upgrade = address.label, address.upgrade
        fields = {name: label.fields[name] for name in dialect.hint_fields() if name in label.fields}
        changes = BodyChanges(request.wants_upgrade(upgrade), upgrade is not False, fields, address.salt, label.usage_once)
        if len(request.body) < LARGE:
            exchange.backend_body = apply_changes(request.route, request.body, changes)
            upstream.send(exchange)
        else:
            task = asyncio.create_task(self._send_large(upstream, exchange, changes))
            self.rewriting.add(task)
            task.add_done_callback(self.rewriting.discard)
        return exchange

    async def _send_large(self, upstream: Upstream, exchange: Exchange, changes: BodyChanges) -> None:
        changed = await apply_in_subprocess(exchange.request.route, exchange.request.body, changes)
        if not exchange.over:
            exchange.backend_body = changed
            upstream.send(exchange)

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the pool, frame by frame; whoever does not speak like it is hung up on."""
        try:
            known = await self.introductions.hello(reader, writer) is not None
            while known:
                header, _ = await wire.read(reader)
                answer = messages.header(self._reply(header))
                writer.write(wire.framed(answer, dumps=json_text.dumps))  # fast, as it may be large and calls wait for it
                await writer.drain()
        except (EOFError, OSError, ValueError):
            pass  # the pool is gone, or this is not the pool
        except asyncio.CancelledError:
            pass  # the tap ends; asyncio would log it
        finally:
            writer.close()

    def _reply(self, header: Any) -> FromTap:
        try:
            return self.answer(TO_TAP.read(header))
        except ValueError as error:
            return TapRefusal(str(error))

    def answer(self, question: ToTap) -> FromTap:
        """Does what the pool asks for; raises ValueError, with a sentence, where that is not possible."""
        match question:
            case PointAt(facts):
                upstream = _upstream(facts)
                if self.upstream is not None:
                    self.upstream.close()
                self.upstream = upstream
                return TapDone()
            case OpenAddress(id):
                if id in self.open or id in self.closed:
                    raise ValueError("an address with this id was opened before")
                self.open[id] = self._caller(question)
                return TapDone()
            case CloseAddress(id) | TakeReplies(id) if id not in self.open:
                raise ValueError("no address with this id is open")
            case CloseAddress(id):
                return AddressCalls(self._close(id))
            case TakeReplies(id):
                return KeptReplies(_replies(self.open[id].exchanges))
            case GetTapStats():
                running = sum(not exchange.over for caller in self.open.values() for exchange in caller.exchanges)
                return TapStats(running, len(self.open), self.upstream.clock.steps if self.upstream else 0)
            case _:
                assert_never(question)

    def _caller(self, address: OpenAddress) -> Caller:
        try:
            headers = encode_headers(address.label.headers)
        except ValueError as error:
            raise ValueError(f"calls cannot be labelled so: {error}") from error
        upstream = None if address.elsewhere is None else self._other_upstream(address.elsewhere)
        return Caller(address, headers, upstream, self._accounts(address))

    def _accounts(self, address: OpenAddress) -> tuple[Account, ...]:
        """Those that an address's calls are put down to."""
        accounts = [] if address.limits == NO_LIMITS else [Account(f"the role {address.role!r}", address.limits)]
        if (shared := address.account) is not None:
            known = self.accounts.get(shared.id) or Account("the rollout", shared.limits)
            self.accounts[shared.id] = known
            accounts.append(known)
        return tuple(accounts)

    def _other_upstream(self, facts: UpstreamFacts) -> Upstream:
        """The place that is spoken of; rollouts that go to the same one share its connections."""
        known = next((each for each in self.other_upstreams if each.facts == facts), None)
        if known is None:
            known = _upstream(facts)
            self.other_upstreams.append(known)
        return known

    def _close(self, id: str) -> tuple[LLMCall, ...]:
        """Ends a token; calls that are still open are broken off. Returns all of them in the order in which they came."""
        self.closed[id] = None
        if len(self.closed) > MOST_CLOSED:
            self.closed.popitem(last=False)
        caller = self.open.pop(id)
        _break_off(caller.exchanges)
        records = [*caller.refused, *(exchange.record for exchange in caller.exchanges if exchange.record is not None)]
        role, elsewhere = caller.address.role, caller.address.elsewhere
        if role or elsewhere:
            endpoint = elsewhere.url if elsewhere else ""
            records = [dataclasses.replace(record, role=role, endpoint=endpoint) for record in records]
        return tuple(sorted(records, key=lambda record: record.received_ns))


def _replies(exchanges: Sequence[Exchange]) -> tuple[KeptReply, ...]:
    """Breaks off what is under way, and hands over what the model said since this was asked last."""
    _break_off(exchanges)
    replies = []
    for exchange in exchanges:
        if exchange.record is not None and exchange.record.said is not None:
            replies.append(KeptReply(exchange.record.received_ns, exchange.record.said))
            exchange.record = dataclasses.replace(exchange.record, said=None)
    return tuple(replies)


def _further_call_refusal(caller: Caller, request: Request) -> Refusal | None:
    """Why a caller may make no further LLM call; None where it may."""
    if caller.is_used_up:
        return Refusal(410, "this rollout fills the prefix cache, and has made its first call")
    if reason := caller.limit_refusal():
        caller.refused.append(http_messages.refusal_record(request, reason, LIMIT))
        return Refusal(403, reason, LIMIT)
    return None


def _break_off(exchanges: Sequence[Exchange]) -> None:
    """Whoever made these calls is gone."""
    for exchange in exchanges:
        if not exchange.over:
            exchange.agent.abandon()


def _upstream(facts: UpstreamFacts) -> Upstream:
    try:
        return Upstream(facts)
    except (ValueError, OSError) as error:
        raise ValueError(f"calls cannot go to {facts.url}: {error}") from error
