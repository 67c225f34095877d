"""The pool's side of the sockets: the controller tells it what to run, tests ask for what was run."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import aiohttp
import orjson

from pytest_agentbench.errors import ConfigError, InfraError
from pytest_agentbench.lib import codec, wire
from pytest_agentbench.lib.introductions import Introductions
from pytest_agentbench.lib.losses import cause
from pytest_agentbench.lib.sizes import Sizes
from pytest_agentbench.llm.model_facts import ModelFacts
from pytest_agentbench.records import Access, Endpoint, Json, Rollout, RolloutKey
from pytest_agentbench.rollouts.pool.addresses import Addresses
from pytest_agentbench.rollouts.pool.block_switch import BlockTransition
from pytest_agentbench.rollouts.pool.inheritance import Inheritance
from pytest_agentbench.rollouts.pool.reporter import Reporter
from pytest_agentbench.rollouts.pool.scheduler import Outcome, Scheduler
from pytest_agentbench.rollouts.pool.templates import Setups
from pytest_agentbench.rollouts.rollout import RolloutSetup, run_rollout
from pytest_agentbench.runs.journal import rollout_of
from pytest_agentbench.runs.prompt_hashes import prompt_hashes
from pytest_agentbench.runs.record_size import sized
from pytest_agentbench.sandbox.factory import Sandboxes
from pytest_agentbench.suites.hashes import ContentHashes
from pytest_agentbench.suites.suite import PoolSuite, Scenario

GONE = "the controller's line is closed"


class Pool:
    """One session's rollouts."""

    def __init__(self, config: Json) -> None:
        self.introductions = Introductions(config["token"])
        self.suites = {name: codec.received(PoolSuite, suite) for name, suite in config["suites"].items()}
        self.scenarios = {(suite.name, each.id): each for suite in self.suites.values() for each in suite.scenarios}
        self.sizes = Sizes(**config["sizes"])
        self.setups = Setups(self)
        self.scheduler = Scheduler(self._run, self.record, **config["scheduling"])
        self.scheduler.stored = {RolloutKey(*each["key"]): Outcome(each["status"], recorded=True) for each in config["stored"]}
        self.reporter = Reporter(self.tell)
        self.scheduler.reporter = self.reporter
        self.addresses = Addresses(config["run"], self.tell, lambda: self.scheduler.broken)
        self.inheritance = Inheritance(config["inherited"], config["session"])
        self.inheritance.hand_to(self.scheduler, self.addresses)
        self.sandboxes = Sandboxes(config["run"], config["sandboxes"], self.tell)
        self.turning = BlockTransition(self, concurrency=self.scheduler.concurrency, **config["turns"]) if config["turns"] else None
        self.scheduler.turns = self.turning
        self.number: int = config["session"]  # of the session within its run
        self.contents = ContentHashes(self.suites, config["backend"], prompt_hashes)
        self.time_limit: float | None = config["time_limit"]
        self.budget: float | None = config["budget"]  # seconds for a rollout; None: what its suite says
        self.planned = self.inheritance.plan is not None
        self.cancelled = False  # pytest itself is about to end the session
        self.unread = Counter(self.inheritance.plan or ())  # how many of the planned tests have still to ask for each rollout
        self.controller: asyncio.StreamWriter | None = None
        self.controlled = asyncio.Event()  # the controller is connected
        self.replies: deque[asyncio.Future[bytes]] = deque()  # what the controller still has to answer, in order
        self.booted = asyncio.Event()  # the backend answers, or never will
        self.finished = asyncio.Event()
        self.draining: asyncio.Task[None] | None = None
        self.round: asyncio.Task[None] | None = None  # of trials that no test asks for
        self.session: aiohttp.ClientSession | None = None

    async def serve(self, listener: socket.socket) -> None:
        """Answers until the controller ends it, who first asks the system what it has cost."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60, use_dns_cache=False)
        async with aiohttp.ClientSession(connector=connector, json_serialize=lambda value: orjson.dumps(value).decode()) as self.session:
            self.addresses.session = self.session
            self.scheduler.plan(self.inheritance.plan or ())
            self._add_round(self.inheritance.round)
            server = await asyncio.start_server(self._connected, sock=listener)
            await self.finished.wait()
            server.close()
            await self.setups.close()
            if self.draining is None:  # the controller is gone, and with it the taps
                self.scheduler.cancel(GONE)  # sandboxes and programs of agents end with their rollouts
                await asyncio.gather(self.addresses.farewell(), self.scheduler.drained())

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if (hello := await self.introductions.hello(reader, writer)) is not None:
                await (self._controller(reader, writer) if hello.role == "controller" else self._test(reader, writer))
        except (EOFError, ConnectionError):
            pass  # the other side is gone; what it waited for goes on
        except ValueError:
            pass  # it does not speak JSON, so it is none of ours
        finally:
            writer.close()

    async def _controller(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.controller = writer
        self.controlled.set()
        try:
            while True:
                await self._obey(*await wire.read(reader))
        finally:
            self.controller = None
            self.reporter.end()
            while self.replies:
                _answer_with(self.replies.popleft(), error=GONE)

    async def _obey(self, message: Json, body: bytes) -> None:
        match message.pop("op"):
            case "reply":
                _answer_with(self.replies.popleft(), body, message.get("error", ""))
            case "start":
                await self._start(**message)
            case "turn":
                assert self.turning is not None
                self.turning.told(message)
            case "gone":
                self.scheduler.drop(message["arm"], message["reason"])
            case "hold":
                self.scheduler.hold(message["why"])
            case "round":
                self._add_round(message["keys"])
            case "failed":
                self.scheduler.stop(message["reason"], message["status"])
                self.booted.set()
            case "cancel":
                self.cancelled = True
                self.scheduler.cancel(message["reason"])
                self.booted.set()
            case "finish":
                self.scheduler.cancel("the session ended")
                self.draining = asyncio.create_task(self._drain())  # records under way need the replies that are read meanwhile
            case op:
                await self._follow(op, message)

    async def _follow(self, op: str, message: Json) -> None:
        """What comes of the death of a part of the session."""
        match op:
            case "looked":
                self.reporter.answer()
            case "echo":
                self.tell({"op": "echo", "number": message["number"]})
            case "alone":
                self.scheduler.alone.update(RolloutKey(*key) for key in message["keys"])
            case "end":
                self.inheritance.ends[RolloutKey(*message["key"])] = message["end"]
            case "taps":
                await self._reconnect(message["taps"])
            case "moved":
                await self._connect(None, Endpoint(**message["endpoint"]))

    async def _drain(self) -> None:
        await self.scheduler.drained()
        await self.addresses.farewell()
        if self.controller is not None:
            tally = self.addresses.tally
            self.controller.write(wire.pack({"op": "drained", "labels": asdict(tally) if tally.labelled else None}))
            await self.controller.drain()

    async def _start(self, endpoint: Json, taps: Json, elapsed_s: float, unbuilt: Mapping[str, str]) -> None:
        """The backend answers: point the taps at it and go. Rollouts of this session could run for `elapsed_s` before."""
        self.sandboxes.unbuilt = unbuilt
        await self._connect(taps, Endpoint(**endpoint))
        await self.inheritance.settle(self.scheduler, self.addresses)
        self.booted.set()
        if self.time_limit is not None:
            over = (f"the session's time limit of {self.time_limit:g} s is over", "cancelled")
            if elapsed_s >= self.time_limit:
                self.scheduler.stop(*over)
            else:
                asyncio.get_running_loop().call_later(self.time_limit - elapsed_s, self.scheduler.stop, *over)
        self.scheduler.start()

    async def _connect(self, taps: Json | None, endpoint: Endpoint) -> None:
        """Points the taps at the backend; `taps` are the new ones, None if the present ones stay."""
        self.addresses.endpoint = endpoint  # known even if the tap is away as well, so that `_reconnect` can finish this
        try:
            if taps is not None:
                await self.addresses.connect(taps)
            await self.addresses.point_at(endpoint, anew=True)
        except ConfigError as error:
            self.scheduler.stop(str(error), "infra_error")
        except (OSError, InfraError) as error:
            if self.addresses.has_taps:
                self.scheduler.stop(f"the tap does not answer: {error}", "infra_error")
            else:  # the controller starts it again, and says so
                self.scheduler.hold(str(error))

    async def _reconnect(self, taps: Json) -> None:
        """A tap has been started again, and knows nothing."""
        if (endpoint := self.addresses.endpoint) is not None and not self.scheduler.broken:
            await self._connect(taps, endpoint)

    def tell(self, message: Json) -> None:
        """Tells the controller something that it does not reply to."""
        if self.controller is not None:
            self.controller.write(wire.pack(message))

    async def ask(self, question: Json, body: bytes = b"") -> bytes:
        """The controller's reply; it answers in the order of the questions. Raises InfraError with the reason when it cannot."""
        await self.controlled.wait()
        if self.controller is None:
            raise InfraError(GONE)
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.replies.append(reply)
        self.controller.write(wire.pack(question, body))
        return await reply

    async def record(self, rollout: Rollout) -> bytes:
        """Hands a rollout to the journal; returns the line as it stands there."""
        content, cluster = self.contents.of(rollout.key), self.contents.cluster(rollout.key)
        earlier = tuple(dataclasses.replace(attempt, session=self.number) for attempt in rollout.earlier_attempts)
        rollout = dataclasses.replace(rollout, session=self.number, content=content, cluster=cluster, earlier_attempts=earlier)
        tokens = sum(call.completion_tokens or 0 for call in rollout.all_calls)
        rollout, line = sized(rollout, self.sizes)
        summary = {
            "op": "finished",
            "key": rollout.key,
            "kind": rollout.kind,
            "status": rollout.status,
            "scores": {name: float(score) for name, score in rollout.scores.items()},
            "tokens": tokens,
            "calls": sum(len(attempt.calls) + len(attempt.other_calls) for attempt in rollout.attempts),
            "duration_s": rollout.duration_s,
        }
        return await self.ask(summary, line) or line

    async def _test(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            message, body = await wire.read(reader)
            try:
                header, content = await self._answer(message, body)
            except Exception as error:  # whatever it is, the test shall not wait for it
                why = str(error) if isinstance(error, InfraError) else f"the pool failed on {str(message)[:100]}: {cause(error)}"
                header, content = {"status": "infra_error", "reason": why}, b""
            writer.write(wire.pack(header, content))
            await writer.drain()

    async def _answer(self, message: Json, body: bytes) -> wire.Frame:  # noqa: PLR0911 - one for each question
        match message["op"]:
            case "plan":
                await self._plan(message)
                return {}, b""
            case "rollout":
                return await self._rollout(RolloutKey(*message["key"]))
            case "scenario":
                return {}, orjson.dumps(codec.plain(self._scenario(RolloutKey(*message["key"]))))
            case "backend":
                await self._backend_there()
                there = self.addresses.endpoint
                endpoint = {**asdict(there), "api_key": None, "headers": {}} if there else None
                status = self.scheduler.broken_status if self.scheduler.broken else ""
                return {"endpoint": endpoint, "reason": self.scheduler.broken, "status": status}, b""
            case "open":
                return await self._open(RolloutKey(*message["key"]), Access(**message["access"]))
            case "close":
                await self._settled(message["id"])
                return {}, orjson.dumps(await self.addresses.close(message["id"]))
            case "said":
                await self._settled(message["id"])
                return {}, orjson.dumps(await self.addresses.said(message["id"]))
            case "submit":
                return {}, await self.record(rollout_of(body))
            case other:
                return {"status": "infra_error", "reason": f"the pool does not know {other!r}"}, b""

    async def _plan(self, message: Json) -> None:
        """The first plan wins: all workers of a session select the same tests."""
        if self.planned:
            return
        self.planned = True
        keys = [RolloutKey(*key) for key in message["keys"]]
        stored = len(self.scheduler.stored.keys() & set(keys))
        self.unread.update(keys)
        beside = await self.ask({"op": "plan", "keys": keys, "stored": stored, "selected": message["selected"]})
        self.scheduler.plan(keys)
        self._add_round(orjson.loads(beside) if beside else ())

    def _add_round(self, keys: Sequence[Sequence[Any]]) -> None:
        """Of trials, behind all that waits; when everything is over the controller is told."""
        if keys:
            self.scheduler.plan([RolloutKey(*key) for key in keys])
            self.round = asyncio.create_task(self.reporter.rested(self.scheduler.settled()))

    async def _rollout(self, key: RolloutKey) -> wire.Frame:
        outcome: Outcome = await self.scheduler.outcome(key)
        self.unread.subtract([key])
        self.tell({"op": "read", "key": key})
        header = {**asdict(outcome), "cause": self.scheduler.cause(key, outcome), "over": await self._is_over(key, outcome)}
        if not outcome.recorded:
            return header, b""
        body = self.scheduler.body(key)
        return header, body if body is not None else await self.ask({"op": "fetch", "key": key})

    async def _is_over(self, key: RolloutKey, outcome: Outcome) -> bool:
        """Whether tests are left, and all that they could be told is what this one is told."""
        if not self.scheduler.is_given_up(key):
            return False  # what became of this one is its own affair
        if self.cancelled or outcome.status == "missing" or (outcome.recorded and not self.scheduler.cause(key, outcome)):
            return False
        if self.scheduler.broken:
            await self.scheduler.drained()  # what runs may yet have a record
        left = [key for key, tests in self.unread.items() if tests > 0]
        return bool(left) and not any(map(self.scheduler.is_judgeable, left))

    async def _backend_there(self) -> None:
        """Waits until it answers, or never will; one that is booted on demand is demanded."""
        await self.controlled.wait()
        if not self.booted.is_set():
            self.tell({"op": "want"})
        await self.booted.wait()
        await self.scheduler.there.wait()

    async def _settled(self, token: str) -> None:
        """Waits until the taps know this pool, where an earlier one has lent the address."""
        if token in self.inheritance.lent:
            await self.booted.wait()

    async def _open(self, key: RolloutKey, access: Access) -> wire.Frame:
        await self._backend_there()
        try:
            address = await self.addresses.lend(key, access)
        except InfraError as error:
            return {"reason": str(error), "status": self.scheduler.broken_status}, b""
        facts = asdict(address.facts or ModelFacts())
        return {"id": address.id, "base_url": address.base_url, "model": address.model, "facts": facts, "reason": ""}, b""

    async def _run(self, key: RolloutKey) -> Rollout:
        if end := self.inheritance.end_of(key, self.suites[key.suite], self.scenarios):
            return end
        scenario, setup, budget = await self.setup_of(key)
        return await run_rollout(key, scenario, setup, self.addresses, self.session, budget, self.sandboxes)

    async def setup_of(self, key: RolloutKey) -> tuple[Scenario, RolloutSetup, float]:
        """Raises InfraError as `Setups.of` does."""
        suite = self.suites[key.suite]
        return self._scenario(key), await self.setups.of(suite, key.variant), self.budget or suite.timeout

    def _scenario(self, key: RolloutKey) -> Scenario:
        return self.scenarios[key.suite, key.scenario]


def _answer_with(reply: asyncio.Future[bytes], body: bytes = b"", error: str = "") -> None:
    if reply.done():
        return  # whoever asked has been cancelled
    if error:
        reply.set_exception(InfraError(error))
    else:
        reply.set_result(body)
