"""The pool's side of the sockets: what it answers, and how it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.lib import codec, wire
from pytest_agentbench.lib.messages import Hello
from pytest_agentbench.records import Access, Json
from pytest_agentbench.rollouts.pool.server import Pool
from pytest_agentbench.runs.journal import rollout_of
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite

pytestmark = pytest.mark.timeout(60)

TOKEN = "secret"
NEW_RUN: Json = {"session": 1, "turns": None, "stored": [], "backend": "b", "patience": None, "inherited": None}
KEY = ["shop", "s-0", "default", 1]
NOTED = ("begun", "opened", "closed", "read", "look")  # what a controller is told of rollouts
ALONE: Json = {"cause": "", "over": False}  # an outcome that says nothing of other rollouts


class Line:
    """A connection to the pool."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, body: bytes = b"", **message: Any) -> None:
        self.writer.write(wire.pack(message, body))

    async def hear(self) -> wire.Frame:
        """The next frame, without what a controller only notes; nothing has died, whenever the pool asks."""
        while (frame := await wire.read(self.reader))[0].get("op") in NOTED:
            if frame[0]["op"] == "look":
                self.say(op="looked")
        return frame


async def refuse_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A tap that is there and opens nothing, so that every rollout ends at once as infra_error."""
    while not reader.at_eof():
        try:
            question, _ = await wire.read(reader)
        except EOFError:
            break
        if "op" in question:  # the first frame is a hello
            writer.write(wire.pack({"error": "it is full"} if question["op"] == "open" else {}))
    writer.close()


def shop() -> Suite:
    scenarios = tuple(Scenario(f"s-{number}", ({"role": "user", "content": "A lamp?"},)) for number in range(3))
    return Suite("shop", Path("scenarios/shop"), scenarios, dataset=DatasetInfo("shop", "f", "data.json", "0" * 64, "hand", 3))


class Session:
    """A pool, and the connections that a session has to it."""

    def __init__(self, port: int, tap_port: int) -> None:
        self.port, self.tap_port = port, tap_port
        self.lines: list[Line] = []

    async def connect(self, role: str, token: str = TOKEN) -> Line:
        line = Line(*await asyncio.open_connection("127.0.0.1", self.port))
        line.writer.write(wire.pack(Hello(token, role)))
        self.lines.append(line)
        return line

    def start(self, controller: Line) -> None:
        """The backend answers."""
        taps = {"port": self.tap_port, "control_ports": [self.tap_port], "token": TOKEN}
        controller.say(
            op="start", endpoint={"url": "http://127.0.0.1:9/v1", "model": "m", "api_key": "hush"}, taps=taps, elapsed_s=0.0, unbuilt={}
        )

    async def plan(self, controller: Line, test: Line, *keys: list[Any]) -> Json:
        """A plan on its way from a test to the scheduler; what the controller was told of it."""
        test.say(op="plan", keys=keys, selected={"shop": len(keys)})
        told: Json = (await controller.hear())[0]
        controller.say(op="reply")
        await test.hear()
        return told


@asynccontextmanager
async def session(**config: Any) -> AsyncIterator[Session]:
    """A pool that is served, and ends when the test does."""
    scheduling = {"concurrency": 2, "retries": 0, "keep_order": False, "durations": {}}
    suites = {"shop": codec.plain(shop().for_pool())}
    pool = Pool(
        {
            "token": TOKEN,
            "suites": suites,
            "scheduling": scheduling,
            "time_limit": None,
            "budget": None,
            "sizes": {},
            "run": "r",
            "sandboxes": 2,
            **NEW_RUN,
            **config,
        }
    )
    listener = socket.create_server(("127.0.0.1", 0))
    async with await asyncio.start_server(refuse_all, "127.0.0.1", 0) as tap:
        serving = asyncio.create_task(pool.serve(listener))
        connected = Session(listener.getsockname()[1], tap.sockets[0].getsockname()[1])
        try:
            yield connected
        finally:
            for line in connected.lines:
                line.writer.close()
                await line.writer.wait_closed()
            if pool.addresses.taps is not None:
                pool.addresses.taps.leave()
            pool.finished.set()
            await serving
            while others := asyncio.all_tasks() - {asyncio.current_task()}:  # the other ends of these connections
                await asyncio.wait(others)
            await asyncio.sleep(0)


async def test_a_rollout_goes_to_the_journal_and_then_to_its_test() -> None:
    """The controller gets every record first; the test gets the line as the controller gave it back."""
    async with session() as connected:
        controller, test = await connected.connect("controller"), await connected.connect("test")

        assert {"op": "plan", "keys": [KEY, KEY], "stored": 0, "selected": {"shop": 2}} == await connected.plan(controller, test, KEY, KEY)

        connected.start(controller)
        test.say(op="rollout", key=KEY)
        told, line = await controller.hear()
        assert ("finished", KEY, "scenario", "infra_error") == (told["op"], told["key"], told["kind"], told["status"])
        assert "the tap refused open: it is full" == rollout_of(line).reason

        controller.say(b'{"redacted": true}', op="reply")
        outcome, body = await test.hear()
        assert {"status": "infra_error", "reason": "the tap refused open: it is full", "recorded": True, **ALONE} == outcome
        assert b'{"redacted": true}' == body


async def test_an_end_in_the_middle_of_a_record() -> None:
    """A record that is under way when the session is cancelled and ended still gets its reply, its test, and its place in the journal."""
    async with session() as connected:
        controller, test = await connected.connect("controller"), await connected.connect("test")
        await connected.plan(controller, test, KEY)
        connected.start(controller)
        test.say(op="rollout", key=KEY)
        await controller.hear()

        controller.say(op="cancel", reason="a test failed")
        controller.say(op="finish")
        controller.say(b"{}", op="reply")

        outcome, body = await test.hear()
        assert (True, b"{}") == (outcome["recorded"], body)
        assert ({"op": "drained", "labels": None}, b"") == await controller.hear()


async def test_no_backend() -> None:
    """Where the backend does not start, tests are told why, whether they ask before or after, and the backend has no address."""
    async with session() as connected:
        controller, early, late = [await connected.connect(role) for role in ("controller", "test", "test")]
        early.say(op="rollout", key=KEY)
        await asyncio.sleep(0.05)
        controller.say(op="failed", reason="no GPU", status="infra_error")

        refused = {"status": "infra_error", "reason": "no GPU", "recorded": False, **ALONE}
        assert (refused, b"") == await early.hear()
        await connected.plan(controller, late, KEY)
        late.say(op="rollout", key=KEY)
        assert (refused, b"") == await late.hear()
        late.say(op="backend")
        assert ({"endpoint": None, "reason": "no GPU", "status": "infra_error"}, b"") == await late.hear()
        late.say(op="open", key=KEY, access=asdict(Access()))
        assert ({"reason": "no GPU", "status": "infra_error"}, b"") == await late.hear()


async def test_the_backend_without_its_key() -> None:
    """Tests are told where the backend answers; its key stays in the pool."""
    async with session() as connected:
        controller, test = await connected.connect("controller"), await connected.connect("test")
        connected.start(controller)
        test.say(op="backend")
        answer, _ = await test.hear()

        assert ("http://127.0.0.1:9/v1", "m", None) == tuple(answer["endpoint"][name] for name in ("url", "model", "api_key"))


async def test_a_stranger() -> None:
    """A connection with another token is closed without a word."""
    async with session() as connected:
        stranger = await connected.connect("test", token="guess")
        stranger.say(op="backend")

        assert b"" == await stranger.reader.read()


async def test_the_time_limit() -> None:
    """After the time limit nothing begins; who waits is told."""
    async with session(time_limit=0.0) as connected:
        controller, test = await connected.connect("controller"), await connected.connect("test")
        connected.start(controller)
        test.say(op="backend")
        await test.hear()
        await asyncio.sleep(0.05)
        test.say(op="rollout", key=KEY)
        outcome, _ = await test.hear()

        assert ("cancelled", "the session's time limit of 0 s is over") == (outcome["status"], outcome["reason"])


async def test_an_unknown_question() -> None:
    """A question that the pool does not know is answered, not dropped."""
    async with session() as connected:
        test = await connected.connect("test")
        test.say(op="sing")

        assert "the pool does not know 'sing'" == (await test.hear())[0]["reason"]
