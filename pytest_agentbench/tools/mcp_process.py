"""The process of an MCP server, which speaks over its stdin and stdout; what it prints to stderr is its log."""

from __future__ import annotations

import asyncio
import json
import socket
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from pytest_agentbench.lib.capture import Log
from pytest_agentbench.lib.cut_marks import beginning, ending
from pytest_agentbench.lib.process import end_text
from pytest_agentbench.lib.supervisor import mcp_server, supervisor_command

MESSAGE = 1 << 24  # bytes of one message at most
LOGGED = 1 << 14  # characters of what it prints that are kept, half of them of its beginning
SHOWN = 600  # characters of them that the reason of a failure shows
END = mcp_server.LEAVE + 2 * mcp_server.GRACE  # seconds in which all of it is over
ODD = 200  # characters of a line that is no message

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@dataclass(frozen=True)
class McpProgram:
    """What to run, and with what: it gets nothing else of this process."""

    run: Sequence[str]
    cwd: Path
    env: Mapping[str, str]


class ServerProcess:
    """One process of a server, from its start to the end of all that it started."""

    def __init__(self, program: McpProgram) -> None:
        self._program = program
        self._log, self._news = Log(LOGGED), Log(LOGGED)
        self._log_ended = asyncio.Event()
        self.ended = ""  # how, when it has ended by itself

    @property
    def last_lines(self) -> str:
        """The end of what it printed, as the end of a sentence."""
        return ending(self._log.text.strip(), SHOWN) or "it printed nothing to stderr"

    def news(self) -> str:
        """What it has printed since the last time, as far as it is kept."""
        text, self._news = self._news.text, Log(LOGGED)
        return text

    def _print(self, text: str) -> None:
        self._log.write(text)
        self._news.write(text)

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[Streams]:
        """Its messages, to and fro, while it lives; afterwards nothing of it is left."""
        ours, its = socket.socketpair()
        with ours:
            with its:
                process = await asyncio.create_subprocess_exec(
                    *supervisor_command("pytest_agentbench.lib.supervisor.mcp_server", str(its.fileno())),
                    stdin=PIPE, stdout=PIPE, stderr=PIPE, pass_fds=[its.fileno()], start_new_session=True, limit=MESSAGE,
                )  # fmt: skip
            try:
                job = {"run": [*self._program.run], "cwd": str(self._program.cwd), "env": dict(self._program.env)}
                with suppress(ConnectionError):  # it died at once, which is seen
                    ours.sendall(json.dumps(job).encode() + b"\n")
                async with self._pumped(process) as streams:
                    yield streams
            finally:
                ours.close()  # which ends it
                assert process.stdin is not None
                process.stdin.close()
                with suppress(TimeoutError):
                    async with asyncio.timeout(END):
                        await process.wait()
                process._transport.close()  # type: ignore[attr-defined]  # a pipe that something out of reach holds open

    @asynccontextmanager
    async def _pumped(self, process: asyncio.subprocess.Process) -> AsyncIterator[Streams]:
        received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, sent = anyio.create_memory_object_stream[SessionMessage](0)
        async with received, incoming, outgoing, sent, anyio.create_task_group() as group:
            group.start_soon(self._read, process, received)
            group.start_soon(_write, process, sent)
            group.start_soon(self._keep_log, process)
            yield incoming, outgoing
            group.cancel_scope.cancel()

    async def _read(self, process: asyncio.subprocess.Process, received: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        assert process.stdout is not None
        async with received:  # its end is the end of the session
            while line := await self._line(process.stdout):
                try:
                    message = SessionMessage(jsonrpc_message_adapter.validate_json(line))
                except ValidationError:
                    self._print(f"[on stdout, and no message: {beginning(line.strip(), ODD)}]\n")
                    continue
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # nobody listens any more
                    await received.send(message)
            with suppress(TimeoutError):
                async with asyncio.timeout(END):
                    self.ended = end_text(await process.wait())
                    await self._log_ended.wait()

    async def _keep_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while data := await process.stderr.read(1 << 16):
            self._print(data.decode(errors="replace"))
        self._log_ended.set()

    async def _line(self, stream: asyncio.StreamReader) -> bytes:
        """The next line; nothing where there is none, or one that is too long."""
        try:
            return await stream.readline()
        except ValueError:
            self._print(f"[on stdout: a message of more than {MESSAGE >> 20} MiB]\n")
            return b""


async def _write(process: asyncio.subprocess.Process, sent: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    async with sent:
        async for message in sent:
            with suppress(ConnectionError, RuntimeError):  # it has ended, which is seen where its answers are read
                process.stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await process.stdin.drain()
