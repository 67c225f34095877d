"""Entry point of the process of a node worker that makes attempts: `python -m pytest_agentbench.rollouts.nodes.runner`."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import shutil
import signal
import socket
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from pytest_agentbench.errors import ConfigError, InfraError
from pytest_agentbench.lib import standard_streams, wire
from pytest_agentbench.lib.error_texts import cause
from pytest_agentbench.lib.standard_streams import IN_A_ROLLOUT, refuse_input
from pytest_agentbench.lib.threads import daemon, in_thread
from pytest_agentbench.lib.wire import end_with_stdin, raise_limit, read_config, serving
from pytest_agentbench.records import Endpoint, Rollout, RolloutKey
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.nodes.endpoints import on_node
from pytest_agentbench.rollouts.nodes.protocol import (
    TO_RUNNER,
    AttemptEnded,
    AttemptStarted,
    FromRunner,
    GiveLease,
    GroupGivenUp,
    NodePointed,
    NodeSample,
    PointNode,
    RevokeLease,
    RunnerConfig,
    RunnerServes,
    TemplateLostOnNode,
)
from pytest_agentbench.rollouts.nodes.suite_files import SUITES, at_controller
from pytest_agentbench.rollouts.pool.controller_link import ControllerPipe
from pytest_agentbench.rollouts.pool.failed_attempts import Interrupted, Outages
from pytest_agentbench.rollouts.pool.model_addresses import Addresses
from pytest_agentbench.rollouts.pool.runner import Runner
from pytest_agentbench.rollouts.pool.watchdog import Watchdog, end_leftovers, exit_after_stdin
from pytest_agentbench.runs.attempts import AddressClosed, AddressOpened, AttemptBegun, AttemptState, LabelReleased, RolloutTally
from pytest_agentbench.runs.journal import limit_size
from pytest_agentbench.sandbox.containers import client, image_of
from pytest_agentbench.sandbox.factory import ImageBuilder
from pytest_agentbench.suites.suite import Task

SAMPLE = 1.0  # seconds between two samples of the loop's lateness
TICK = 0.1  # seconds of the timer whose lateness is measured
CONNECTS = 3  # connections to the backend whose median time is reported
CONNECT_TIME = 10.0  # seconds until a connection to the backend has failed
RELEASE = 0.5  # seconds to tell the stack, at the end, which rollouts have ended
LEAST_FREE = 200_000_000  # bytes that must be free on the disk with the logs
GRACE = 3.0  # seconds from the end of stdin to the forced end of a runner that an agent blocks
LEFT = 0.3  # seconds for cancelled attempts to end their sandboxes and programs


class NodeRunner:
    """Makes the attempts of one node worker, with the same `Runner` as the pool. Its messages go through the supervisor to the pool.

    It is the host of the `Runner` and its link to a session. The controller decides what follows from deaths of template
    processes, and the pool repeats the attempts that they interrupt.

    Not thread-safe: all methods run on the event loop of the process.
    """

    def __init__(self, config: RunnerConfig) -> None:
        self._sizes = config.settings.sizes
        self._taps, self._node, self._folder = config.taps, config.node, config.folder
        self._own_endpoint = config.endpoint
        self._suites, self._suites_folder = config.settings.suites.values(), config.folder / SUITES
        self._is_prepared = False  # whether the disk was checked, and the images of tasks were built
        self._loop = asyncio.get_running_loop()
        self._writer: asyncio.StreamWriter | None = None
        self._leases: dict[RolloutKey, int] = {}
        self._attempts: dict[int, asyncio.Task[None]] = {}
        self._dead: dict[str, str] = {}  # template process that has died -> group (suite and variant) that it runs
        self._verdicts = deque[asyncio.Future[protocol.TemplateVerdict]]()  # open questions, the oldest first
        self._outages = Outages(lambda _: None)
        self._outages.end()  # The pool asks the controller about attempts that failed; here only template processes are known.
        self._addresses = Addresses(config.settings.run, 1, config.secret, self.tell, lambda: "", RolloutTally())
        self._addresses.keep = config.settings.keep
        self.runner = Runner(config.settings, self._addresses, self._outages, self, self, AttemptState())
        self.ended = asyncio.Event()

    async def serve(self, connection: socket.socket) -> None:
        """Serves the supervisor until it closes this process's stdin. Raises OSError if a tap cannot be reached."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60, use_dns_cache=False)
        async with aiohttp.ClientSession(connector=connector, json_serialize=lambda value: orjson.dumps(value).decode()) as session:
            self._addresses.session = session
            await self._addresses.connect(self._taps)
            reader, self._writer = await asyncio.open_connection(sock=connection)
            serving(RunnerServes())
            tasks = [asyncio.create_task(self._read(reader)), asyncio.create_task(self._sample())]
            await self.ended.wait()
            for task in (*tasks, *self._attempts.values()):
                task.cancel()
            await self.runner.close()
            if self._attempts:
                await asyncio.wait(self._attempts.values(), timeout=LEFT)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._addresses.release_all(), RELEASE)
            with suppress(OSError, TimeoutError):
                await asyncio.wait_for(self._writer.drain(), RELEASE)

    def _send(self, message: FromRunner, body: bytes = b"") -> None:
        if self._writer is not None:
            self._writer.write(wire.pack(message, body))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(EOFError, ConnectionError):
            while True:
                header, _ = await wire.read(reader)
                match TO_RUNNER.read(header):
                    case PointNode() as point:
                        await self._point(point)
                    case GiveLease(number, key):
                        # Its own context, so that a log of one attempt gets nothing of another one.
                        task = asyncio.create_task(self._attempt(number, key), context=contextvars.Context())
                        self._attempts[number] = task
                    case protocol.TemplateVerdict() as verdict:
                        self._verdicts.popleft().set_result(verdict)
                    case RevokeLease(number):
                        if (revoked := self._attempts.get(number)) is not None:
                            revoked.cancel()

    async def _point(self, point: PointNode) -> None:
        """Points the tap at the backend, and reports whether this machine reaches it."""
        try:
            endpoint = self._own_endpoint or on_node(point.endpoint, self._folder, self._node)
            connect_ms = await _connect_ms(endpoint)
            await self._addresses.point_at(endpoint, anew=True)
        except (ConfigError, InfraError, OSError) as error:
            reason = str(error) or f"no connection within {CONNECT_TIME:g} s"
            self._send(NodePointed(point.number, None, f"the backend at {point.endpoint.url} cannot be called from there: {reason}"))
            return
        if not self._is_prepared:
            if problem := await in_thread(self._prepare, point.images):
                self._send(NodePointed(point.number, connect_ms, problem))
                return
            self._is_prepared = True
        self._addresses.salt = point.salt
        self._send(NodePointed(point.number, connect_ms))

    def _prepare(self, tasks: Sequence[Task]) -> str:
        """Checks the disk, and builds the images that are missing. Returns why no rollouts can run here, or an empty text."""
        if (free := shutil.disk_usage(self._folder).free) < LEAST_FREE:
            return f"the disk of {self._folder} has {free / 1e6:.0f} MB left, and at least {LEAST_FREE / 1e6:.0f} MB are needed"
        if not tasks:
            return ""
        try:
            client().close()
        except InfraError as error:
            return f"tasks run in containers, and there {error}"
        own = {image_of(each.task): each.task for suite in self._suites for each in suite.scenarios if each.task}
        images = ImageBuilder(self._say_from_thread)
        images.make([own.get(image_of(task), task) for task in tasks])  # Folders of tasks have other paths here.
        self.runner.set_unbuilt(images.unbuilt)
        return ""

    def _say_from_thread(self, sentence: str) -> None:
        self._loop.call_soon_threadsafe(self._send, protocol.ShowUser(sentence))

    async def _attempt(self, number: int, key: RolloutKey) -> None:
        self._leases[key] = number
        is_interrupted = is_lost = False
        times: dict[str, Any] = {"started_at": time.time(), "started_ns": time.monotonic_ns()}
        try:
            rollout = await self.runner.run(key)
        except Interrupted as interruption:
            rollout, is_interrupted = interruption.rollout, True
        except Exception as error:  # A bug of this package. The test that waits gets the reason.
            why = f"the node failed on this rollout: {cause(error)}"
            rollout = Rollout(*key, status="infra_error", reason=why, ended_ns=time.monotonic_ns(), **times)
        finally:
            self._leases.pop(key, None)
            self._attempts.pop(number, None)
        if rollout.status == "infra_error" and not self._addresses.has_taps:
            is_interrupted = is_lost = True  # The tap has died, and this process will be ended.
        _, line = limit_size(at_controller(rollout, self._suites_folder), self._sizes)
        body = b"\n".join((line, *self._addresses.take_lines(key)))
        self._send(AttemptEnded(number, time.monotonic_ns(), is_interrupted, is_lost), body)

    async def _sample(self) -> None:
        """Sends once a second how late the loop was. The supervisor adds the CPU use."""
        loop = asyncio.get_running_loop()
        while True:
            late, end = 0.0, loop.time() + SAMPLE
            while (now := loop.time()) < end:
                await asyncio.sleep(TICK)
                late = max(late, loop.time() - now - TICK)
            if self._attempts:
                self._send(NodeSample(round(late * 1e3, 3), {}))

    def tell(self, message: protocol.PoolNote) -> None:
        """Sends a note of the `Runner` or the addresses to the pool, if it concerns the pool."""
        match message:
            case AttemptBegun(key):
                self._send(AttemptStarted(self._leases[key], time.monotonic_ns()))
            case AddressOpened() | AddressClosed() | LabelReleased() | protocol.ShowUser():
                self._send(message)
            case protocol.TemplateServes(name):
                self._dead = {part: group for part, group in self._dead.items() if part != name}
                self._outages.update(self._dead)
                self._send(message)

    async def ask(self, question: protocol.ControllerQuestion[protocol.Answered]) -> tuple[Any, bytes]:
        """Asks the controller whether a template process is started again, which is the only question of a `Runner`."""
        assert isinstance(question, protocol.TemplateLost)
        verdict: asyncio.Future[protocol.TemplateVerdict] = asyncio.get_running_loop().create_future()
        self._verdicts.append(verdict)
        self._send(question)
        return await verdict, b""

    def hold(self, part: str, group: str) -> None:
        """Notes that a template process has died, so that attempts that fail now count as interrupted."""
        self._dead = {**self._dead, part: group}
        self._outages.update(self._dead)
        self._send(TemplateLostOnNode(part, group))

    def give_up(self, group: str, reason: str) -> None:
        """Tells the pool that the code of a suite and variant cannot run here."""
        self._send(GroupGivenUp(group, reason))


