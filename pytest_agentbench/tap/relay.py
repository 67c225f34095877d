"""What the tap knows: the rollouts that may call, the calls they made, and where calls go."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_agentbench.lib import json_text, wire
from pytest_agentbench.lib.introductions import Introductions
from pytest_agentbench.records import Json, LLMCall
from pytest_agentbench.tap import routes
from pytest_agentbench.tap.agents import NOBODYS, AgentConnection
from pytest_agentbench.tap.budgets import Budgets
from pytest_agentbench.tap.exchange import Exchange, Request
from pytest_agentbench.tap.fair_queue import Turns
from pytest_agentbench.tap.heads import Headers, written
from pytest_agentbench.tap.upgrade import LARGE, Wish, ask, ask_elsewhere
from pytest_agentbench.tap.upstream import Upstream

#: What the pool may say of a backend.
OF_UPSTREAM = ("url", "api_key", "ca_file", "headers", "requests_per_minute", "api_key_env")

REMEMBERED = 4096  # closed tokens that are told apart from unknown ones


class NoPlace(ValueError):
    """Calls cannot go where they are told to."""


@dataclass
class Caller:
    """A rollout that may call."""

    upgrade: bool | None  # whether its calls travel as streams; None: as each of them says; False: its requests are left alone
    headers: Headers  # labels, for every request that has none of the name
    fields: Json  # labels, for the bodies of requests whose dialect has them among its `hint_fields`
    upstream: Upstream | None  # where its calls go; None: where all go
    keep: bool  # whether the records of its calls hold what the model said
    salt: str  # before the system prompt of its calls; empty: none
    calls: int | None  # how many of them are relayed; None: all
    exchanges: list[Exchange] = field(default_factory=list)
    refused: list[LLMCall] = field(default_factory=list)  # what was asked and not relayed

    @property
    def has_called(self) -> bool:
        """Whether all LLM calls were made that are relayed."""
        return self.calls is not None and sum(exchange.request.dialect is not None for exchange in self.exchanges) >= self.calls


class Relay:
    """All state of a tap."""

    def __init__(self, token: str, budgets: Budgets) -> None:
        self.introductions, self.budgets = Introductions(token), budgets
        self.turns = Turns()
        self.upstream: Upstream | None = None
        self.elsewhere: dict[str, Upstream] = {}  # other places that calls go to, by what is said of them
        self.open: dict[str, Caller] = {}
        self.closed: OrderedDict[str, None] = OrderedDict()
        self.strangers: dict[AgentConnection, None] = {}  # connections that have not asked for a rollout's calls, the oldest first
        self.rewriting: set[asyncio.Task[None]] = set()

    def knows(self, id: str) -> bool:
        """Whether this is the address of a rollout, of one that has ended perhaps."""
        return id in self.open or id in self.closed

    def refusal(self, id: str, request: Request) -> tuple[int, str] | None:
        """(HTTP status, sentence) for a request that is not relayed."""
        if id in self.closed:
            return 410, "the rollout of this address has ended"
        if id not in self.open:
            return NOBODYS
        caller = self.open[id]
        if refusal := routes.refusal(request.method, request.route):
            caller.refused.append(routes.refused(request, refusal[1]))
            return refusal
        if caller.has_called and request.dialect is not None:
            return 410, "this rollout fills the prefix cache, and has made its first call"
        if self.upstream is None and caller.upstream is None:
            return 503, "the backend is not ready"
        return None

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
        fields = {name: caller.fields[name] for name in dialect.hint_fields() if name in caller.fields}
        wish = Wish(request.wants_upgrade(caller.upgrade), caller.upgrade is not False, fields, caller.salt)
        if len(request.body) < LARGE:
            exchange.asked = ask(request.route, request.body, wish)
            upstream.send(exchange)
        else:
            task = asyncio.create_task(self._send_large(upstream, exchange, wish))
            self.rewriting.add(task)
            task.add_done_callback(self.rewriting.discard)
        return exchange

    async def _send_large(self, upstream: Upstream, exchange: Exchange, wish: Wish) -> None:
        asked = await ask_elsewhere(exchange.request.route, exchange.request.body, wish)
        if not exchange.over:
            exchange.asked = asked
            upstream.send(exchange)

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the pool, frame by frame; whoever does not speak like it is hung up on."""
        try:
            known = await self.introductions.hello(reader, writer) is not None
            while known:
                question, _ = await wire.read(reader)
                writer.write(wire.framed(json_text.dumps(self.answer(question))))
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
            headers, fields = written(labels.get("headers", {})), dict(labels.get("fields", {}))
        except (ValueError, TypeError, AttributeError) as error:
            return {"error": f"calls cannot be labelled so: {error}"}
        try:
            elsewhere = self._elsewhere(facts) if (facts := question.get("upstream")) else None
        except NoPlace as error:
            return {"error": str(error)}
        keep, salt, calls = bool(question.get("keep")), str(question.get("salt") or ""), question.get("calls")
        self.open[id] = Caller(question.get("upgrade"), headers, fields, elsewhere, keep, salt, calls)
        return {"ok": True}

    def _elsewhere(self, facts: Json) -> Upstream:
        """The place that is spoken of; rollouts that go to the same one share its connections."""
        known = repr(sorted(facts.items()))
        if known not in self.elsewhere:
            self.elsewhere[known] = _upstream(facts)
        return self.elsewhere[known]

    def _point_at(self, facts: Json) -> Json:
        try:
            upstream = _upstream(facts)
        except NoPlace as error:
            return {"error": str(error)}
        if self.upstream is not None:
            self.upstream.close()
        self.upstream = upstream
        return {"ok": True}

    def _said(self, id: str) -> list[Json]:
        """Breaks off what is under way, and hands over what the model said since this was asked last."""
        _break_off(self.open[id].exchanges)
        found = []
        for exchange in self.open[id].exchanges:
            if exchange.record is not None and exchange.record.said is not None:
                found.append({"received_ns": exchange.record.received_ns, **exchange.record.said})
                exchange.record = dataclasses.replace(exchange.record, said=None)
        return found

    def _close(self, id: str) -> list[Json]:
        """Ends a token; calls that are still open are broken off. Returns all of them in the order in which they came."""
        self.closed[id] = None
        if len(self.closed) > REMEMBERED:
            self.closed.popitem(last=False)
        caller = self.open.pop(id)
        _break_off(caller.exchanges)
        records = [*caller.refused, *(exchange.record for exchange in caller.exchanges if exchange.record is not None)]
        return [record.to_dict() for record in sorted(records, key=lambda record: record.received_ns)]


def _break_off(exchanges: Sequence[Exchange]) -> None:
    """Whoever made these calls is gone."""
    for exchange in exchanges:
        if not exchange.over:
            exchange.agent.abandon()


def _upstream(facts: Json) -> Upstream:
    try:
        return Upstream(**{name: facts[name] for name in OF_UPSTREAM if name in facts})
    except (ValueError, OSError, TypeError, AttributeError) as error:
        raise NoPlace(f"calls cannot go to {facts.get('url')}: {error}") from error
