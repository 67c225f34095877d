"""Notes and questions of the pool reach the controller, and each question gets its own answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import wire
from pytest_agentbench.records import RolloutKey
from pytest_agentbench.rollouts.pool.controller_link import CLOSED, ControllerLink
from pytest_agentbench.rollouts.protocol import (
    TO_CONTROLLER,
    BlockBegun,
    BlockEnded,
    BlockNoted,
    CheckProcesses,
    GetRecord,
    QuestionFailed,
    RecordLine,
    StartBackend,
    ToController,
)

pytestmark = pytest.mark.timeout(60)  # A forgotten question fails the test instead of hanging it.

FIRST, SECOND, THIRD = (GetRecord(RolloutKey("shop", name)) for name in "abc")


class Connection(NamedTuple):
    """Both ends of the connection that a link writes to."""

    link: ControllerLink
    writer: asyncio.StreamWriter  # writer of the pool
    reader: asyncio.StreamReader  # reader of the controller

    async def hears(self) -> tuple[ToController, bytes]:
        """Returns the next message that arrives at the controller, with its body."""
        header, body = await wire.read(self.reader)
        return TO_CONTROLLER.read(header), body


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    """A link without its connection."""
    ours, its = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    reader, other = await asyncio.open_connection(sock=its)
    yield Connection(ControllerLink(), writer, reader)
    for each in (writer, other):
        each.close()
        await each.wait_closed()


async def settle() -> None:
    """Runs the event loop until no callback is ready."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_before_the_controller_has_connected(connection: Connection) -> None:
    """Before the controller has connected, notes are lost and questions wait."""
    link = connection.link
    link.tell(CheckProcesses())
    asking = asyncio.create_task(link.ask(FIRST))
    await settle()
    assert (False, False) == (link.connected.is_set(), asking.done())

    link.opened(connection.writer)
    assert (FIRST, b"") == await connection.hears()
    link.take(RecordLine(), b"a")

    assert (RecordLine(), b"a") == await asking


async def test_answers_are_in_the_order_of_the_questions(connection: Connection) -> None:
    """Each question gets its own answer, with the body. Notes in between get none."""
    link = connection.link
    link.opened(connection.writer)
    first, block = asyncio.create_task(link.ask(FIRST)), asyncio.create_task(link.ask(BlockBegun(2), b"body"))
    await settle()
    link.tell(StartBackend())
    second = asyncio.create_task(link.ask(SECOND))

    assert [(FIRST, b""), (BlockBegun(2), b"body"), (StartBackend(), b""), (SECOND, b"")] == [await connection.hears() for _ in range(4)]

    link.take(RecordLine(), b"a")
    link.take(BlockNoted(), b"")
    link.take(RecordLine(), b"b")

    assert [(RecordLine(), b"a"), (BlockNoted(), b""), (RecordLine(), b"b")] == [await first, await block, await second]


async def test_a_question_that_the_controller_cannot_answer(connection: Connection) -> None:
    """A question that fails raises InfraError with the reason. The next question is not affected."""
    link = connection.link
    link.opened(connection.writer)
    asking = [asyncio.create_task(link.ask(each)) for each in (FIRST, SECOND)]
    await settle()
    link.take(QuestionFailed("the disk is full"), b"")
    link.take(RecordLine(), b"b")

    with pytest.raises(InfraError, match=r"^the disk is full$"):
        await asking[0]
    assert (RecordLine(), b"b") == await asking[1]


@pytest.mark.parametrize("answer", [RecordLine(), QuestionFailed("the disk is full")])
async def test_a_task_that_is_cancelled_while_it_waits(connection: Connection, answer: RecordLine | QuestionFailed) -> None:
    """If a task is cancelled while it waits, the answer to its question does not go to the next question."""
    link = connection.link
    link.opened(connection.writer)
    asking = [asyncio.create_task(link.ask(each)) for each in (FIRST, SECOND, THIRD)]
    await settle()
    asking[1].cancel()
    await settle()
    link.take(RecordLine(), b"a")
    link.take(answer, b"b")
    link.take(RecordLine(), b"c")

    assert (RecordLine(), b"a") == await asking[0]
    assert (RecordLine(), b"c") == await asking[2]
    assert asking[1].cancelled()


async def test_an_answer_without_a_question(connection: Connection) -> None:
    """An answer without a question raises IndexError, because the pool and its controller disagree about what was asked."""
    connection.link.opened(connection.writer)

    with pytest.raises(IndexError):
        connection.link.take(RecordLine(), b"")


async def test_the_end_of_the_connection(connection: Connection) -> None:
    """After the end of the connection all questions fail, waiting and later ones. Later notes are lost."""
    link = connection.link
    link.opened(connection.writer)
    asking = [asyncio.create_task(link.ask(FIRST)), asyncio.create_task(link.ask(BlockEnded()))]
    await settle()
    link.closed()

    assert [CLOSED, CLOSED] == [str(error) for error in await asyncio.gather(*asking, return_exceptions=True)]
    with pytest.raises(InfraError, match=CLOSED):
        await link.ask(SECOND)

    link.tell(CheckProcesses())
    connection.writer.close()
    assert [(FIRST, b""), (BlockEnded(), b"")] == [await connection.hears() for _ in range(2)]
    assert b"" == await connection.reader.read()


async def test_a_message_that_cannot_be_read(connection: Connection) -> None:
    """After an unreadable message, possibly an answer, all questions fail with its reason. Notes are still sent."""
    link = connection.link
    link.opened(connection.writer)
    asking = [asyncio.create_task(link.ask(each)) for each in (FIRST, SECOND)]
    await settle()
    link.fail("away is a number")
    link.take(RecordLine(), b"")  # Both questions have no answers yet.
    link.take(RecordLine(), b"")

    assert ["away is a number"] * 2 == [str(error) for error in await asyncio.gather(*asking, return_exceptions=True)]
    for _ in range(2):
        with pytest.raises(InfraError, match=r"^away is a number$"):
            await link.ask(THIRD)
        link.closed()

    link = ControllerLink()
    link.fail("away is a number")
    link.opened(connection.writer)
    link.tell(CheckProcesses())
    with pytest.raises(InfraError, match=r"^away is a number$"):
        await link.ask(THIRD)
    assert [(FIRST, b""), (SECOND, b""), (CheckProcesses(), b"")] == [await connection.hears() for _ in range(3)]