async def _connect_ms(endpoint: Endpoint) -> float:
    """Returns the median time of a TCP connection to the backend in milliseconds. Raises OSError if it cannot be reached."""
    url = urlsplit(endpoint.url)
    port = url.port or (443 if url.scheme == "https" else 80)
    times = []
    for _ in range(CONNECTS):
        began = time.perf_counter()
        _, writer = await asyncio.wait_for(asyncio.open_connection(url.hostname, port), CONNECT_TIME)
        times.append((time.perf_counter() - began) * 1e3)
        writer.close()
    return round(statistics.median(times), 3)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # The supervisor handles both.
        signal.signal(number, signal.SIG_IGN)
    raise_limit()
    parent = os.getppid()
    config = read_config(RunnerConfig)
    standard_streams.install(config.settings.log_level)
    stdin = refuse_input(IN_A_ROLLOUT)
    daemon(exit_after_stdin, stdin, parent, GRACE, name="leave-anyway")
    gc.freeze()  # Imported objects stay, so collections need not scan them again.
    sys.path[:] = config.settings.sys_path
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(config, stdin))


async def _serve(config: RunnerConfig, stdin: int) -> None:
    node = NodeRunner(config)
    watchdog = Watchdog(ControllerPipe(config.pipe), node.runner.longest_s)
    watchdog.start()
    end_with_stdin(asyncio.get_running_loop(), node.ended, stdin)
    supervisor = os.getppid()
    await node.serve(socket.socket(fileno=config.connection))
    watchdog.stop()
    daemon(_exit_soon, supervisor, name="leave")


def _exit_soon(supervisor: int) -> None:
    """Exits, even if user code still runs in threads. Ends what agents left running, if the supervisor has died and does not do it."""
    time.sleep(LEFT)
    if os.getppid() != supervisor:
        end_leftovers()
    os._exit(0)


if __name__ == "__main__":
    main()
