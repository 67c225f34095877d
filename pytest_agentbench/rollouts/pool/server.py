"""The server of the pool process. The controller sends commands to this server, and tests request rollouts from it."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import assert_never

import aiohttp
import orjson

from pytest_agentbench.errors import ConfigError, InfraError
from pytest_agentbench.lib import codec, wire
from pytest_agentbench.lib.error_texts import cause
from pytest_agentbench.lib.introductions import Introductions
from pytest_agentbench.lib.kept_values import NONE
from pytest_agentbench.lib.messages import Messages
from pytest_agentbench.records import Access, Endpoint, Rollout, RolloutKey
from pytest_agentbench.rollouts import inline_protocol as inline
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.nodes.hub import Hub
from pytest_agentbench.rollouts.pool.addresses import Addresses, number_of
from pytest_agentbench.rollouts.pool.block_switch import BlockTransition
from pytest_agentbench.rollouts.pool.controller_link import CLOSED, ControllerLink
from pytest_agentbench.rollouts.pool.failed_attempts import Outages, RetryPolicy
from pytest_agentbench.rollouts.pool.runner import Runner
from pytest_agentbench.rollouts.pool.scheduler import Outcome, Scheduler
from pytest_agentbench.rollouts.pool.transcripts import with_conversation
from pytest_agentbench.rollouts.protocol import PoolConfig, PoolSettings
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
from pytest_agentbench.runs.attempts import EndRollout, RolloutRead, RunAlone, read_attempts
from pytest_agentbench.runs.journal import earlier_work, limit_size, read_index, record_line, rollout_of
from pytest_agentbench.runs.sessions import prompt_hashes
from pytest_agentbench.suites.hashes import ContentHashes
from pytest_agentbench.tap.protocol import TapPorts

TestQuestion = WorkerQuestion | inline.InlineQuestion
TestAnswer = WorkerAnswer | inline.InlineAnswer
FROM_TEST: Messages[TestQuestion] = Messages(TestQuestion)


class Pool:
    """The server in the pool process. It runs the rollouts of one session and gives the results to tests.

    It listens on a socket that the controller opened. Clients present the session's token. There are two kinds:

    - The controller has one connection and sends commands (start, hold, cancel, finish). `_obey` handles them.
    - Test processes send requests (plan, rollout, scenario). `_answer` handles them. Only the first plan counts, because all workers of
      a session select the same tests.

    The scheduler decides what runs, and the runner makes the attempts. A finished rollout goes to the controller first, which redacts it
    and writes it to the journal. Tests get the line that was written. If the pool dies, the controller starts another one on the same
    port. The new one reads the state of the session from the journal and from attempts.jsonl (`state`).

    Not thread-safe: all methods run on the event loop.
    """

    def __init__(self, config: PoolConfig) -> None:
        """Restores the state of the session from the journal and attempts.jsonl. Raises OSError if a file cannot be read."""
        settings = config.settings
        self.introductions = Introductions(config.token)
        self.suites, self.sizes = settings.suites, settings.sizes
        earlier = earlier_work(read_index(config.directory), settings.session, settings.rerun)
        self.state = read_attempts(config.directory, settings.session, earlier.recorded, config.attempts_size)
        self.link = ControllerLink()
        self.outages = Outages(self.link.tell)
        self.addresses = Addresses(
            settings.run, config.number, config.token, self.link.tell, lambda: self.scheduler.broken, self.state.tally
        )
        self.addresses.keep = settings.keep
        self.runner = Runner(settings, self.addresses, self.outages, self.link, self, self.state)
        self.nodes = None if config.nodes is None else Hub(config.nodes, settings, self.link, self.addresses, self, config.number)
        self.runner.nodes = self.nodes
        self.retries = RetryPolicy(settings.scheduling.retries, self.state.failed, self.link.tell)
        self.scheduler = Scheduler(self.runner.run, self.record, settings.scheduling, self.retries)
        self.scheduler.stored = {key: Outcome(status, recorded=True) for key, status in earlier.kept.items()}
        self.scheduler.alone.update(self.state.alone)
        self.block_transition = self._block_transition(settings)
        self.scheduler.block_switch = self.block_transition
        self.number = settings.session  # number of the session within its run
        self.contents = ContentHashes(self.suites, settings.backend, prompt_hashes)
        self.time_limit = settings.time_limit
        self._unavailable: Mapping[str, str] = {}  # unavailable part -> group of the only rollouts that use it, or an empty text
        self.planned = self.state.plan is not None
        self.cancelled = False  # whether pytest itself is about to end the session
        self.unread = +(self.state.plan or Counter())  # planned rollout -> number of tests that have not requested it yet
        self.booted = asyncio.Event()  # set if the backend answers, or if it is known that it never will
        self.finished = asyncio.Event()
        self.draining: asyncio.Task[None] | None = None
        self.round: asyncio.Task[None] | None = None  # waits for a round of trials that no test requests

    def _block_transition(self, settings: PoolSettings) -> BlockTransition | None:
        if settings.blocks is None:
            return None
        concurrency = settings.scheduling.concurrency
        return BlockTransition(self.runner, self.link, self.record, settings.blocks, concurrency, self.state.blocks)

    async def serve(self, listener: socket.socket) -> None:
        """Serves until stdin closes. After `EndSession` the controller measures this process's resource usage and then closes stdin."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60, use_dns_cache=False)
        async with aiohttp.ClientSession(connector=connector, json_serialize=lambda value: orjson.dumps(value).decode()) as session:
            self.addresses.session = session
            self.scheduler.plan([*self.unread.elements()])
            self._add_round(self.state.round)
            server = await asyncio.start_server(self._connected, sock=listener)
            if self.nodes is not None:
                await self.nodes.serve()
            await self.finished.wait()
            server.close()
            if self.nodes is not None:
                self.nodes.abort()
            await self.runner.close()
            if self.draining is None:  # The controller has died, and the taps end with it.
                self.scheduler.cancel(CLOSED)  # Sandboxes and programs of agents end with their rollouts.
                await asyncio.gather(self.addresses.release_all(), self.scheduler.drained())

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if (hello := await self.introductions.hello(reader, writer)) is not None:
                await (self._controller(reader, writer) if hello.role == "controller" else self._test(reader, writer))
        except (EOFError, ConnectionError):
            pass  # The client has disconnected. The rollouts that it waited for continue.
        except ValueError:
            pass  # The data is not JSON, so this is not a process of the session.
        finally:
            writer.close()

    async def _controller(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.link.opened(writer)
        for sentence in self.state.damaged:
            self.link.tell(protocol.ShowUser(sentence))
        try:
            while True:
                try:
                    header, body = await wire.read(reader)
                    message = protocol.TO_POOL.read(header)
                except ValueError as error:
                    reason = f"the pool cannot read a message of the controller: {error}"
                    self.link.fail(reason)
                    self._give_up(reason)
                    continue
                try:
                    await self._obey(message, body)
                except Exception as error:
                    self._give_up(f"the pool failed: {cause(error)}")
        finally:
            self.outages.end()
            self.link.closed()

    def _give_up(self, reason: str) -> None:
        """Starts no more rollouts, because a message of the controller was lost or not handled.

        Also ends all waits for messages that may be lost: that the backend is ready, that a block is prepared, that processes are checked.
        """
        self.scheduler.stop(reason, "infra_error")
        self.booted.set()
        self.outages.end()
        if self.block_transition is not None:
            self.block_transition.answer(protocol.NoTurn(reason))
        self.link.tell(protocol.PlanSettled(whole=False))

    async def _obey(self, message: protocol.ToPool, body: bytes) -> None:
        if isinstance(message, protocol.ControllerAnswer):
            self.link.take(message, body)
            return
        match message:
            case protocol.Start():
                await self._start(message)
            case protocol.Turn() | protocol.NoTurn():
                assert self.block_transition is not None
                self.block_transition.answer(message)
            case protocol.ArmLost(arm, reason):
                self.scheduler.drop(arm, reason)
            case protocol.HoldAttempts(unavailable):
                self.outages.update(unavailable)
                self._unavailable = unavailable
                self.apply_holds()
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
                # A task, because rollouts that are being recorded need replies that this connection has to read meanwhile.
                self.draining = asyncio.create_task(self._drain())
            case _:
                await self._recover(message)

    async def _recover(self, message: protocol.Recovery) -> None:
        """Handles a message about a part of the session that has died or is not there yet, for example `TapsRestarted`."""
        match message:
            case protocol.NodesQueued(waits):
                assert self.nodes is not None
                self.nodes.are_queued = waits
            case protocol.ProcessesChecked():
                self.outages.answer()
            case protocol.CatchUp(number):
                self.link.tell(protocol.CaughtUp(number))
            case RunAlone(keys):
                self.scheduler.alone.update(keys)
            case EndRollout(rollout):
                self.runner.ends[rollout.key] = rollout
            case protocol.TapsRestarted(taps):
                await self._reconnect(taps)
            case protocol.BackendMoved(endpoint):
                await self._connect(None, endpoint)
            case _:
                assert_never(message)

    async def _drain(self) -> None:
        await self.scheduler.drained()
        if self.nodes is not None:
            await self.nodes.close()
        await self.addresses.release_all()
        self.link.tell(protocol.Drained(self.addresses.tally, 0 if self.nodes is None else self.nodes.leftovers))

    async def _start(self, start: protocol.Start) -> None:
        """Begins to run rollouts, because the backend answers: points the taps at it, and closes what earlier pools left open."""
        self.runner.set_unbuilt(start.unbuilt)
        if self.nodes is not None:
            self.nodes.images = start.images
        await self._connect(start.taps, start.endpoint)
        await self.addresses.take_over(self.state, start.known)
        self._keep_interrupted()
        self.booted.set()
        if self.time_limit is not None:
            over = (f"the session's time limit of {self.time_limit:g} s is over", "cancelled")
            if start.elapsed_s >= self.time_limit:
                self.scheduler.stop(*over)
            else:
                asyncio.get_running_loop().call_later(self.time_limit - start.elapsed_s, self.scheduler.stop, *over)
        self.scheduler.start()

    def _keep_interrupted(self) -> None:
        """Adds attempts that the death of an earlier pool interrupted to the earlier ones of their rollouts, with calls from the taps."""
        for key, interruption in self.state.interrupted.items():
            if key not in self.runner.ends:
                calls, number = self.addresses.left_calls.get(key, ()), self.retries.count(key) + 1
                self.retries.keep(key, interruption.attempt(number, self.number, time.monotonic_ns(), calls), interrupted=True)

    async def _connect(self, taps: TapPorts | None, endpoint: Endpoint) -> None:
        """Points the taps at the backend. `taps` are the ports of new tap processes, or None if the present ones stay."""
        self.addresses.endpoint = endpoint  # Set it even if a tap is unavailable, so that `_reconnect` can finish this.
        try:
            if taps is not None:
                await self.addresses.connect(taps)
            await self.runner.point_at(endpoint, anew=True)
        except ConfigError as error:
            self.scheduler.stop(str(error), "infra_error")
        except (OSError, InfraError) as error:
            if self.addresses.has_taps:
                self.scheduler.stop(f"the tap does not answer: {error}", "infra_error")
            else:  # The controller starts the tap again and then sends `TapsRestarted`.
                self.hold("tap", "")

    async def _reconnect(self, taps: TapPorts) -> None:
        """Connects to the taps again, because one was restarted and has lost its state."""
        if (endpoint := self.addresses.endpoint) is not None and not self.scheduler.broken:
            await self._connect(taps, endpoint)

    def hold(self, part: str, group: str) -> None:
        """Prevents new attempts because a part of the session is unavailable. If `group` is set, only its rollouts use the part."""
        self.outages.add(part, group)
        self._unavailable = {**self._unavailable, part: group}
        self.apply_holds()

    def apply_holds(self) -> None:
        """Begins no attempt while a part of the session is unavailable."""
        self.scheduler.hold(", ".join([*self._unavailable, *(self.nodes.unavailable if self.nodes else ())]))

    def give_up(self, group: str, reason: str) -> None:
        """Starts no more rollouts of a group (suite and variant)."""
        self.scheduler.give_up(group, reason)

    def resize(self, slots: int) -> None:
        """Runs at most as many rollouts as the node workers have slots."""
        self.scheduler.resize(min(slots, self.scheduler.settings.concurrency))

    def stop(self, reason: str) -> None:
        """Starts no more rollouts."""
        self.scheduler.stop(reason, "infra_error")

    @property
    def waits(self) -> bool:
        """Whether rollouts wait for a node worker: the backend answers, and not all planned rollouts are finished."""
        return self.scheduler.is_waiting

    async def record(self, rollout: Rollout) -> bytes:
        """Sends a record to the controller, which redacts it and writes it to the journal. Returns the line in the journal."""
        content, cluster = self.contents.of(rollout.key), self.contents.cluster(rollout.key)
        rollout = dataclasses.replace(rollout, session=self.number, content=content, cluster=cluster)
        tokens = sum(call.completion_tokens or 0 for call in rollout.all_calls)
        rollout, line = limit_size(rollout, self.sizes)
        scores = {name: float(score) for name, score in rollout.scores.items()}
        calls = sum(len(attempt.calls) + len(attempt.other_calls) for attempt in rollout.attempts)
        finished = protocol.RolloutFinished(rollout.key, rollout.kind, rollout.status, scores, tokens, calls, rollout.duration_s)
        lines = self.addresses.take_lines(rollout.key)
        if self.addresses.keep != NONE:
            rollout, more = with_conversation(rollout, lines)
            line, lines = record_line(rollout), [*lines, *more]
        _, written = await self.link.ask(finished, b"\n".join((line, *lines)))
        return written

    async def _test(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(await self._answer_frame(*await wire.read(reader)))
            await writer.drain()

    async def _answer_frame(self, header: object, body: bytes) -> bytes:
        """Returns the frame that answers a question of a test. Any error becomes a refusal, so that the test does not wait for ever."""
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
                return FoundScenario(codec.plain(self.runner.scenario(key))), b""
            case GetBackend():
                return await self._backend(), b""
            case inline.LendAddress(key, access):
                return await self._open(key, access), b""
            case inline.ReturnAddress(id):
                await self._wait_for_taps(id)
                return inline.ReturnedCalls(tuple(await self.addresses.close(id))), b""
            case inline.TakeModelReplies(id):
                await self._wait_for_taps(id)
                return inline.ModelReplies(tuple(await self.addresses.said(id))), b""
            case inline.TakeConversation(key, calls):
                return inline.FoundConversation(tuple(await self.addresses.conversation(key, calls))), b""
            case _:
                assert_never(question)

    async def _plan(self, plan: PlanSelected) -> PlanAccepted:
        """Plans the rollouts that tests need. Ignores all plans but the first, because all workers of a session select the same tests."""
        if not self.planned:
            self.planned = True
            stored = len(self.scheduler.stored.keys() & set(plan.keys))
            self.unread.update(plan.keys)
            answer, _ = await self.link.ask(protocol.PlanMade(plan.keys, stored, plan.selected))
            self.scheduler.plan(plan.keys)
            self._add_round(answer.beside)
        return PlanAccepted()

    def _add_round(self, keys: Sequence[RolloutKey]) -> None:
        """Queues trials that no test requests, if any. The controller gets `PlanSettled` when all rollouts are finished."""
        if keys:
            self.scheduler.plan(keys)
            self.round = asyncio.create_task(self._tell_when_settled())

    async def _tell_when_settled(self) -> None:
        self.link.tell(protocol.PlanSettled(await self.scheduler.settled()))

    async def _rollout(self, key: RolloutKey) -> tuple[RecordedRollout | UnrecordedRollout, bytes]:
        outcome: Outcome = await self.scheduler.outcome(key)
        self.unread.subtract([key])
        self.link.tell(RolloutRead(key))
        shared_cause, over = self.scheduler.cause(key, outcome) or None, await self._is_over(key, outcome)
        if not outcome.recorded:
            return UnrecordedRollout(outcome.status, outcome.reason, shared_cause, over), b""
        body = self.scheduler.body(key)
        return RecordedRollout(shared_cause, over), body if body is not None else (await self.link.ask(protocol.GetRecord(key)))[1]

    async def _is_over(self, key: RolloutKey, outcome: Outcome) -> bool:
        """Returns whether no further test can judge anything: tests still need rollouts, but none of these has or can get a record.

        Returns False if more rollouts of this rollout's group (suite and variant) may start, if the session was cancelled, if this
        machine lacks something that the backend needs, or if this rollout has a record that a test can judge.
        """
        if not self.scheduler.is_given_up(key):
            return False  # The outcome concerns this rollout only.
        if self.cancelled or outcome.status == "missing" or (outcome.recorded and not self.scheduler.cause(key, outcome)):
            return False
        if self.scheduler.broken:
            await self.scheduler.drained()  # Running rollouts may still get a record.
        left = [key for key, tests in self.unread.items() if tests > 0]
        return bool(left) and not any(map(self.scheduler.is_judgeable, left))

    async def _wait_for_backend(self) -> None:
        """Asks the controller to boot the backend, if it boots on demand. Waits until the backend answers or is known to have failed."""
        await self.link.connected.wait()
        if not self.booted.is_set():
            self.link.tell(protocol.StartBackend())
        await self.booted.wait()
        await self.scheduler.available.wait()

    async def _backend(self) -> BackendReady | QuestionRefused:
        await self._wait_for_backend()
        endpoint, why, status = self.addresses.endpoint, self.scheduler.broken, self.scheduler.broken_status
        if endpoint is None or (why and status == "infra_error"):
            return QuestionRefused(why, status)
        return BackendReady(dataclasses.replace(endpoint, api_key=None, headers={}))

    async def _wait_for_taps(self, token: str) -> None:
        """Waits until this pool is connected to the taps, if an earlier pool has opened the address `token` for a test."""
        address = self.state.addresses.get(number_of(token))
        if address is not None and address.lent:
            await self.booted.wait()

    async def _open(self, key: RolloutKey, access: Access) -> inline.LentAddress | QuestionRefused:
        await self._wait_for_backend()
        try:
            return inline.LentAddress(await self.addresses.lend(key, access))
        except InfraError as error:
            return QuestionRefused(str(error), self.scheduler.broken_status)
