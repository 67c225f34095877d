"""The pool's side of the sockets: the controller tells it what to run, tests ask for what was run."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, assert_never

import aiohttp
import orjson

from pytest_agentbench.errors import ConfigError, InfraError
from pytest_agentbench.lib import codec, wire
from pytest_agentbench.lib.introductions import Introductions
from pytest_agentbench.lib.losses import cause
from pytest_agentbench.lib.messages import Messages
from pytest_agentbench.records import Access, Endpoint, Rollout, RolloutKey
from pytest_agentbench.rollouts import inline_protocol as inline
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.inherited import RolloutRead
from pytest_agentbench.rollouts.pool.addresses import Addresses
from pytest_agentbench.rollouts.pool.block_switch import BlockTransition
from pytest_agentbench.rollouts.pool.inheritance import Inheritance
from pytest_agentbench.rollouts.pool.reporter import Reporter
from pytest_agentbench.rollouts.pool.scheduler import Outcome, Scheduler
from pytest_agentbench.rollouts.pool.templates import Setups
from pytest_agentbench.rollouts.pool_config import PoolConfig
from pytest_agentbench.rollouts.rollout import RolloutSetup, run_rollout
from pytest_agentbench.rollouts.worker_protocol import (
    BackendReady,
    FoundScenario,
    GetBackend,
    GetRollout,
    GetScenario,
    PlanAccepted,
    PlanSelected,
    QuestionRefused,
    RecordedRollout,
    UnrecordedRollout,
    WorkerAnswer,
    WorkerQuestion,
)
from pytest_agentbench.runs.journal import rollout_of
from pytest_agentbench.runs.prompt_hashes import prompt_hashes
from pytest_agentbench.runs.record_size import sized
from pytest_agentbench.sandbox.factory import Sandboxes
from pytest_agentbench.suites.hashes import ContentHashes
from pytest_agentbench.suites.suite import Scenario
from pytest_agentbench.tap.protocol import TapPorts

GONE = "the controller's line is closed"

TestQuestion = WorkerQuestion | inline.InlineQuestion
TestAnswer = WorkerAnswer | inline.InlineAnswer
FROM_TEST: Messages[TestQuestion] = Messages(TestQuestion)


class Pool:
    """One session's rollouts."""

    def __init__(self, config: PoolConfig) -> None:
        settings = config.settings
        self.introductions = Introductions(config.token)
        self.suites = settings.suites
        self.scenarios = {(suite.name, each.id): each for suite in self.suites.values() for each in suite.scenarios}
        self.sizes = settings.sizes
        self.setups = Setups(self)
        self.scheduler = Scheduler(self._run, self.record, settings.scheduling)
        self.scheduler.stored = {each.key: Outcome(each.status, recorded=True) for each in config.stored}
        self.reporter = Reporter(self.tell)
        self.scheduler.reporter = self.reporter
        self.addresses = Addresses(settings.run, self.tell, lambda: self.scheduler.broken)
        self.inheritance = Inheritance(config.inherited, settings.session)
        self.inheritance.hand_to(self.scheduler, self.addresses)
        self.sandboxes = Sandboxes(settings.run, settings.sandboxes, lambda sentence: self.tell(protocol.ShowUser(sentence)))
        self.turning = BlockTransition(self, settings.blocks, settings.scheduling.concurrency) if settings.blocks else None
        self.scheduler.turns = self.turning
        self.number = settings.session  # of the session within its run
        self.contents = ContentHashes(self.suites, settings.backend, prompt_hashes)
        self.time_limit = settings.time_limit
        self.budget = settings.budget  # seconds for a rollout; None: what its suite says
        self.planned = self.inheritance.plan is not None
        self.cancelled = False  # pytest itself is about to end the session
        self.unread = Counter(self.inheritance.plan or ())  # how many of the planned tests have still to ask for each rollout
        self.controller: asyncio.StreamWriter | None = None
        self.controlled = asyncio.Event()  # the controller is connected
        self.replies: deque[asyncio.Future[tuple[Any, bytes]]] = deque()  # what the controller still has to answer, in order
        self.unreadable = ""  # what is wrong with a message of the controller; it may have been an answer, so that no later one is believed
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
                try:
                    header, body = await wire.read(reader)
                    message = protocol.TO_POOL.read(header)
                except ValueError as error:
                    self.unreadable = f"the pool cannot read what the controller sent: {error}"
                    self._fail_replies(self.unreadable)
                    self._give_up(self.unreadable)
                    continue
                try:
                    if not (self.unreadable and isinstance(message, protocol.ControllerAnswer)):
                        await self._obey(message, body)
                except Exception as error:
                    self._give_up(f"the pool failed: {cause(error)}")
        finally:
            self.controller = None
            self.reporter.end()
            self._fail_replies(GONE)

    def _fail_replies(self, reason: str) -> None:
        while self.replies:
            _answer_with(self.replies.popleft(), protocol.QuestionFailed(reason))

    def _give_up(self, reason: str) -> None:
        """Refuses all rollouts, and ends each wait for a message of the controller, since it may be the one that was lost."""
        self.scheduler.stop(reason, "infra_error")
        self.booted.set()
        self.reporter.end()
        if self.turning is not None:
            self.turning.told(protocol.NoTurn(reason))
        self.tell(protocol.PlanSettled(whole=False))

    async def _obey(self, message: protocol.ToPool, body: bytes) -> None:
        if isinstance(message, protocol.ControllerAnswer):
            _answer_with(self.replies.popleft(), message, body)
            return
        match message:
            case protocol.Start():
                await self._start(message)
            case protocol.Turn() | protocol.NoTurn():
                assert self.turning is not None
                self.turning.told(message)
            case protocol.ArmGone(arm, reason):
                self.scheduler.drop(arm, reason)
            case protocol.HoldAttempts(why):
                self.scheduler.hold(why)
            case protocol.AddRound(keys):
                self._add_round(keys)
            case protocol.NothingRuns(reason, status):
                self.scheduler.stop(reason, status)
                self.booted.set()
            case protocol.Cancel(reason):
                self.cancelled = True
                self.scheduler.cancel(reason)
                self.booted.set()
            case protocol.EndSession():
                self.scheduler.cancel("the session ended")
                self.draining = asyncio.create_task(self._drain())  # records under way need the replies that are read meanwhile
            case _:
                await self._follow(message)

    async def _follow(self, message: protocol.Recovery) -> None:
        """What comes of the death of a part of the session."""
        match message:
            case protocol.Looked():
                self.reporter.answer()
            case protocol.CatchUp(number):
                self.tell(protocol.CaughtUp(number))
            case protocol.RunAlone(keys):
                self.scheduler.alone.update(keys)
            case protocol.EndRollout(end):
                self.inheritance.ends[end.key] = end
            case protocol.TapsRestarted(taps):
                await self._reconnect(taps)
            case protocol.BackendMoved(endpoint):
                await self._connect(None, endpoint)
            case _:
                assert_never(message)

    async def _drain(self) -> None:
        await self.scheduler.drained()
        await self.addresses.farewell()
        self.tell(protocol.Drained(self.addresses.tally))

    async def _start(self, start: protocol.Start) -> None:
        """Points the taps at the backend, which answers, and begins."""
        self.sandboxes.unbuilt = start.unbuilt
        await self._connect(start.taps, start.endpoint)
        await self.inheritance.settle(self.scheduler, self.addresses)
        self.booted.set()
        if self.time_limit is not None:
            over = (f"the session's time limit of {self.time_limit:g} s is over", "cancelled")
            if start.elapsed_s >= self.time_limit:
                self.scheduler.stop(*over)
            else:
                asyncio.get_running_loop().call_later(self.time_limit - start.elapsed_s, self.scheduler.stop, *over)
        self.scheduler.start()

    async def _connect(self, taps: TapPorts | None, endpoint: Endpoint) -> None:
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

    async def _reconnect(self, taps: TapPorts) -> None:
        """A tap has been started again, and knows nothing."""
        if (endpoint := self.addresses.endpoint) is not None and not self.scheduler.broken:
            await self._connect(taps, endpoint)

    def tell(self, message: protocol.PoolNote) -> None:
        """Tells the controller something that it does not reply to."""
        if self.controller is not None:
            self.controller.write(wire.pack(message))

    async def ask(self, question: protocol.ControllerQuestion[protocol.Answered], body: bytes = b"") -> tuple[protocol.Answered, bytes]:
        """Returns the controller's answer; it answers in the order of the questions. Raises InfraError with the reason if it cannot."""
        await self.controlled.wait()
        if self.controller is None or self.unreadable:
            raise InfraError(self.unreadable or GONE)
        reply: asyncio.Future[tuple[protocol.Answered, bytes]] = asyncio.get_running_loop().create_future()
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
        scores = {name: float(score) for name, score in rollout.scores.items()}
        calls = sum(len(attempt.calls) + len(attempt.other_calls) for attempt in rollout.attempts)
        finished = protocol.RolloutFinished(rollout.key, rollout.kind, rollout.status, scores, tokens, calls, rollout.duration_s)
        _, written = await self.ask(finished, line)
        return written

    async def _test(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(await self._answered(*await wire.read(reader)))
            await writer.drain()

    async def _answered(self, header: object, body: bytes) -> bytes:
        """Returns the frame that answers a test; whatever goes wrong, the test does not wait for it."""
        try:
            question = FROM_TEST.read(header)
        except ValueError as error:
            return wire.pack(QuestionRefused(str(error), "infra_error"))
        try:
            return wire.pack(*await self._answer(question, body))
        except Exception as error:
            why = str(error) if isinstance(error, InfraError) else f"the pool failed on {type(question).__name__}: {cause(error)}"
            return wire.pack(QuestionRefused(why, "infra_error"))

    async def _answer(self, question: TestQuestion, body: bytes) -> tuple[TestAnswer, bytes]:  # noqa: PLR0911 - one for each question
        match question:
            case GetRollout(key):
                return await self._rollout(key)
            case inline.SubmitRollout():
                return inline.WrittenRecord(), await self.record(rollout_of(body))
            case PlanSelected():
                return await self._plan(question), b""
            case GetScenario(key):
                return FoundScenario(codec.plain(self._scenario(key))), b""
            case GetBackend():
                return await self._backend(), b""
            case inline.LendAddress(key, access):
                return await self._open(key, access), b""
            case inline.ReturnAddress(id):
                await self._settled(id)
                return inline.ReturnedCalls(tuple(await self.addresses.close(id))), b""
            case inline.TakeModelReplies(id):
                await self._settled(id)
                return inline.ModelReplies(tuple(await self.addresses.said(id))), b""
            case _:
                assert_never(question)

    async def _plan(self, plan: PlanSelected) -> PlanAccepted:
        """The first plan wins: all workers of a session select the same tests."""
        if not self.planned:
            self.planned = True
            stored = len(self.scheduler.stored.keys() & set(plan.keys))
            self.unread.update(plan.keys)
            taken, _ = await self.ask(protocol.PlanMade(plan.keys, stored, plan.selected))
            self.scheduler.plan(plan.keys)
            self._add_round(taken.beside)
        return PlanAccepted()

    def _add_round(self, keys: Sequence[RolloutKey]) -> None:
        """Of trials, behind all that waits; when everything is over the controller is told."""
        if keys:
            self.scheduler.plan(keys)
            self.round = asyncio.create_task(self.reporter.rested(self.scheduler.settled()))

    async def _rollout(self, key: RolloutKey) -> tuple[RecordedRollout | UnrecordedRollout, bytes]:
        outcome: Outcome = await self.scheduler.outcome(key)
        self.unread.subtract([key])
        self.tell(RolloutRead(key))
        shared_cause, over = self.scheduler.cause(key, outcome) or None, await self._is_over(key, outcome)
        if not outcome.recorded:
            return UnrecordedRollout(outcome.status, outcome.reason, shared_cause, over), b""
        body = self.scheduler.body(key)
        return RecordedRollout(shared_cause, over), body if body is not None else (await self.ask(protocol.RecordWanted(key)))[1]

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
            self.tell(protocol.BackendWanted())
        await self.booted.wait()
        await self.scheduler.there.wait()

    async def _backend(self) -> BackendReady | QuestionRefused:
        await self._backend_there()
        there, why, status = self.addresses.endpoint, self.scheduler.broken, self.scheduler.broken_status
        if there is None or (why and status == "infra_error"):
            return QuestionRefused(why, status)
        return BackendReady(dataclasses.replace(there, api_key=None, headers={}))

    async def _settled(self, token: str) -> None:
        """Waits until the taps know this pool, where an earlier one has lent the address."""
        if token in self.inheritance.lent:
            await self.booted.wait()

    async def _open(self, key: RolloutKey, access: Access) -> inline.LentAddress | QuestionRefused:
        await self._backend_there()
        try:
            return inline.LentAddress(await self.addresses.lend(key, access))
        except InfraError as error:
            return QuestionRefused(str(error), self.scheduler.broken_status)

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


def _answer_with(reply: asyncio.Future[tuple[Any, bytes]], answer: protocol.ControllerAnswer, body: bytes = b"") -> None:
    if reply.done():
        return  # whoever asked has been cancelled
    if isinstance(answer, protocol.QuestionFailed):
        reply.set_exception(InfraError(answer.reason))
    else:
        reply.set_result((answer, body))
