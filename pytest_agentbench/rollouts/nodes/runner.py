"""Entry point of the process of a node worker that makes attempts: `python -m pytest_agentbench.rollouts.nodes.runner`."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import signal
import socket
import statistics
import sys
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from pytest_agentbench.errors import ConfigError, InfraError
from pytest_agentbench.lib import capture, wire
from pytest_agentbench.lib.error_texts import cause
from pytest_agentbench.lib.messages import end_with_stdin, raise_limit, read_config, serving
from pytest_agentbench.lib.no_terminal import IN_A_ROLLOUT, refuse_input
from pytest_agentbench.lib.threads import daemon
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
)
from pytest_agentbench.rollouts.parts.pool_and_tap_processes import RestartPolicy
from pytest_agentbench.rollouts.pool.addresses import Addresses
from pytest_agentbench.rollouts.pool.controller_link import ControllerPipe
from pytest_agentbench.rollouts.pool.failed_attempts import Interrupted, Outages
from pytest_agentbench.rollouts.pool.runner import Runner
from pytest_agentbench.rollouts.pool.watchdog import Watchdog
from pytest_agentbench.runs.attempts import AddressClosed, AddressOpened, AttemptBegun, AttemptState, LabelReleased, RolloutTally
from pytest_agentbench.runs.journal import limit_size

SAMPLE = 1.0  # seconds between two samples of the loop's lateness
TICK = 0.1  # seconds of the timer whose lateness is measured
CONNECTS = 3  # connections to the backend whose median time is reported
CONNECT_TIME = 10.0  # seconds until a connection to the backend has failed
RELEASE = 0.5  # seconds to tell the stack, at the end, which rollouts have ended
LEFT = 0.3  # seconds for cancelled attempts to end their sandboxes and programs


class NodeRunner:
    """Makes the attempts of one node worker, with the same `Runner` as the pool. Its messages go through the supervisor to the pool.

    It is the host of the `Runner` and its link to a session. Deaths of template processes are counted here, and the pool gets the
    attempts that they interrupt.

    Not thread-safe: all methods run on the event loop of the process.
    """

    def __init__(self, config: RunnerConfig) -> None:
        self._sizes = config.settings.sizes
        self._taps, self._node, self._folder = config.taps, config.node, config.folder
        self._own_endpoint = config.endpoint
        self._writer: asyncio.StreamWriter | None = None
        self._leases: dict[RolloutKey, int] = {}
        self._attempts: dict[int, asyncio.Task[None]] = {}
        self._deaths = RestartPolicy()  # of template processes
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
        self._addresses.salt = point.salt
        self._send(NodePointed(point.number, connect_ms))

    async def _attempt(self, number: int, key: RolloutKey) -> None:
        self._leases[key] = number
        is_interrupted = False
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
            is_interrupted = True  # The tap has died, and this process will be ended.
        if not is_interrupted:
            self._deaths.ended(key)
        _, line = limit_size(rollout, self._sizes)
        body = b"\n".join((line, *self._addresses.take_lines(key)))
        self._send(AttemptEnded(number, time.monotonic_ns(), is_interrupted), body)

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
            case protocol.TemplateServes():
                self._outages.update({})

    async def ask(self, question: protocol.ControllerQuestion[protocol.Answered]) -> tuple[Any, bytes]:
        """Answers whether a template process is started again, which is the only question of a `Runner`."""
        assert isinstance(question, protocol.TemplateLost)
        in_flight = [key for key in self._leases if key.group == question.group]
        return protocol.TemplateVerdict(self._deaths.add(question.name, in_flight).again), b""

    def hold(self, part: str, group: str) -> None:
        """Notes that a template process has died, so that attempts that fail now count as interrupted."""
        self._outages.add(part, group)

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
    config = read_config(RunnerConfig)
    capture.install(config.settings.log_level)
    stdin = refuse_input(IN_A_ROLLOUT)
    gc.freeze()  # Imported objects stay, so collections need not scan them again.
    sys.path[:] = config.settings.sys_path
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(config, stdin))


async def _serve(config: RunnerConfig, stdin: int) -> None:
    node = NodeRunner(config)
    watchdog = Watchdog(ControllerPipe(config.pipe), node.runner.longest_s)
    watchdog.start()
    end_with_stdin(asyncio.get_running_loop(), node.ended, stdin)
    await _with_exit(node.serve(socket.socket(fileno=config.connection)))
    watchdog.stop()


async def _with_exit(work: Awaitable[None]) -> None:
    """Ends this process after `work`, even if user code still runs in threads."""
    await work
    daemon(_exit_soon, name="leave")


def _exit_soon() -> None:
    time.sleep(LEFT)
    os._exit(0)


if __name__ == "__main__":
    main()
