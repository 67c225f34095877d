"""The server of the pool process. The controller sends commands to this server, and tests request rollouts from it."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import time
from collections.abc import Mapping
from typing import assert_never

import aiohttp
import orjson

from pytest_agentbench.errors import ConfigError, InfraError
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.authentication import Introductions
from pytest_agentbench.lib.error_texts import cause
from pytest_agentbench.lib.kept_values import NONE
from pytest_agentbench.records import Endpoint, Rollout
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.nodes.hub import Hub
from pytest_agentbench.rollouts.pool.answers_for_tests import AnswersForTests
from pytest_agentbench.rollouts.pool.block_switch import BlockTransition
from pytest_agentbench.rollouts.pool.controller_link import CLOSED, ControllerLink
from pytest_agentbench.rollouts.pool.failed_attempts import Outages, RetryPolicy
from pytest_agentbench.rollouts.pool.model_addresses import Addresses, with_conversation
from pytest_agentbench.rollouts.pool.runner import Runner
from pytest_agentbench.rollouts.pool.scheduler import Outcome, Scheduler
from pytest_agentbench.rollouts.protocol import PoolConfig, PoolSettings
from pytest_agentbench.runs.attempts import EndRollout, RunAlone, read_attempts
from pytest_agentbench.runs.journal import earlier_work, limit_size, read_index, record_line
from pytest_agentbench.runs.sessions import prompt_hashes
from pytest_agentbench.suites.hashes import ContentHashes
from pytest_agentbench.tap.protocol import TapPorts


class Pool:
    """The server in the pool process. It runs the rollouts of one session and gives the results to tests.

    It listens on a socket that the controller opened. Clients present the session's token. There are two kinds:

    - The controller has one connection and sends commands (start, hold, cancel, finish). `_obey` handles them.
    - Test processes send requests (plan, rollout, scenario). `AnswersForTests` answers them.

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
        self.tests = AnswersForTests(self.runner, self.scheduler, self.addresses, self.link, self.state, self.record)
        self.finished = asyncio.Event()
        self.draining: asyncio.Task[None] | None = None

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
            self.scheduler.plan([*self.tests.unread.elements()])
            self.tests.add_round(self.state.round)
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
                await (self._controller(reader, writer) if hello.role == "controller" else self.tests.serve(reader, writer))
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
        self.tests.booted.set()
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
                self.tests.add_round(keys)
            case protocol.NothingRuns(reason, status):
                self.scheduler.stop(reason, status)
                self.tests.booted.set()
            case protocol.Cancel(reason):
                self.tests.cancelled = True
                self.scheduler.cancel(reason)
                self.tests.booted.set()
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
        self.tests.booted.set()
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
