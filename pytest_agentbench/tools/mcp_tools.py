"""The tools that an MCP server has: the session of a rollout with it, and the server's process, which speaks over its stdin and
stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import httpx2
import orjson
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_PARAMS,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    TextContent,
    TextResourceContents,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from pytest_agentbench.errors import ConfigError, InfraError, ToolError
from pytest_agentbench.lib.capture import Log
from pytest_agentbench.lib.cut_marks import beginning, ending
from pytest_agentbench.lib.process import end_text
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.lib.supervisor import mcp_server, supervisor_command
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Scenario, Tool
from pytest_agentbench.tools.mcp_server import McpServer
from pytest_agentbench.tools.signatures import check_agreement, parameters_of

MESSAGE = 1 << 24  # bytes of one message at most
LOGGED = 1 << 14  # characters of what it prints that are kept, half of them of its beginning
SHOWN = 600  # characters of them that the reason of a failure shows
END = mcp_server.STDIN_GRACE + 2 * mcp_server.GRACE  # seconds in which all of it is over
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
        self._log, self._new_output = Log(LOGGED), Log(LOGGED)
        self._log_ended = asyncio.Event()
        self.ended = ""  # how, when it has ended by itself

    @property
    def last_lines(self) -> str:
        """The end of what it printed, as the end of a sentence."""
        return ending(self._log.text.strip(), SHOWN) or "it printed nothing to stderr"

    def new_output(self) -> str:
        """What it has printed since the last time, as far as it is kept."""
        text, self._new_output = self._new_output.text, Log(LOGGED)
        return text

    def _print(self, text: str) -> None:
        self._log.write(text)
        self._new_output.write(text)

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
                async with self._message_streams(process) as streams:
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
    async def _message_streams(self, process: asyncio.subprocess.Process) -> AsyncIterator[Streams]:
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


GRACE = 5.0  # seconds in which a session may take its leave
PAGES = 100  # of a list of tools


@dataclass(frozen=True)
class ServerTools:
    """A server, and the tools that it has said it has."""

    server: McpServer
    program: McpProgram | None  # None where it is somewhere else
    tools: Mapping[str, Tool]

    @classmethod
    def of(cls, server: McpServer, folder: Path) -> ServerTools:
        """Asks the server for its tools; raises ConfigError for one that does not say."""
        program = McpProgram(server.program_and_arguments(folder), folder, server.environment()) if server.command else None
        answers: list[ServerTools | Exception] = []

        def ask() -> None:  # in a thread: the pool has a loop, and others have none
            try:
                answers.append(cls(server, program, asyncio.run(_list_tools(server, program))))
            except Exception as error:
                answers.append(error)

        daemon(ask, name="mcp").join()
        if isinstance(answers[0], InfraError):
            raise ConfigError(Redactor(server.keys).plain(str(answers[0])))  # with lines of the server's, and nothing else redacts it
        if isinstance(answers[0], Exception):
            raise answers[0]
        if not answers[0].tools:
            raise ConfigError(f"{server.name} has no tools")
        return answers[0]

    def check(self, scenarios: Sequence[Scenario]) -> None:
        """Raises ConfigError where the data's tools are not those of the server, and where a label names a tool that there is not."""
        try:
            check_agreement({name: parameters_of(tool) for name, tool in self.tools.items()}, scenarios)
        except ConfigError as error:
            raise ConfigError(f"{self.server.name}: {error}") from error

    def for_scenario(self, scenario: Scenario) -> Scenario:
        return scenario if scenario.tools else replace(scenario, tools=tuple(self.tools.values()))

    @asynccontextmanager
    async def opened(self, scenario: Scenario, seconds: float | None = None) -> AsyncIterator[McpSession]:
        del scenario, seconds  # a server has time limits of its own
        async with session(self.server, self.program) as opened:
            yield opened


async def _list_tools(server: McpServer, program: McpProgram | None) -> Mapping[str, Tool]:
    async with session(server, program) as opened:
        return {each.name: each for each in await opened.tools()}


@asynccontextmanager
async def session(server: McpServer, program: McpProgram | None) -> AsyncIterator[McpSession]:
    """A session with a server; raises InfraError where there is none. It lives in a task of its own, so its faults reach nobody else's."""
    opened = McpSession(server, ServerProcess(program) if program else None)
    try:
        await opened.begin()
        yield opened
    finally:
        await opened.end()


