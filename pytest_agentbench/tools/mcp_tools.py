"""The tools of an MCP server: its process, and an MCP session for each rollout that calls its tools."""

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
from pytest_agentbench.lib.cut_marks import beginning, ending
from pytest_agentbench.lib.process import end_text
from pytest_agentbench.lib.redact import Redactor
from pytest_agentbench.lib.standard_streams import Log
from pytest_agentbench.lib.supervisor import mcp_server, supervisor_command
from pytest_agentbench.lib.threads import daemon
from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Scenario, Tool
from pytest_agentbench.tools.mcp_server import McpServer
from pytest_agentbench.tools.signatures import check_agreement, parameters_of

MESSAGE = 1 << 24  # bytes of one message at most
LOGGED = 1 << 14  # characters kept of a server's output: half from its beginning, half from its end
SHOWN = 600  # characters of the output in the reason of a failure
END = mcp_server.STDIN_GRACE + 2 * mcp_server.GRACE  # seconds in which a server and all its processes end
ODD = 200  # characters shown of a line that is not a message

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@dataclass(frozen=True)
class McpProgram:
    """The program of an MCP server: its command, its working directory and all its environment variables."""

    run: Sequence[str]
    cwd: Path
    env: Mapping[str, str]


class ServerProcess:
    """One process of an MCP server that communicates over stdin and stdout.

    `streams` starts it, and ends it together with all processes that it has started.
    """

    def __init__(self, program: McpProgram) -> None:
        self._program = program
        self._log, self._new_output = Log(LOGGED), Log(LOGGED)
        self._log_ended = asyncio.Event()
        self.ended = ""  # how the process ended, if it ended by itself

    @property
    def last_lines(self) -> str:
        """The last lines that the server printed, for the end of an error message. If it printed none, a clause says so."""
        return ending(self._log.text.strip(), SHOWN) or "it printed nothing to stderr"

    def new_output(self) -> str:
        """Returns the output since the last call, truncated to LOGGED characters."""
        text, self._new_output = self._new_output.text, Log(LOGGED)
        return text

    def _print(self, text: str) -> None:
        self._log.write(text)
        self._new_output.write(text)

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[Streams]:
        """Starts the server and yields two streams of messages: from it, and to it. At the end of the block, ends all its processes."""
        ours, its = socket.socketpair()
        with ours:
            with its:
                process = await asyncio.create_subprocess_exec(
                    *supervisor_command("pytest_agentbench.lib.supervisor.mcp_server", str(its.fileno())),
                    stdin=PIPE, stdout=PIPE, stderr=PIPE, pass_fds=[its.fileno()], start_new_session=True, limit=MESSAGE,
                )  # fmt: skip
            try:
                job = {"run": [*self._program.run], "cwd": str(self._program.cwd), "env": dict(self._program.env)}
                with suppress(ConnectionError):  # The process has already died, which `_read` notices.
                    ours.sendall(json.dumps(job).encode() + b"\n")
                async with self._message_streams(process) as streams:
                    yield streams
            finally:
                ours.close()  # The supervisor ends the server when this socket closes.
                assert process.stdin is not None
                process.stdin.close()
                with suppress(TimeoutError):
                    async with asyncio.timeout(END):
                        await process.wait()
                process._transport.close()  # type: ignore[attr-defined]  # An escaped process may keep a pipe open.

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
        async with received:  # Closing this stream ends the session.
            while line := await self._line(process.stdout):
                try:
                    message = SessionMessage(jsonrpc_message_adapter.validate_json(line))
                except ValidationError:
                    self._print(f"[on stdout, but not a message: {beginning(line.strip(), ODD)}]\n")
                    continue
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # The session has ended.
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
        """Returns the next line that the server wrote, or empty bytes if the stream has ended or the line is too long."""
        try:
            return await stream.readline()
        except ValueError:
            self._print(f"[on stdout: a message of more than {MESSAGE >> 20} MiB]\n")
            return b""


