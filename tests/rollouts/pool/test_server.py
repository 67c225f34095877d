"""The server of the pool: its answers, and its end."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_agentbench.lib import wire
from pytest_agentbench.lib.foreign import Sizes
from pytest_agentbench.lib.json_text import sealed
from pytest_agentbench.lib.wire import Hello
from pytest_agentbench.records import Access, Endpoint, Rollout, RolloutKey
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.inline_protocol import LendAddress
from pytest_agentbench.rollouts.pool.answers_for_tests import TestQuestion
from pytest_agentbench.rollouts.pool.server import Pool
from pytest_agentbench.rollouts.protocol import BlockSettings, PoolConfig, PoolSettings, Scheduling
from pytest_agentbench.rollouts.questions_of_tests import (
    BackendReady,
    GetBackend,
    GetRollout,
    GetScenario,
    PlanAccepted,
    PlanSelected,
    QuestionRefused,
    RecordedRollout,
    UnrecordedRollout,
    read_answer,
)
from pytest_agentbench.runs import journal
from pytest_agentbench.runs.attempts import AttemptEntry, AttemptLog, PoolEntry, PrepareBlock, RolloutRead, RolloutTally
from pytest_agentbench.runs.journal import record_line, rollout_of
from pytest_agentbench.suites.arms import VariantOrigin
from pytest_agentbench.suites.suite import DatasetInfo, Scenario, Suite
from pytest_agentbench.tap.protocol import TapDone, TapPorts, TapRefusal

pytestmark = pytest.mark.timeout(60)

TOKEN = "secret"
KEY = ["shop", "s-0", "default", 1]
ROLLOUT = GetRollout(RolloutKey("shop", "s-0"))


class Line:
    """A connection to the pool."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.entries: list[PoolEntry] = []  # entries that the pool has sent to its controller

    def say(self, body: bytes = b"", **message: Any) -> None:
        self.writer.write(wire.pack(message, body))

    def ask(self, question: TestQuestion) -> None:
        self.writer.write(wire.pack(question))

    async def answer(self, question: TestQuestion) -> tuple[object, bytes]:
        """Returns the answer to the question that was sent, and the frame's body."""
        header, body = await wire.read(self.reader)
        return read_answer(question, header), body

    async def hear(self) -> wire.Packet:
        return await wire.read(self.reader)

    def tell(self, message: protocol.ToPool, body: bytes = b"") -> None:
        """Sends a message of the controller."""
        self.writer.write(wire.pack(message, body))

    async def next_message(self) -> tuple[protocol.ToController, bytes]:
        """Returns the pool's next message that is not an entry, and keeps entries. Answers `CheckProcesses`: nothing has died."""
        while True:
            header, body = await wire.read(self.reader)
            message = protocol.TO_CONTROLLER.read(header)
            if isinstance(message, PoolEntry):
                self.entries.append(message)
            match message:
                case protocol.CheckProcesses():
                    self.tell(protocol.ProcessesChecked())
                case _ if isinstance(message, PrepareBlock) or not isinstance(message, PoolEntry):
                    return message, body


async def refuse_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A tap that refuses all addresses, so that every rollout ends at once as infra_error."""
    while not reader.at_eof():
        try:
            question, _ = await wire.read(reader)
        except EOFError:
            break
        if question[0] != "Hello":
            writer.write(wire.pack(TapRefusal("it is full") if question[0] == "OpenAddress" else TapDone()))
    writer.close()


def shop() -> Suite:
    scenarios = tuple(Scenario(f"s-{number}", ({"role": "user", "content": "A lamp?"},)) for number in range(3))
    return Suite("shop", Path("scenarios/shop"), scenarios, dataset=DatasetInfo("shop", "f", "data.json", "0" * 64, "hand", 3))


def empty_run(directory: Path) -> Path:
    """Returns the directory of a run without records."""
    directory.mkdir()
    (directory / journal.FILE).touch()
    return directory


def written(directory: Path, left: Sequence[AttemptEntry | bytes]) -> int:
    """Writes the entries that earlier pools of the session left, and invalid lines. Returns the size of the file in bytes."""
    log = AttemptLog(directory, 1, lambda text: text, print)
    for each in left:
        if isinstance(each, bytes):
            with log.path.open("ab") as file:
                file.write(each)
        else:
            log.append(each)
    log.close()
    return log.path.stat().st_size


class Session:
    """A pool, and a session's connections to it."""

    def __init__(self, port: int, taps: TapPorts, token: str) -> None:
        self.port, self.taps, self.token = port, taps, token
        self.lines: list[Line] = []

    async def connect(self, role: str, token: str | None = None) -> Line:
        line = Line(*await asyncio.open_connection("127.0.0.1", self.port))
        line.writer.write(wire.pack(Hello(self.token if token is None else token, role)))
        self.lines.append(line)
        return line

    def start(self, controller: Line) -> None:
        """Sends `Start`."""
        endpoint = Endpoint("http://127.0.0.1:9/v1", "m", api_key="hush", context_length=8192)
        controller.tell(protocol.Start(endpoint, (), self.taps, 0.0, {}))

    async def plan(self, controller: Line, test: Line, *keys: RolloutKey) -> protocol.ToController:
        """Sends a plan as a test and answers the pool as the controller. Returns the message that the controller got."""
        plan = PlanSelected(keys, {"shop": len(keys)})
        test.ask(plan)
        message, _ = await controller.next_message()
        controller.tell(protocol.PlanTaken(()))
        assert (PlanAccepted(), b"") == await test.answer(plan)
        return message


