"""The state of a tap: the addresses that are open, the calls that were made under them, and the backends."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never
from weakref import WeakValueDictionary

from pytest_agentbench.lib import json_text, wire
from pytest_agentbench.lib.authentication import Introductions
from pytest_agentbench.lib.kept_values import NONE
from pytest_agentbench.metrics.blame import LIMIT
from pytest_agentbench.records import LLMCall
from pytest_agentbench.tap import http_messages
from pytest_agentbench.tap.agents import UNKNOWN_ADDRESS, AgentConnection, Refusal
from pytest_agentbench.tap.budgets import Account
from pytest_agentbench.tap.conversations import ConversationKeeper, KeptBytes
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
    UpstreamFacts,
)
from pytest_agentbench.tap.upgrade import LARGE, BodyChanges, apply_changes, apply_in_subprocess
from pytest_agentbench.tap.upstream import Upstream

MOST_CLOSED = 4096  # closed addresses that are remembered, to tell them from unknown ones


@dataclass
class Caller:
    """An open address (the URL path /r/<id> of a rollout, or of a role in it), its settings, and the calls made under it."""

    address: OpenAddress
    headers: Headers  # labels that each request gets unless it has a header of that name
    turns: tuple[Headers, ...]  # the same for the LLM calls with a number, as `Label.turns`
    upstream: Upstream | None  # backend for its calls; None: the backend of `PointAt`
    accounts: tuple[Account, ...]  # accounts of its role and its rollout, if these have limits
    keeper: ConversationKeeper | None  # keeps requests and replies; None if they are not kept
    exchanges: list[Exchange] = field(default_factory=list)
    refused: list[LLMCall] = field(default_factory=list)  # records of requests that were not forwarded

    turn: int = 0  # LLM calls so far that were forwarded

    @property
    def is_used_up(self) -> bool:
        """Whether the allowed number of LLM calls has been made."""
        calls = self.address.calls
        return calls is not None and sum(exchange.request.dialect is not None for exchange in self.exchanges) >= calls

    def limit_refusal(self) -> str:
        """Returns the reason why no further LLM call is allowed, or an empty string if one is."""
        return next(filter(None, (account.refusal() for account in self.accounts)), "")


class Relay:
    """All state of a tap.

    The pool's messages change it (`control`, `answer`): they set the backend, and open and close addresses. For each request,
    an `AgentConnection` calls `knows` and `refusal`, and then `begin` if the request is not refused. The ids of the last MOST_CLOSED
    closed addresses are remembered, so that later requests get 410 and an id is not used twice.
    """

    def __init__(self, token: str, budgets: Budgets) -> None:
        self.introductions, self.budgets = Introductions(token), budgets
        self.work_queue = FairQueue()
        self.upstream: Upstream | None = None
        self.other_upstreams: list[Upstream] = []  # backends of addresses with `elsewhere`
        self.open: dict[str, Caller] = {}
        self.closed: OrderedDict[str, None] = OrderedDict()
        self.unidentified: dict[AgentConnection, None] = {}  # connections that have not yet named the address of a rollout, oldest first
        self.rewriting: set[asyncio.Task[None]] = set()
        self.kept = KeptBytes()
        self.accounts: WeakValueDictionary[str, Account] = WeakValueDictionary()  # accounts of rollouts that have an open address

    def knows(self, id: str) -> bool:
        """Returns whether /r/<id> is an open address, or one of the last MOST_CLOSED that were closed."""
        return id in self.open or id in self.closed

    def refusal(self, id: str, request: Request) -> Refusal | None:
        """Returns the error answer to a request that is not forwarded, or None if it is."""
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
        return None if self.upstream or caller.upstream else Refusal(503, "the backend is not ready; repeat the request later")

    def begin(self, id: str, agent: AgentConnection, request: Request) -> Exchange:
        """Starts the exchange of a request for which `refusal` returned None."""
        caller = self.open[id]
        address, upstream = caller.address, caller.upstream or self.upstream
        assert upstream is not None
        exchange = Exchange(agent, request, self.budgets, caller.headers, address.keep, caller.keeper, upstream.key_advice)
        caller.exchanges.append(exchange)
        dialect = request.dialect
        if dialect is None:
            upstream.send(exchange)
            return exchange
        for account in caller.accounts:
            account.entries.append((lambda: exchange.record, address.prices))
        label, upgrade = address.label, address.upgrade
        caller.turn += 1
        of_call = label.of_call(caller.turn)
        exchange.hints = of_call.hints
        if caller.turns:
            exchange.labels = caller.turns[min(caller.turn, len(caller.turns)) - 1]
        fields = of_call.fields if request.route in label.routes else {}
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
        """Answers the messages on a control connection. Closes it if the client lacks the token or sends an invalid frame."""
        try:
            known = await self.introductions.hello(reader, writer) is not None
            while known:
                header, _ = await wire.read(reader)
                answer, body = self._reply(header)
                # A fast encoder, because the answer may be large and delays calls.
                writer.write(wire.framed(wire.header(answer), body, dumps=json_text.dumps))
                await writer.drain()
        except (EOFError, OSError, ValueError):
            pass  # The pool has disconnected, or the client is not the pool.
        except asyncio.CancelledError:
            pass  # The tap ends. asyncio would log the exception.
        finally:
            writer.close()

    def _reply(self, header: Any) -> tuple[FromTap, bytes]:
        try:
            question = TO_TAP.read(header)
            if isinstance(question, CloseAddress):
                return self._close(question.id)
            return self.answer(question), b""
        except ValueError as error:
            return TapRefusal(str(error)), b""

    def answer(self, question: PointAt | OpenAddress | TakeReplies | GetTapStats) -> FromTap:
        """Carries out a message of the pool and returns the answer. Raises ValueError with a sentence if that is not possible."""
        match question:
            case PointAt(facts):
                upstream = _upstream(facts)
                if self.upstream is not None:
                    self.upstream.close()
                self.upstream = upstream
                return TapDone()
            case OpenAddress(id):
                if id in self.open or id in self.closed:
                    raise ValueError(f"an address with this id was opened before: {id}")
                self.open[id] = self._caller(question)
                return TapDone()
            case TakeReplies(id):
                return KeptReplies(_replies(self._opened(id).exchanges))
            case GetTapStats():
                running = sum(not exchange.over for caller in self.open.values() for exchange in caller.exchanges)
                return TapStats(running, len(self.open), self.upstream.clock.steps if self.upstream else 0)
            case _:
                assert_never(question)

    def _caller(self, address: OpenAddress) -> Caller:
        try:
            headers = encode_headers(address.label.headers)
            turns = tuple(encode_headers(each.headers) for each in address.label.turns)
        except ValueError as error:
            raise ValueError(f"the labels of the calls are not valid: {error}") from error
        upstream = None if address.elsewhere is None else self._other_upstream(address.elsewhere)
        keeper = None if address.kept == NONE else ConversationKeeper(self.kept, address.kept)
        return Caller(address, headers, turns, upstream, self._accounts(address), keeper)

    def _opened(self, id: str) -> Caller:
        if id not in self.open:
            raise ValueError(f"no address with this id is open: {id}")
        return self.open[id]

    def _accounts(self, address: OpenAddress) -> tuple[Account, ...]:
        """Returns the accounts that count the calls of an address against spending limits: one for its role, one for its rollout."""
        accounts = [] if address.limits == NO_LIMITS else [Account(f"the role {address.role!r}", address.limits)]
        if (shared := address.account) is not None:
            known = self.accounts.get(shared.id) or Account("the rollout", shared.limits)
            self.accounts[shared.id] = known
            accounts.append(known)
        return tuple(accounts)

    def _other_upstream(self, facts: UpstreamFacts) -> Upstream:
        """Returns the backend with these settings. Addresses with the same settings share its connections."""
        known = next((each for each in self.other_upstreams if each.facts == facts), None)
        if known is None:
            known = _upstream(facts)
            self.other_upstreams.append(known)
        return known

    def _close(self, id: str) -> tuple[AddressCalls, bytes]:
        """Closes an address and aborts its calls in flight. Returns all of its calls, and the lines for messages.jsonl."""
        caller = self._opened(id)
        self.closed[id] = None
        if len(self.closed) > MOST_CLOSED:
            self.closed.popitem(last=False)
        del self.open[id]
        _break_off(caller.exchanges)
        records = [*caller.refused, *(exchange.record for exchange in caller.exchanges if exchange.record is not None)]
        role, elsewhere = caller.address.role, caller.address.elsewhere
        if role or elsewhere:
            endpoint = elsewhere.url if elsewhere else ""
            records = [dataclasses.replace(record, role=role, endpoint=endpoint) for record in records]
        calls = tuple(sorted(records, key=lambda record: record.received_ns))
        return AddressCalls(calls), caller.keeper.end() if caller.keeper else b""


def _replies(exchanges: Sequence[Exchange]) -> tuple[KeptReply, ...]:
    """Aborts the calls that are still in flight. Returns the complete answers that no earlier call of this function returned."""
    _break_off(exchanges)
    replies = []
    for exchange in exchanges:
        if exchange.output is not None:
            replies.append(KeptReply(exchange.request.received_ns, exchange.output))
            exchange.output = None
    return tuple(replies)


def _further_call_refusal(caller: Caller, request: Request) -> Refusal | None:
    """Returns the error answer if a caller may make no further LLM call, or None."""
    if caller.is_used_up:
        return Refusal(410, "this rollout makes only a first call before its block, and has already made it")
    if reason := caller.limit_refusal():
        caller.refused.append(http_messages.refusal_record(request, reason, LIMIT))
        return Refusal(403, reason, LIMIT)
    return None


def _break_off(exchanges: Sequence[Exchange]) -> None:
    """Aborts those of the given exchanges (requests and their answers) that are still in progress."""
    for exchange in exchanges:
        if not exchange.over:
            exchange.agent.abandon()


def _upstream(facts: UpstreamFacts) -> Upstream:
    try:
        return Upstream(facts)
    except (ValueError, OSError) as error:
        raise ValueError(f"calls cannot be sent to {facts.url}: {error}") from error
