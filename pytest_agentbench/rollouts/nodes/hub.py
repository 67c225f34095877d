"""Gives the attempts of a session to its node workers, and takes their records. Part of the pool process."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import socket
import time
from contextlib import suppress
from typing import Protocol

from pytest_agentbench.errors import ConfigError
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.authentication import HELLO, PATIENCE, Door
from pytest_agentbench.lib.connection_security import server_context
from pytest_agentbench.lib.error_texts import cause
from pytest_agentbench.lib.wire import Hello
from pytest_agentbench.records import Endpoint, Rollout, RolloutKey
from pytest_agentbench.rollouts.nodes import suite_files
from pytest_agentbench.rollouts.nodes.connection import PERIOD, Silence, join_problem, silence_limit
from pytest_agentbench.rollouts.nodes.endpoints import for_nodes, is_readable
from pytest_agentbench.rollouts.nodes.joined_node import JoinedNode, NodeTemplates
from pytest_agentbench.rollouts.nodes.node_choice import Breaker, NodeChoice, NodeLosses, never_ran
from pytest_agentbench.rollouts.nodes.protocol import (
    FROM_NODE,
    ROLE,
    AttemptEnded,
    AttemptStarted,
    Bye,
    FromNode,
    GiveLease,
    GroupGivenUp,
    Join,
    Joined,
    Leaving,
    NodePointed,
    NodeSample,
    NotAdmitted,
    PointNode,
    RevokeLease,
    TemplateLostOnNode,
    Tick,
    Tock,
    Welcome,
)
from pytest_agentbench.rollouts.pool.controller_link import ControllerLink
from pytest_agentbench.rollouts.pool.failed_attempts import Interrupted
from pytest_agentbench.rollouts.pool.model_addresses import Addresses
from pytest_agentbench.rollouts.protocol import NodeTerms, PoolSettings, ShowUser, TemplateLost, TemplateServes
from pytest_agentbench.runs.attempts import AddressClosed, AddressOpened, AttemptBegun, LabelReleased
from pytest_agentbench.runs.journal import rollout_of
from pytest_agentbench.runs.nodes import NodeCpu
from pytest_agentbench.suites.suite import Task

NOTES = 10  # calls of `Silence.is_too_long` between two notes of the state of a node worker
LARGEST = 256 << 20  # bytes of a message of a node worker at most: a record with its requests and replies
GOODBYE = 8.0  # seconds that node workers get to end when the session ends


class HubHost(Protocol):
    """The methods of the pool that the hub calls."""

    def resize(self, slots: int) -> None:
        """Is told how many attempts the node workers can make at the same time."""

    def stop(self, reason: str) -> None:
        """Starts no more rollouts, for this reason."""

    def give_up(self, group: str, reason: str) -> None:
        """Starts no more rollouts of a group (suite and variant)."""

    def apply_holds(self) -> None:
        """Begins no attempt while a process is in `Hub.unavailable`."""

    @property
    def waits(self) -> bool:
        """Whether rollouts wait for a node worker."""


class Hub:
    """The node workers of a session: who has joined, which leases they have, and what they report.

    `attempt` has a node worker make one attempt. If that node worker is lost before the record has come, it raises Interrupted, and the
    scheduler puts the rollout back into its queue. `point_at` directs all node workers to a backend, also those that join later.

    Not thread-safe: all methods run on the pool's event loop.
    """

    def __init__(
        self, terms: NodeTerms, settings: PoolSettings, link: ControllerLink, addresses: Addresses, host: HubHost, pool: int
    ) -> None:
        """Takes objects of the pool, and its number within the session."""
        self._terms, self._settings, self._link, self._addresses, self._host = terms, settings, link, addresses, host
        self._suffix = "" if pool == 1 else f"-{pool}"  # No two node workers of a session have the same name.
        self._nodes: dict[str, JoinedNode] = {}
        self._files: asyncio.Task[bytes] | None = None  # packs the files of the suites, from when the first node worker joins
        self.images: tuple[Task, ...] = ()  # one task for each image that nodes need
        self._endpoint: Endpoint | None = None
        self._salt = ""
        self._point = 0  # number of the last `PointNode`
        self._names, self._leases = itertools.count(1), itertools.count(1)
        self._choice, self._losses = NodeChoice(settings.blocks), NodeLosses()
        self._templates = NodeTemplates(link, host.apply_holds)
        self._changed = asyncio.Condition()
        self._nobody_since = time.monotonic()
        self.are_queued = False  # whether node workers wait for machines, so that their absence does not count
        self._breaker, self._silence_s = Breaker(), silence_limit()
        self._told: dict[tuple[str, str], None] = {}  # node and why its node worker was lost, of which the user was told, in this order
        self._stopped = ""  # why no node worker gets attempts any more
        self._ending = False
        self.leftovers = 0  # ended processes that agents had left running on nodes; known after `close`
        self._listener: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def unavailable(self) -> list[str]:
        """The names of processes on nodes without which no attempt may begin."""
        return self._templates.unavailable

    async def serve(self) -> None:
        """Begins to accept node workers."""
        context = None if self._terms.certificate is None else server_context(*self._terms.certificate)
        door = Door(self._terms.token, ROLE, self._serve_node, context)
        self._listener = socket.socket(fileno=self._terms.listener)
        self._host.resize(0)
        self._tasks = [asyncio.create_task(door.serve(self._listener)), asyncio.create_task(self._watch())]

    def abort(self) -> None:
        """Closes the socket and all connections, because the pool ends."""
        self._ending = True
        for task in self._tasks:
            task.cancel()
        if self._listener is not None:
            self._listener.close()
        for node in self._nodes.values():
            node.writer.transport.abort()

    async def _watch(self) -> None:
        """Sends `Tick` to all node workers once a second, and gives up those that are silent. Runs until it is cancelled."""
        ticks = itertools.count(1)
        while True:
            await asyncio.sleep(PERIOD)
            for node in [*self._nodes.values()]:
                if node.silence.is_too_long():
                    await self._lose(node, f"nothing has come from it for {node.silence.seconds:.0f} s")
                else:
                    node.send(Tick(time.monotonic_ns()))
            if next(ticks) % NOTES == 0:
                for node in self._ready:
                    self._link.tell(node.record(self._settings.session))
            self._stop_without_nodes()
            await self._update()

    def _stop_without_nodes(self) -> None:
        now, wait = time.monotonic(), self._terms.wait_s
        if self._ready or not self._host.waits or self.are_queued:
            self._nobody_since = now
        elif self._nodes:  # They start, or build images. This may fail again and again, so earlier absence still counts.
            self._nobody_since = min(self._nobody_since + PERIOD, now)
        elif now - self._nobody_since > wait:
            last = "".join(f"; the last one, on {node}, was lost: {why}" for node, why in [*self._told][-1:])
            self._stopped = (
                f"no node worker has been there for {wait:g} s{last}; start one with `agentbench worker --join HOST:PORT --token-file FILE`"
            )
            self._host.stop(self._stopped)

    async def _serve_node(self, _: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves a connection whose client has the token for node workers."""
        node: JoinedNode | None = None
        lost = "its connection was closed"
        try:
            async with asyncio.timeout(PATIENCE):
                join = FROM_NODE.read((await wire.read(reader, HELLO))[0])
            if isinstance(join, Join) and (node := await self._admit(join, writer)) is not None:
                while True:
                    header, body = await wire.read(reader, LARGEST)
                    node.silence.end()
                    await self._handle(node, FROM_NODE.read(header), body)
        except (EOFError, ConnectionError, TimeoutError) as error:
            lost = str(error) if type(error) is ConnectionError else lost  # a message larger than LARGEST
        except Exception as error:
            lost = f"a message of it cannot be handled: {cause(error)}"
        finally:
            if node is not None:
                await self._lose(node, lost)

    async def _admit(self, join: Join, writer: asyncio.StreamWriter) -> JoinedNode | None:
        reason = join_problem(join)
        try:
            if self._files is None:
                self._files = asyncio.create_task(asyncio.to_thread(suite_files.pack, self._settings.suites))
            files = await asyncio.shield(self._files)
        except ConfigError as error:  # The files of the suites have changed since the session started, and cannot be sent any more.
            reason = self._stopped = str(error)
            self._host.stop(reason)
        if reason:
            self._show(f"a node worker on {join.node} cannot take part: {reason}")
            writer.write(wire.pack(NotAdmitted(reason, again=False)))
            await writer.drain()
            return None
        for other in [*self._nodes.values()]:
            if other.join.instance == join.instance:
                await self._lose(other, "it has connected again")
        node = JoinedNode(f"w{next(self._names)}{self._suffix}", join, writer, Silence(self._silence_s), in_clear=is_readable(writer))
        terms = self._terms
        node.send(Welcome(node.name, self._settings, terms.budgets, terms.taps, terms.sandboxes, terms.backend, self._silence_s), files)
        self._nodes[node.name] = node
        return node

    async def _handle(self, node: JoinedNode, message: FromNode, body: bytes) -> None:  # noqa: C901, PLR0912 - one branch for each message
        now = time.monotonic_ns()
        match message:
            case Tock(pool_ns, node_ns):
                node.clock.before(pool_ns, node_ns)
                node.clock.after(node_ns, now)
            case Joined():
                node.has_joined = True
                await self._send_point(node)
            case NodePointed():
                await self._pointed(node, message)
            case AttemptStarted(number, node_ns):
                node.clock.after(node_ns, now)
                if (lease := node.leases.get(number)) is not None:
                    node.clock.before(lease.given_ns, node_ns)
                    lease.has_begun = True
                    self._link.tell(AttemptBegun(lease.key, now))
            case AttemptEnded():
                await self._attempt_ended(node, message, body, now)
            case AddressOpened() | AddressClosed() | LabelReleased():
                node.note_label(message)
                self._addresses.nodes[node.name] = node.tally
            case GroupGivenUp(group, reason):
                self._host.give_up(group, f"{reason} (node worker {node.shown})")
            case TemplateLostOnNode(name, group):
                self._templates.died(node, name, group)
            case TemplateLost():
                self._templates.decide(node, message)
            case TemplateServes(name):
                self._templates.serves(node, name)
            case ShowUser(sentence):
                self._show(f"node worker {node.shown}: {sentence}")
            case Leaving(reason, leftovers):
                self.leftovers += leftovers
                await self._lose(node, reason)
            case NodeSample(lag_ms, cpu):
                node.lag_ms = max(node.lag_ms or 0.0, lag_ms)
                if any(cpu.values()):
                    self._link.tell(NodeCpu(self._settings.session, node.name, node.clock.place_cpu(cpu)))
            case Join():
                pass

    async def _send_point(self, node: JoinedNode) -> None:
        """Tells a node worker where its calls go, with its share of the rate limit. Does nothing before the backend is known."""
        if self._endpoint is None:
            return
        sharing = sum(each.has_joined for each in self._nodes.values())
        try:
            endpoint = for_nodes(self._endpoint, sharing, in_clear=node.in_clear)
        except ConfigError as error:
            await self._dismiss(node, str(error), again=False)
            return
        node.send(PointNode(self._point, endpoint, self._salt, () if node.pointed else self.images))

    async def _share_anew(self) -> None:
        """Tells all node workers their share of the rate limit, because one has come or gone."""
        if self._endpoint is not None and self._endpoint.requests_per_minute is not None:
            for node in [*self._ready]:
                await self._send_point(node)

    async def _pointed(self, node: JoinedNode, answer: NodePointed) -> None:
        if answer.problem:
            await self._dismiss(node, answer.problem, again=True)
            return
        is_new = not node.pointed
        node.pointed, node.connect_ms = answer.number, answer.connect_ms
        if is_new:
            self._show(f"node worker {node.shown} has joined, {node.join.slots} slots")
            self._link.tell(node.record(self._settings.session))
            await self._share_anew()
        await self._update()

    async def _attempt_ended(self, node: JoinedNode, message: AttemptEnded, body: bytes, now: int) -> None:
        node.clock.after(message.node_ns, now)
        lease = node.leases.get(message.lease)
        if lease is None or lease.ended.done():  # It was revoked, or the result has come already.
            node.dropped += 1
            return
        node.clock.before(lease.given_ns, message.node_ns)
        line, *lines = body.split(b"\n")
        rollout = dataclasses.replace(node.clock.place(rollout_of(line)), node=node.name)
        if rollout.key != lease.key:
            raise ValueError(f"it has sent the record of {rollout.key} for {lease.key}")
        self._addresses.add_lines(lease.key, lines)
        node.attempts += 1
        if message.interrupted and message.is_lost:
            self._losses.give_back(lease, rollout)
            return
        if message.interrupted:
            lease.ended.set_exception(Interrupted(rollout))
            return
        lease.ended.set_result(rollout)
        for bad in self._breaker.ended(node, lease.given_ns, rollout, self._ready):
            why = f"{bad.failures} rollouts in a row have failed there alone: {bad.failure}"
            await self._dismiss(bad, why, again=self._breaker.may_join_again(bad))

    async def _dismiss(self, node: JoinedNode, why: str, *, again: bool) -> None:
        """Tells a node worker that it cannot take part, and why. Gives its leases back."""
        node.send(NotAdmitted(why, again))
        await self._lose(node, why)

    async def _lose(self, node: JoinedNode, why: str) -> None:
        """Gives the leases of a node worker back. Does nothing if that has happened already."""
        if self._nodes.pop(node.name, None) is None:
            return
        node.writer.transport.abort()
        open_leases = [lease for lease in node.leases.values() if not lease.ended.done()]
        reason = f"the node worker {node.shown} was lost: {why}"
        node.lost = len(open_leases)
        if node.pointed:
            self._link.tell(node.record(self._settings.session, None if self._ending else why))
        for lease in open_leases:
            self._losses.give_back(lease, lease.lost(reason, node.name))
        if not self._ending and (open_leases or (node.join.node, why) not in self._told):
            self._told[node.join.node, why] = None
            again = f"; {len(open_leases)} rollout{'s run' if len(open_leases) > 1 else ' runs'} again" if open_leases else ""
            self._show(f"{reason}{again}")
        self._addresses.release(node.unreleased)
        self._templates.forget(node)
        await self._share_anew()
        await self._update()

    def _show(self, sentence: str) -> None:
        self._link.tell(ShowUser(sentence))

    @property
    def _ready(self) -> list[JoinedNode]:
        return [node for node in self._nodes.values() if node.pointed]

    async def _update(self) -> None:
        """Wakes up everything that waits for a node worker, because one has come, gone or become free."""
        self._breaker.release(self._ready)
        self._host.resize(sum(node.slots for node in self._ready))
        async with self._changed:
            self._changed.notify_all()

    async def attempt(self, key: RolloutKey) -> Rollout:
        """Has a node worker make one attempt, and returns its record. Raises Interrupted if the node worker is lost.

        Waits until a node worker is free. A rollout that was in flight at MOST_LOSSES lost node workers ends as infra_error.
        """
        if self._losses.is_over(key):
            return never_ran(key, self._losses.why_ended(key))
        async with self._changed:
            await self._changed.wait_for(lambda: self._stopped or self._choose(key) is not None)
            if (node := self._choose(key)) is None:
                return never_ran(key, self._stopped)
            self._choice.note(key, node)
            lease = node.give(next(self._leases), key)
        node.send(GiveLease(lease.number, key))
        try:
            return await lease.ended
        except asyncio.CancelledError:
            node.send(RevokeLease(lease.number))
            raise
        finally:
            node.leases.pop(lease.number, None)
            await self._update()

    def _choose(self, key: RolloutKey) -> JoinedNode | None:
        return self._choice.choose(key, [node for node in self._ready if node.pointed == self._point])

    async def point_at(self, endpoint: Endpoint, salt: str) -> None:
        """Has all node workers send later calls to this endpoint, and waits until they do."""
        self._endpoint, self._salt = endpoint, salt
        self._point += 1
        for node in [*self._nodes.values()]:
            if node.has_joined:
                await self._send_point(node)
        async with self._changed:
            await self._changed.wait_for(lambda: all(node.pointed == self._point for node in self._ready))

    async def close(self) -> None:
        """Ends all node workers, and waits until they have told the stack which rollouts have ended."""
        self._ending = True
        for node in self._nodes.values():
            node.send(Bye("the session is over"))
        async with self._changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(lambda: not self._nodes), GOODBYE)