def pool_settings(suite: Suite, **changes: Any) -> PoolSettings:
    """Returns settings for the pools of a session with one suite."""
    usual = PoolSettings(
        session=1,
        rerun=(),
        run="r",
        backend="b",
        suites={suite.name: suite.for_pool()},
        sys_path=tuple(sys.path),
        log_level="info",
        scheduling=Scheduling(concurrency=2, retries=0, keep_order=False, durations={}),
        blocks=None,
        sandboxes=2,
        time_limit=None,
        budget=None,
        sizes=Sizes(),
        keep="none",
    )
    return dataclasses.replace(usual, **changes)


@asynccontextmanager
async def session(
    left: Sequence[AttemptEntry | bytes] = (),
    taps: TapPorts | None = None,
    token: str = TOKEN,
    recorded: Sequence[Rollout] = (),
    later: Sequence[AttemptEntry] = (),
    **changes: Any,
) -> AsyncIterator[Session]:
    """Runs a pool that ends with the block.

    The journal contains `recorded`, and attempts.jsonl contains `left`. Entries in `later` are written after the size that the pool reads.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    with tempfile.TemporaryDirectory() as folder:
        directory = empty_run(Path(folder) / "run")
        (directory / journal.FILE).write_bytes(b"".join(sealed(record_line(each)) + b"\n" for each in recorded))
        size = written(directory, left)
        written(directory, later)
        number = 2 if left else 1
        pool = Pool(PoolConfig(token, listener.fileno(), -1, pool_settings(shop(), **changes), number, directory, size))
    async with await asyncio.start_server(refuse_all, "127.0.0.1", 0) as tap:
        serving = asyncio.create_task(pool.serve(listener))
        tap_port: int = tap.sockets[0].getsockname()[1]
        connected = Session(listener.getsockname()[1], taps or TapPorts(tap_port, (tap_port,), TOKEN), token)
        try:
            yield connected
        finally:
            for line in connected.lines:
                line.writer.close()
                await line.writer.wait_closed()
            if pool.addresses.taps is not None:
                pool.addresses.taps.disconnect()
            pool.finished.set()
            await serving
            while others := asyncio.all_tasks() - {asyncio.current_task()}:  # handlers of these connections in the pool
                await asyncio.wait(others)
            await asyncio.sleep(0)


async def test_a_rollout_goes_to_the_journal_and_then_to_its_test() -> None:
    """The controller gets every record first. The test gets the line that the controller returned."""
    async with session() as connected:
        controller, test = await connected.connect("controller"), await connected.connect("test")

        assert protocol.PlanMade((ROLLOUT.key,) * 2, 0, {"shop": 2}) == await connected.plan(controller, test, ROLLOUT.key, ROLLOUT.key)

        connected.start(controller)
        test.ask(ROLLOUT)
        message, line = await controller.next_message()
        assert isinstance(message, protocol.RolloutFinished)
        assert (ROLLOUT.key, "scenario", "infra_error") == (message.key, message.kind, message.status)
        assert "the tap refused the message OpenAddress: it is full" == rollout_of(line).reason

        controller.tell(protocol.RecordLine(), b'{"redacted": true}')
        assert (RecordedRollout(None, over=False), b'{"redacted": true}') == await test.answer(ROLLOUT)


async def test_an_end_in_the_middle_of_a_record() -> None:
    """A record that is being written when the session is cancelled and ended still gets its reply, and reaches test and journal."""
    async with session() as connected:
        controller, test = await connected.connect("controller"), await connected.connect("test")
        await connected.plan(controller, test, ROLLOUT.key)
        connected.start(controller)
        test.ask(ROLLOUT)
        await controller.next_message()

        controller.tell(protocol.Cancel("a test failed"))
        controller.tell(protocol.EndSession())
        controller.tell(protocol.RecordLine(), b"{}")

        assert (RecordedRollout(None, over=False), b"{}") == await test.answer(ROLLOUT)
        assert (protocol.Drained(RolloutTally()), b"") == await controller.next_message()


async def test_an_unreadable_message_of_the_controller() -> None:
    """After an unreadable message no test and no round keeps waiting. The pool continues to read, so the session ends as usual."""
    async with session() as connected:
        controller, test = await connected.connect("controller"), await connected.connect("test")
        test.ask(ROLLOUT)
        controller.writer.write(wire.framed(["HoldAttempts", {"unavailable": 5}]))
        answer, _ = await test.answer(ROLLOUT)

        assert isinstance(answer, UnrecordedRollout)
        assert "the pool cannot read a message of the controller: unavailable is a whole number, not an object" == answer.reason
        assert protocol.PlanSettled(whole=False) == (await controller.next_message())[0]

        controller.tell(protocol.EndSession())
        while not isinstance(message := (await controller.next_message())[0], protocol.Drained):
            assert isinstance(message, RolloutRead)


async def test_an_unreadable_answer_while_an_arm_is_prepared() -> None:
    """A test whose rollout waits for an arm is answered, too. Later answers are not assigned to other questions."""
    blocks = BlockSettings({"default": VariantOrigin("default", "a")}, "cold", in_sequence=False, own={})
    async with session(blocks=blocks) as connected:
        controller, test = await connected.connect("controller"), await connected.connect("test")
        connected.start(controller)
        test.ask(ROLLOUT)
        assert PrepareBlock("a", 1) == (await controller.next_message())[0]

        controller.writer.write(wire.framed(["Turn", {"endpoint": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}}]))
        answer, _ = await test.answer(ROLLOUT)
        assert isinstance(answer, UnrecordedRollout)
        assert answer.reason.startswith("the pool cannot read a message of the controller: ")

        controller.tell(protocol.RecordLine(), b"{}")
        test.ask(plan := PlanSelected((ROLLOUT.key,), {"shop": 1}))
        assert (QuestionRefused(answer.reason, "infra_error"), b"") == await test.answer(plan)


async def test_a_message_that_the_pool_fails_on() -> None:
    """If the pool fails on a message of the controller, the waiting test is answered."""
    async with session() as connected:
        controller, test = await connected.connect("controller"), await connected.connect("test")
        test.ask(ROLLOUT)
        controller.tell(protocol.RecordLine())  # No question in the pool waits for it.
        answer, _ = await test.answer(ROLLOUT)

        assert isinstance(answer, UnrecordedRollout)
        assert answer.reason.startswith("the pool failed: IndexError")


async def test_no_backend() -> None:
    """If the backend does not start, tests get the reason, whether they ask before or after, and no endpoint is returned."""
    async with session() as connected:
        controller, early, late = [await connected.connect(role) for role in ("controller", "test", "test")]
        early.ask(ROLLOUT)
        await asyncio.sleep(0.05)
        controller.tell(protocol.NothingRuns("no GPU", "infra_error"))

        unrecorded = UnrecordedRollout("infra_error", "no GPU", None, over=False)
        assert (unrecorded, b"") == await early.answer(ROLLOUT)
        await connected.plan(controller, late, ROLLOUT.key)
        late.ask(ROLLOUT)
        assert (unrecorded, b"") == await late.answer(ROLLOUT)
        for question in (GetBackend(), LendAddress(ROLLOUT.key, Access())):
            late.ask(question)
            assert (QuestionRefused("no GPU", "infra_error"), b"") == await late.answer(question)


async def test_the_backend_without_its_key() -> None:
    """Tests get the backend's endpoint without its key."""
    async with session() as connected:
        controller, test = await connected.connect("controller"), await connected.connect("test")
        connected.start(controller)
        test.ask(GetBackend())

        assert (BackendReady(Endpoint("http://127.0.0.1:9/v1", "m", context_length=8192)), b"") == await test.answer(GetBackend())