class McpSession:
    """The tools of one rollout."""

    def __init__(self, server: McpServer, process: ServerProcess | None) -> None:
        self._server, self._process = server, process
        self._client: Client | None = None
        self._loop = asyncio.get_running_loop()
        self._ready, self._finished = asyncio.Event(), asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Returns when the server has introduced itself."""
        self._life = asyncio.create_task(self._live())
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait((self._life, ready), timeout=self._server.timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._life.done():
            raise self._failed("does not serve", self._life.exception())
        if self._client is None:
            raise self._failed(f"has not introduced itself within {self._server.timeout:g} s", None)

    async def end(self) -> None:
        """Returns when nothing of it is left."""
        self._finished.set()
        if self._life is None:
            return
        if self._client is not None:
            await asyncio.wait((self._life,), timeout=GRACE)
        self._life.cancel()
        await asyncio.wait((self._life,))

    async def _live(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            transport = _OpenStreams(await stack.enter_async_context(self._streams()))
            client = Client(transport, cache=None, read_timeout_seconds=self._server.timeout)
            self._client = await stack.enter_async_context(client)
            self._ready.set()
            await self._finished.wait()

    def _streams(self) -> AbstractAsyncContextManager[Any]:
        return self._process.streams() if self._process else _at(self._server)

    async def tools(self) -> list[Tool]:
        """Those that the server says it has; raises InfraError."""
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(PAGES):
            page = await self._answer("has not said which tools it has", self._ready_client().list_tools(cursor=cursor))
            tools += [Tool(each.name, each.description or each.title or "", dict(each.input_schema)) for each in page.tools]
            if not (cursor := page.next_cursor):
                return tools
        raise InfraError(f"tools: {self._server.name} has more than {PAGES} pages of tools; is it a server that repeats a cursor?")

    async def call(self, tool: Tool, arguments: Json) -> str:
        try:
            result = await self._answer(f"has not answered a call of {tool.name!r}", self._ready_client().call_tool(tool.name, arguments))
        finally:
            self._log()
        if result.is_error:
            raise ToolError(_result_text(result) or f"{tool.name} has failed")
        return _result_text(result) or f"{tool.name} is done."

    def state(self) -> None:
        """Nobody knows: it is the server's own. What it has printed since the last call goes into the rollout's log."""
        self._log()

    def copy(self) -> McpSession:
        raise InfraError(f"tools: {self._server.name} cannot be copied for another try of the agent; an agent with one try can use it")

    def _ready_client(self) -> Client:
        if asyncio.get_running_loop() is not self._loop:
            raise InfraError(f"tools: {self._server.name} cannot be called by code that blocks with --pdb; an async agent can call it")
        assert self._client is not None
        return self._client

    async def _answer(self, late: str, request: Any) -> Any:
        """What the server says; raises ToolError where it refuses the arguments, and InfraError where it fails."""
        try:
            async with asyncio.timeout(self._server.timeout):
                return await request
        except TimeoutError as error:
            raise self._failed(f"{late} within {self._server.timeout:g} s", None) from error
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise ToolError(str(error)) from error
            raise self._failed("has failed", error) from error
        except Exception as error:  # it has said what no server may say, or its connection is gone
            raise self._failed("has failed", error) from error

    def _failed(self, what: str, error: BaseException | None) -> InfraError:
        """What has become of the server: how its process ended, else the error, with the last lines that it printed."""
        ended = self._process.ended if self._process else ""
        why = "" if error is None or ended else f": {_innermost(error)}"
        lines = f"; its last lines: {self._process.last_lines}" if self._process else ""
        return InfraError(f"tools: {self._server.name} {ended or what}{why}{lines}")

    def _log(self) -> None:
        """Into the log of the rollout that this task is of."""
        if self._process:
            sys.stderr.write(self._process.new_output())


class _OpenStreams:
    """Streams that are open as a transport of mcp's."""

    def __init__(self, streams: Any) -> None:
        self._streams = streams

    async def __aenter__(self) -> Any:
        return self._streams

    async def __aexit__(self, *_: object) -> None:
        """They are closed by who opened them."""


@asynccontextmanager
async def _at(server: McpServer) -> AsyncIterator[Any]:
    """The streams of a server that serves over HTTP. Nothing of this process goes there: no proxy, no .netrc."""
    async with (
        httpx2.AsyncClient(timeout=httpx2.Timeout(server.timeout), trust_env=False) as http,
        streamable_http_client(server.url, http_client=http) as streams,
    ):
        yield streams


def _innermost(error: BaseException) -> str:
    """An error without the groups around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(str(error).split()) or type(error).__name__


def _result_text(result: CallToolResult) -> str:
    """What the model is told: texts, and the names of what is no text."""
    if not result.content and result.structured_content is not None:
        return orjson.dumps(result.structured_content).decode()
    return "\n".join(map(_text, result.content))


def _text(block: ContentBlock | TextResourceContents) -> str:
    if isinstance(block, EmbeddedResource) and isinstance(block.resource, TextResourceContents):
        block = block.resource
    if isinstance(block, TextContent | TextResourceContents):
        text: str = block.text
        return text
    kind = getattr(block, "mime_type", None)
    return f"[{block.type}{f', {kind}' if kind else ''}, which is no text]"