async def _write(process: asyncio.subprocess.Process, sent: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    async with sent:
        async for message in sent:
            with suppress(ConnectionError, RuntimeError):  # The server has ended, which `_read` notices.
                process.stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await process.stdin.drain()


GRACE = 5.0  # seconds in which a session may close its connection
PAGES = 100  # pages of a list of tools at most


@dataclass(frozen=True)
class ServerTools:
    """An MCP server and the tools that it lists. `opened` starts a session with the server for one rollout."""

    server: McpServer
    program: McpProgram | None  # None for a server at a URL
    tools: Mapping[str, Tool]

    @classmethod
    def of(cls, server: McpServer, folder: Path) -> ServerTools:
        """Asks the server for its tools. Raises ConfigError if it does not answer or has none."""
        program = McpProgram(server.program_and_arguments(folder), folder, server.environment()) if server.command else None
        answers: list[ServerTools | Exception] = []

        def ask() -> None:  # Runs in a thread, because some callers have a running event loop.
            try:
                answers.append(cls(server, program, asyncio.run(_list_tools(server, program))))
            except Exception as error:
                answers.append(error)

        daemon(ask, name="mcp").join()
        if isinstance(answers[0], InfraError):
            raise ConfigError(Redactor(server.keys).plain(str(answers[0])))  # The message contains output of the server.
        if isinstance(answers[0], Exception):
            raise answers[0]
        if not answers[0].tools:
            raise ConfigError(f"{server.name} lists no tools; correct its command or url")
        return answers[0]

    def check(self, scenarios: Sequence[Scenario]) -> None:
        """Raises ConfigError if the scenarios' tools differ from those of the server, or if they expect a tool that does not exist."""
        try:
            check_agreement({name: parameters_of(tool) for name, tool in self.tools.items()}, scenarios)
        except ConfigError as error:
            raise ConfigError(f"{self.server.name}: {error}") from error

    def for_scenario(self, scenario: Scenario) -> Scenario:
        return scenario if scenario.tools else replace(scenario, tools=tuple(self.tools.values()))

    @asynccontextmanager
    async def opened(self, scenario: Scenario, seconds: float | None = None) -> AsyncIterator[McpSession]:
        del scenario, seconds  # A server has its own time limit.
        async with session(self.server, self.program) as opened:
            yield opened


async def _list_tools(server: McpServer, program: McpProgram | None) -> Mapping[str, Tool]:
    async with session(server, program) as opened:
        return {each.name: each for each in await opened.tools()}


@asynccontextmanager
async def session(server: McpServer, program: McpProgram | None) -> AsyncIterator[McpSession]:
    """Opens an MCP session with a server until the block ends. Raises InfraError if the server does not respond.

    The session runs in its own asyncio task, so that its errors do not cancel other tasks.
    """
    opened = McpSession(server, ServerProcess(program) if program else None)
    try:
        await opened.begin()
        yield opened
    finally:
        await opened.end()


class McpSession:
    """The tool source of one rollout: an MCP session with the server, which executes the calls.

    `begin` opens the session, `end` closes it.
    """

    def __init__(self, server: McpServer, process: ServerProcess | None) -> None:
        self._server, self._process = server, process
        self._client: Client | None = None
        self._loop = asyncio.get_running_loop()
        self._ready, self._finished = asyncio.Event(), asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Opens the session, and waits until the server has answered the `initialize` request."""
        self._life = asyncio.create_task(self._live())
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait((self._life, ready), timeout=self._server.timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._life.done():
            raise self._failed("does not serve", self._life.exception())
        if self._client is None:
            raise self._failed(f"has not answered the initialize request within {self._server.timeout:g} s (timeout)", None)

    async def end(self) -> None:
        """Ends the session and waits until it is closed."""
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
        """Asks the server for its tools. Raises InfraError if it does not answer, or if its list does not end."""
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(PAGES):
            page = await self._answer("has not listed its tools", self._ready_client().list_tools(cursor=cursor))
            tools += [Tool(each.name, each.description or each.title or "", dict(each.input_schema)) for each in page.tools]
            if not (cursor := page.next_cursor):
                return tools
        raise InfraError(f"tools: {self._server.name} lists more than {PAGES} pages of tools; it probably repeats a cursor, so correct it")

    async def call(self, tool: Tool, arguments: Json) -> str:
        try:
            result = await self._answer(f"has not answered a call of {tool.name!r}", self._ready_client().call_tool(tool.name, arguments))
        finally:
            self._log()
        if result.is_error:
            raise ToolError(_result_text(result) or f"{tool.name} has failed")
        return _result_text(result) or f"{tool.name} is done."

    def state(self) -> None:
        """Returns None, because only the server knows the state. Writes new output of the server to the rollout's log."""
        self._log()

    def copy(self) -> McpSession:
        raise InfraError(
            f"tools: {self._server.name} cannot be copied, so an agent that answers several times (self_evaluating) cannot use it; "
            "use another agent, or other tools"
        )

    def _ready_client(self) -> Client:
        if asyncio.get_running_loop() is not self._loop:
            raise InfraError(f"tools: {self._server.name} cannot be called by blocking code with --pdb; omit --pdb, or use an async agent")
        assert self._client is not None
        return self._client

    async def _answer(self, late: str, request: Any) -> Any:
        """Awaits and returns the server's answer to a request.

        `late` is what an error says about a server that takes too long, such as `has not listed its tools`; the time limit follows it.

        Raises ToolError if the server refuses the arguments, and InfraError if it fails.
        """
        try:
            async with asyncio.timeout(self._server.timeout):
                return await request
        except TimeoutError as error:
            raise self._failed(f"{late} within {self._server.timeout:g} s", None) from error
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise ToolError(str(error)) from error
            raise self._failed("has failed", error) from error
        except Exception as error:  # The server has violated the protocol, or the connection was lost.
            raise self._failed("has failed", error) from error

    def _failed(self, what: str, error: BaseException | None) -> InfraError:
        """Returns an error about the server, with the last lines that it printed.

        It says how the server's process has ended, or else what the server did (`what`) and the text of `error`.
        """
        ended = self._process.ended if self._process else ""
        why = "" if error is None or ended else f": {_innermost(error)}"
        lines = f"; its last lines: {self._process.last_lines}" if self._process else ""
        return InfraError(f"tools: {self._server.name} {ended or what}{why}{lines}")

    def _log(self) -> None:
        """Writes new output of the server to the rollout's log, which captures stderr."""
        if self._process:
            sys.stderr.write(self._process.new_output())


class _OpenStreams:
    """Wraps open streams as a transport of the package mcp, which enters and leaves it as a context."""

    def __init__(self, streams: Any) -> None:
        self._streams = streams

    async def __aenter__(self) -> Any:
        return self._streams

    async def __aexit__(self, *_: object) -> None:
        """Does nothing. The code that opened the streams closes them."""


@asynccontextmanager
async def _at(server: McpServer) -> AsyncIterator[Any]:
    """Connects to a server that has a URL, and yields its streams. Ignores proxy variables and .netrc."""
    async with (
        httpx2.AsyncClient(timeout=httpx2.Timeout(server.timeout), trust_env=False) as http,
        streamable_http_client(server.url, http_client=http) as streams,
    ):
        yield streams


def _innermost(error: BaseException) -> str:
    """Returns the text of an error, or of the first error in an exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(str(error).split()) or type(error).__name__


def _result_text(result: CallToolResult) -> str:
    """Returns the result of a call for the model: its texts, and placeholders for other content."""
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