async def test_a_client_with_another_token() -> None:
    """A connection with another token is closed without an answer."""
    async with session() as connected:
        stranger = await connected.connect("test", token="guess")
        stranger.ask(GetBackend())

        assert b"" == await stranger.reader.read()


async def test_the_time_limit() -> None:
    """After the time limit no rollout begins, and waiting tests get the reason."""
    async with session(time_limit=0.0) as connected:
        controller, test = await connected.connect("controller"), await connected.connect("test")
        connected.start(controller)
        test.ask(GetBackend())
        await test.answer(GetBackend())
        await asyncio.sleep(0.05)
        test.ask(ROLLOUT)
        outcome, _ = await test.answer(ROLLOUT)

        assert UnrecordedRollout("cancelled", "the session's time limit of 0 s is over", None, over=False) == outcome


async def test_an_answer_that_cannot_be_sent() -> None:
    """An answer that JSON cannot express becomes a refusal, which names the question but none of its values."""
    odd = dataclasses.replace(shop(), scenarios=(dataclasses.replace(shop().scenarios[0], metadata={("a", "b"): 1}),))  # type: ignore[dict-item]
    async with session(suites={"shop": odd.for_pool()}) as connected:
        test = await connected.connect("test")
        test.ask(question := GetScenario(ROLLOUT.key))
        answer, _ = await test.answer(question)

        assert isinstance(answer, QuestionRefused)
        assert answer.reason.startswith("the pool failed on GetScenario: TypeError")


async def test_an_unknown_question() -> None:
    """A question that the pool does not know or cannot read is refused, not ignored."""
    async with session() as connected:
        test = await connected.connect("test")
        for header, fault in ((["Sing", {}], "the message 'Sing' is unknown"), (["GetRollout", {"key": 5}], "key is a whole number")):
            test.writer.write(wire.framed(header))
            answer, _ = await test.answer(ROLLOUT)

            assert isinstance(answer, QuestionRefused)
            assert answer.reason.startswith(fault)
