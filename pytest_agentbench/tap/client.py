"""The pool's connections to the control ports of the session's taps."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.wire import Hello, OtherVersion
from pytest_agentbench.records import Endpoint, Json, LLMCall
from pytest_agentbench.tap.protocol import (
    FROM_TAP,
    NO_LIMITS,
    AddressCalls,
    CloseAddress,
    FromTap,
    KeptReplies,
    OpenAddress,
    PointAt,
    TakeReplies,
    TapDone,
    TapRefusal,
    ToTap,
    UpstreamFacts,
)

Answer = TypeVar("Answer", bound=FromTap)


class TapControl:
    """A connection to one tap. Messages are frames; the tap answers them in order.

    When the connection is lost, `is_lost` is True, and all pending and later calls of `ask` raise InfraError.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._pending: deque[asyncio.Future[tuple[FromTap, bytes]]] = deque()  # includes those whose callers were cancelled
        self._loss: str | None = None
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    @classmethod
    async def connect(cls, port: int, token: str) -> TapControl:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(wire.pack(Hello(token, "pool")))
        return cls(reader, writer)

    async def ask(self, question: ToTap, kind: type[Answer]) -> Answer:
        """Sends a message and returns the tap's answer, of type `kind`. Raises InfraError if the tap refuses or the connection is lost."""
        return (await self.ask_for_body(question, kind))[0]

    async def ask_for_body(self, question: ToTap, kind: type[Answer]) -> tuple[Answer, bytes]:
        """Sends a message and returns the tap's answer, of type `kind`, and the bytes in the body of its frame.

        Raises InfraError if the tap refuses or the connection is lost.
        """
        if self._loss is not None:
            raise InfraError(self._loss)
        reply: asyncio.Future[tuple[FromTap, bytes]] = asyncio.get_running_loop().create_future()
        self._pending.append(reply)
        self._writer.write(wire.pack(question))
        answer, body = await reply
        if isinstance(answer, TapRefusal):
            raise InfraError(f"the tap refused the message {type(question).__name__}: {answer.reason}")
        assert isinstance(answer, kind)
        return answer, body

    @property
    def is_lost(self) -> bool:
        return self._loss is not None

    def close(self) -> None:
        self._listening.cancel()
        self._end("the connection to the tap is closed")
        self._writer.close()

    async def _listen(self) -> None:
        try:
            while True:
                header, body = await wire.read(self._reader)
                answer = _read(header)
                reply = self._pending.popleft()
                if not reply.done():
                    reply.set_result((answer, body))
        except OtherVersion as error:
            self._end(str(error))
        except (EOFError, OSError, ValueError) as error:
            self._end(f"the connection to the tap was lost: {error!r}")

    def _end(self, why: str) -> None:
        self._loss = why
        for reply in self._pending:
            if not reply.done():
                reply.set_exception(InfraError(why))
        self._pending.clear()


def _read(header: Any) -> FromTap:
    """Returns the tap's answer. One that cannot be read becomes a `TapRefusal`, so that only the `ask` that waits for it fails."""
    try:
        return FROM_TAP.read(header)
    except ValueError as error:
        return TapRefusal(f"the pool cannot read the answer: {error}")


class Taps:
    """All taps of a session. Each of them knows every rollout, because the kernel decides which tap gets a connection."""

    def __init__(self, controls: Sequence[TapControl]) -> None:
        self._controls = controls

    @classmethod
    async def connect(cls, ports: Sequence[int], token: str) -> Taps:
        return cls([await TapControl.connect(port, token) for port in ports])

    @property
    def any_lost(self) -> bool:
        """Whether the connection to at least one tap is lost."""
        return any(control.is_lost for control in self._controls)

    async def point_at(self, endpoint: Endpoint) -> None:
        """Sets the backend for all calls from now on, except those in flight."""
        await self._ask(PointAt(self.upstream(endpoint)), TapDone)

    async def open(self, address: OpenAddress) -> None:
        """Opens a URL path for the calls of a rollout. Raises InfraError if these have spending limits and there are several taps."""
        if len(self._controls) > 1 and (address.limits != NO_LIMITS or address.account):
            raise InfraError("limits of calls, tokens and cost need a single tap; remove --agentbench-taps")
        await self._ask(address, TapDone)

    async def messages(self, id: str) -> list[Json]:
        """Aborts the LLM calls in flight of a rollout. Returns the texts and tool calls of the complete answers, if the tap keeps them.

        Answers that an earlier call of this method returned are left out.
        """
        replies = [reply for answer in await self._ask(TakeReplies(id), KeptReplies) for reply in answer.replies]
        return [reply.said for reply in sorted(replies, key=lambda reply: reply.received_ns)]

    async def close(self, id: str) -> tuple[tuple[LLMCall, ...], list[bytes]]:
        """Closes the address of a rollout. Returns its LLM calls in the order of their arrival, and their lines for messages.jsonl."""
        answers = await asyncio.gather(*(control.ask_for_body(CloseAddress(id), AddressCalls) for control in self._controls))
        calls = sorted((call for answer, _ in answers for call in answer.calls), key=lambda call: call.received_ns)
        return tuple(calls), [line for _, body in answers for line in body.split(b"\n") if line]

    def upstream(self, endpoint: Endpoint) -> UpstreamFacts:
        """Returns the description of an LLM server that is sent to each tap. Each tap gets an equal share of the server's rate limit."""
        rate = endpoint.requests_per_minute
        each = None if rate is None else rate / len(self._controls)  # The kernel decides which tap gets a call.
        return UpstreamFacts(endpoint.url, endpoint.api_key, endpoint.ca_file, endpoint.headers, each, endpoint.api_key_env)

    def disconnect(self) -> None:
        """Closes the connections. The taps keep running."""
        for control in self._controls:
            control.close()

    async def _ask(self, question: ToTap, kind: type[Answer]) -> list[Answer]:
        return await asyncio.gather(*(control.ask(question, kind) for control in self._controls))
