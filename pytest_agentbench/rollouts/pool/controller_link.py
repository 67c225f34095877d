"""The pool's ways to the controller: a connection for notes and questions, and a pipe for when its event loop stands still."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Any, NoReturn

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import json_text, messages, wire
from pytest_agentbench.records import Rollout
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.protocol import BlockedBy, FromPipe, ShowUser

CLOSED = "the controller's line is closed"


class ControllerLink:
    """Sends notes and questions to the controller, and hands out its answers.

    The controller connects once. `opened` and `closed` are called by whoever accepts and reads that connection, who also passes each
    answer to `take`. Questions wait until the controller has connected, notes before that are lost. After `closed`, and after an answer
    that could not be read (`fail`), every question raises InfraError.

    Not thread-safe: all methods run on the pool's event loop.
    """

    def __init__(self) -> None:
        self.connected = asyncio.Event()  # the controller has connected
        self.unreadable = ""  # why no answer is believed any more: a message could not be read, and it may have been an answer
        self._writer: asyncio.StreamWriter | None = None
        self._replies: deque[asyncio.Future[tuple[Any, bytes]]] = deque()  # what the controller still has to answer, in order

    def opened(self, writer: asyncio.StreamWriter) -> None:
        """Takes the connection of the controller."""
        self._writer = writer
        self.connected.set()

    def closed(self) -> None:
        """Fails all questions, because the connection has ended."""
        self._writer = None
        self._fail_replies(CLOSED)

    def fail(self, reason: str) -> None:
        """Fails all questions, also later ones, because a message could not be read."""
        self.unreadable = reason
        self._fail_replies(reason)

    def tell(self, message: protocol.PoolNote) -> None:
        """Sends a message that the controller does not answer."""
        if self._writer is not None:
            self._writer.write(wire.pack(message))

    async def ask(self, question: protocol.ControllerQuestion[protocol.Answered], body: bytes = b"") -> tuple[protocol.Answered, bytes]:
        """Returns the controller's answer; it answers in the order of the questions. Raises InfraError with the reason if it cannot."""
        await self.connected.wait()
        if self._writer is None or self.unreadable:
            raise InfraError(self.unreadable or CLOSED)
        reply: asyncio.Future[tuple[protocol.Answered, bytes]] = asyncio.get_running_loop().create_future()
        self._replies.append(reply)
        self._writer.write(wire.pack(question, body))
        return await reply

    def take(self, answer: protocol.ControllerAnswer, body: bytes) -> None:
        """Hands an answer to the oldest question. Raises IndexError if there is none."""
        if not self.unreadable:
            _answer_with(self._replies.popleft(), answer, body)

    def _fail_replies(self, reason: str) -> None:
        while self._replies:
            _answer_with(self._replies.popleft(), protocol.QuestionFailed(reason))


def _answer_with(reply: asyncio.Future[tuple[Any, bytes]], answer: protocol.ControllerAnswer, body: bytes = b"") -> None:
    if reply.done():
        return  # The task that asked has been cancelled.
    if isinstance(answer, protocol.QuestionFailed):
        reply.set_exception(InfraError(answer.reason))
    else:
        reply.set_result((answer, body))


BLOCKED = 3  # exit status of a pool that ended itself because somebody held it up


class ControllerPipe:
    """For any thread. A line of JSON each; the controller reads them all, also those of a pool that is dead."""

    def __init__(self, pipe: int) -> None:
        os.set_inheritable(pipe, False)  # who reads it waits for its end
        self._pipe = pipe

    def say(self, sentence: str) -> None:
        self._write(ShowUser(sentence))

    def leave(self, rollout: Rollout | None) -> NoReturn:
        try:
            if rollout is not None:
                self._write(BlockedBy(rollout))
        finally:  # The pool is held up, whether the controller can be told why or not.
            os._exit(BLOCKED)

    def _write(self, message: FromPipe) -> None:
        rest = json_text.dumps_any(messages.header(message)) + b"\n"
        while rest:
            rest = rest[os.write(self._pipe, rest) :]
