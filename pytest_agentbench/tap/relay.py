"""What the tap knows: the rollouts that may call, the calls they made, and where calls go."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from pytest_agentbench.lib import codec, wire
from pytest_agentbench.lib.introductions import Introductions
from pytest_agentbench.metrics.blame import LIMIT
from pytest_agentbench.records import Json, LLMCall
from pytest_agentbench.tap import routes
from pytest_agentbench.tap.accounts import Account
from pytest_agentbench.tap.agents import NOBODYS, AgentConnection, Refusal
from pytest_agentbench.tap.budgets import Budgets
from pytest_agentbench.tap.exchange import Exchange
from pytest_agentbench.tap.fair_queue import FairQueue
from pytest_agentbench.tap.heads import Headers, written
from pytest_agentbench.tap.request import Request
from pytest_agentbench.tap.upgrade import LARGE, BodyChanges, ask, ask_elsewhere
from pytest_agentbench.tap.upstream import Upstream

#: What the pool may say of a backend.
OF_UPSTREAM = ("url", "api_key", "ca_file", "headers", "requests_per_minute", "api_key_env")

REMEMBERED = 4096  # closed tokens that are told apart from unknown ones


class NoUpstream(ValueError):
    """Calls cannot go where they are told to."""


@dataclass
class Caller:
    """A rollout that may call."""

    upgrade: bool | None  # whether its calls travel as streams; None: as each of them says; False: its requests are left alone
    headers: Headers  # labels, for every request that has none of the name
    fields: Json  # labels, for the bodies of requests whose dialect has them among its `hint_fields`
    usage_once: bool  # labels: its streams tell their usage at their end, and nowhere else
    upstream: Upstream | None  # where its calls go; None: where all go
    keep: bool  # whether the records of its calls hold what the model said
    salt: str  # before the system prompt of its calls; empty: none
    calls: int | None  # how many of them are relayed; None: all
    role: str  # in which they are made
    endpoint: str  # the URL of `upstream`; empty: where all go
    accounts: tuple[Account, ...]  # of its role and its rollout, as far as they have limits
    prices: Json | None  # of its tokens
    exchanges: list[Exchange] = field(default_factory=list)
    refused: list[LLMCall] = field(default_factory=list)  # what was asked and not relayed

    @property
    def has_called(self) -> bool:
        """Whether all LLM calls were made that are relayed."""
        return self.calls is not None and sum(exchange.request.dialect is not None for exchange in self.exchanges) >= self.calls

    def limit(self) -> str:
        """Why it may make no further LLM call; empty where it may."""
        return next(filter(None, (account.refusal() for account in self.accounts)), "")


class Relay:
    """All state of a tap."""

    def __init__(self, token: str, budgets: Budgets) -> None:
        self.introductions, self.budgets = Introductions(token), budgets
        self.turns = FairQueue()
        self.upstream: Upstream | None = None
        self.elsewhere: dict[str, Upstream] = {}  # other places that calls go to, by what is said of them
        self.open: dict[str, Caller] = {}
        self.closed: OrderedDict[str, None] = OrderedDict()
        self.strangers: dict[AgentConnection, None] = {}  # connections that have not asked for a rollout's calls, the oldest first
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
            return NOBODYS
        caller = self.open[id]
        if refusal := routes.refusal(request.method, request.route):
            caller.refused.append(routes.refused(request, refusal[1]))
            return Refusal(*refusal)
        if request.dialect is not None and (enough := _enough(caller, request)) is not None:
            return enough
        return None if self.upstream or caller.upstream else Refusal(503, "the backend is not ready")

    def begin(self, id: str, agent: AgentConnection, request: Request) -> Exchange:
        """Sends a request on its way that `refusal` has nothing against."""
        caller = self.open[id]
        upstream = caller.upstream or self.upstream
        assert upstream is not None
        exchange = Exchange(agent, request, self.budgets, caller.headers, caller.keep, upstream.key_advice)
        caller.exchanges.append(exchange)
        dialect = request.dialect
        if dialect is None:
            upstream.send(exchange)
            return exchange
        for account in caller.accounts:
            account.entries.append((exchange, caller.prices))
        fields = {name: caller.fields[name] for name in dialect.hint_fields() if name in caller.fields}
        wish = BodyChanges(request.wants_upgrade(caller.upgrade), caller.upgrade is not False, fields, caller.salt, caller.usage_once)
        if len(request.body) < LARGE:
            exchange.backend_body = ask(request.route, request.body, wish)
            upstream.send(exchange)
        else:
            task = asyncio.create_task(self._send_large(upstream, exchange, wish))
            self.rewriting.add(task)
            task.add_done_callback(self.rewriting.discard)
        return exchange

    async def _send_large(self, upstream: Upstream, exchange: Exchange, wish: BodyChanges) -> None:
        changed = await ask_elsewhere(exchange.request.route, exchange.request.body, wish)
        if not exchange.over:
            exchange.backend_body = changed
            upstream.send(exchange)

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the pool, frame by frame; whoever does not speak like it is hung up on."""
        try:
            known = await self.introductions.hello(reader, writer) is not None
            while known:
                question, _ = await wire.read(reader)
                writer.write(wire.pack(self.answer(question)))
                await writer.drain()
        except (EOFError, OSError, ValueError, RecursionError):
            pass  # the pool is gone, or this is not the pool
        except asyncio.CancelledError:
            pass  # the tap ends; asyncio would log it
        finally:
            writer.close()

    def answer(self, question: Any) -> Json:
        match question:
            case {"op": "upstream", "url": str()}:
                return self._point_at(question)
            case {"op": "open", "id": str(id)} if id not in self.open and id not in self.closed:
                return self._open(id, question)
            case {"op": "close", "id": str(id)} if id in self.open:
                return {"calls": self._close(id)}
            case {"op": "said", "id": str(id)} if id in self.open:
                return {"said": self._said(id)}
            case {"op": "stats"}:
                running = sum(not exchange.over for caller in self.open.values() for exchange in caller.exchanges)
                return {"in_flight": running, "open": len(self.open), "clock_steps": self.upstream.clock.steps if self.upstream else 0}
        return {"error": f"the tap does not understand {str(question)[:200]}"}

    def _open(self, id: str, question: Json) -> Json:
        labels = question.get("labels") or {}
        try:
            own = written(labels.get("headers", {})), dict(labels.get("fields", {})), bool(labels.get("usage_once"))
        except (ValueError, TypeError, AttributeError) as error:
            return {"error": f"calls cannot be labelled so: {error}"}
        try:
            elsewhere = self._elsewhere(facts) if (facts := question.get("upstream")) else None
        except NoUpstream as error:
            return {"error": str(error)}
        keep, salt, calls = bool(question.get("keep")), str(question.get("salt") or ""), question.get("calls")
        place = str(question.get("role") or ""), str(facts["url"]) if facts else ""
        spending = self._accounts(question), question.get("prices")
        self.open[id] = Caller(question.get("upgrade"), *own, elsewhere, keep, salt, calls, *place, *spending)
        return {"ok": True}

    def _accounts(self, question: Json) -> tuple[Account, ...]:
        """Those that an address's calls are put down to."""
        accounts = [Account(f"the role {question['role']!r}", limits)] if (limits := question.get("limits")) else []
        if shared := question.get("account"):
            known = self.accounts.get(shared["id"]) or Account("the rollout", shared["limits"])
            self.accounts[shared["id"]] = known
            accounts.append(known)
        return tuple(accounts)

    def _elsewhere(self, facts: Json) -> Upstream:
        """The place that is spoken of; rollouts that go to the same one share its connections."""
        known = repr(sorted(facts.items()))
        if known not in self.elsewhere:
            self.elsewhere[known] = _upstream(facts)
        return self.elsewhere[known]

    def _point_at(self, facts: Json) -> Json:
        try:
            upstream = _upstream(facts)
        except NoUpstream as error:
            return {"error": str(error)}
        if self.upstream is not None:
            self.upstream.close()
        self.upstream = upstream
        return {"ok": True}

    def _said(self, id: str) -> list[Json]:
        """Breaks off what is under way, and hands over what the model said since this was asked last."""
        _break_off(self.open[id].exchanges)
        replies = []
        for exchange in self.open[id].exchanges:
            if exchange.record is not None and exchange.record.said is not None:
                replies.append({"received_ns": exchange.record.received_ns, **exchange.record.said})
                exchange.record = dataclasses.replace(exchange.record, said=None)
        return replies

    def _close(self, id: str) -> list[Json]:
        """Ends a token; calls that are still open are broken off. Returns all of them in the order in which they came."""
        self.closed[id] = None
        if len(self.closed) > REMEMBERED:
            self.closed.popitem(last=False)
        caller = self.open.pop(id)
        _break_off(caller.exchanges)
        records = [*caller.refused, *(exchange.record for exchange in caller.exchanges if exchange.record is not None)]
        whose = {"role": caller.role, "endpoint": caller.endpoint}
        return [{**codec.plain(record), **whose} for record in sorted(records, key=lambda record: record.received_ns)]


def _enough(caller: Caller, request: Request) -> Refusal | None:
    """Why a caller may make no further LLM call; None where it may."""
    if caller.has_called:
        return Refusal(410, "this rollout fills the prefix cache, and has made its first call")
    if beyond := caller.limit():
        caller.refused.append(routes.refused(request, beyond, LIMIT))
        return Refusal(403, beyond, LIMIT)
    return None


def _break_off(exchanges: Sequence[Exchange]) -> None:
    """Whoever made these calls is gone."""
    for exchange in exchanges:
        if not exchange.over:
            exchange.agent.abandon()


def _upstream(facts: Json) -> Upstream:
    try:
        return Upstream(**{name: facts[name] for name in OF_UPSTREAM if name in facts})
    except (ValueError, OSError, TypeError, AttributeError) as error:
        raise NoUpstream(f"calls cannot go to {facts.get('url')}: {error}") from error
