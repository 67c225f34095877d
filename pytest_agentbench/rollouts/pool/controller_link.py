"""The pool's connections to the controller: a socket for messages, and a pipe for times when the pool's event loop is blocked."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Any, NoReturn, Protocol

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import json_text, wire
from pytest_agentbench.records import Rollout
from pytest_agentbench.rollouts import protocol
from pytest_agentbench.rollouts.protocol import BlockedBy, FromPipe, ShowUser

CLOSED = "the connection to the controller is closed"


class Link(Protocol):
    """The methods with which the parts of a pool send messages to the controller."""

    def tell(self, message: protocol.PoolNote) -> None:
        """Sends a note, which is not answered."""

    async def ask(self, question: protocol.ControllerQuestion[protocol.Answered]) -> tuple[protocol.Answered, bytes]:
        """Sends a question and returns the answer with its body. Raises InfraError if it fails or never comes."""


class ControllerLink:
    """The pool's connection to the controller: sends notes (not answered) and questions, and returns the answers.

    The controller connects once. The pool's server, which accepts and reads that connection, calls `opened` and `closed`, and passes each
    answer to `take`. Questions wait until the controller has connected. Notes sent before that are lost. After `closed`, and after an
    answer that could not be read (`fail`), every question raises InfraError.

    Not thread-safe: all methods run on the pool's event loop.
    """

    def __init__(self) -> None:
        self.connected = asyncio.Event()  # set when the controller has connected
        self.unreadable = ""  # why answers are ignored: an earlier message, possibly an answer, could not be read; empty if they are not
        self._writer: asyncio.StreamWriter | None = None
        self._replies: deque[asyncio.Future[tuple[Any, bytes]]] = deque()  # unanswered questions, the oldest first

    def opened(self, writer: asyncio.StreamWriter) -> None:
        """Begins to use a connection of the controller that the server has accepted."""
        self._writer = writer
        self.connected.set()

    def closed(self) -> None:
        """Makes all questions raise InfraError, because the connection has ended."""
        self._writer = None
        self._fail_replies(CLOSED)

    def fail(self, reason: str) -> None:
        """Makes all questions, also later ones, raise InfraError, because a message of the controller could not be read."""
        self.unreadable = reason
        self._fail_replies(reason)

    def tell(self, message: protocol.PoolNote) -> None:
        """Sends a note, which the controller does not answer. Notes are lost while the controller is not connected."""
        if self._writer is not None:
            self._writer.write(wire.pack(message))

    async def ask(self, question: protocol.ControllerQuestion[protocol.Answered], body: bytes = b"") -> tuple[protocol.Answered, bytes]:
        """Sends a question and returns the controller's answer with its body. Raises InfraError if it fails or never comes."""
        await self.connected.wait()
        if self._writer is None or self.unreadable:
            raise InfraError(self.unreadable or CLOSED)
        reply: asyncio.Future[tuple[protocol.Answered, bytes]] = asyncio.get_running_loop().create_future()
        self._replies.append(reply)
        self._writer.write(wire.pack(question, body))
        return await reply

    def take(self, answer: protocol.ControllerAnswer, body: bytes) -> None:
        """Gives an answer to the oldest open question, because answers come in order. Raises IndexError if none is open."""
        if not self.unreadable:
            _answer_with(self._replies.popleft(), answer, body)

    def _fail_replies(self, reason: str) -> None:
        while self._replies:
            _answer_with(self._replies.popleft(), protocol.QuestionFailed(reason))


def _answer_with(reply: asyncio.Future[tuple[Any, bytes]], answer: protocol.ControllerAnswer, body: bytes = b"") -> None:
    if reply.done():
        return  # The task that sent the question was cancelled.
    if isinstance(answer, protocol.QuestionFailed):
        reply.set_exception(InfraError(answer.reason))
    else:
        reply.set_result((answer, body))


BLOCKED = 3  # exit status of a pool that ended itself because its event loop was blocked


class ControllerPipe:
    """A pipe to the controller that any thread of the pool can write to, even if the event loop is blocked.

    Messages are lines of JSON. The controller reads them even after the pool has died.
    """

    def __init__(self, pipe: int) -> None:
        os.set_inheritable(pipe, False)  # The reader waits until all copies are closed, so child processes must not inherit it.
        self._pipe = pipe

    def say(self, sentence: str) -> None:
        self._write(ShowUser(sentence))

    def leave(self, rollout: Rollout | None) -> NoReturn:
        try:
            if rollout is not None:
                self._write(BlockedBy(rollout))
        finally:  # End the blocked pool even if the message cannot be sent.
            os._exit(BLOCKED)

    def _write(self, message: FromPipe) -> None:
        rest = json_text.dumps_any(wire.header(message)) + b"\n"
        while rest:
            rest = rest[os.write(self._pipe, rest) :]
