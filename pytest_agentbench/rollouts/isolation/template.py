"""The process that has imported a suite's code, and the processes that it forks, as the pool sees them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from pytest_agentbench.errors import ConfigError, InfraError
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.foreign import USUAL, Sizes
from pytest_agentbench.lib.messages import Messages
from pytest_agentbench.lib.process import end_text
from pytest_agentbench.records import Json
from pytest_agentbench.rollouts.isolation.protocol import (
    ENDED,
    LOADED,
    Fork,
    ForkCommand,
    Job,
    JobEnded,
    Kill,
    NotLoaded,
    TemplateConfig,
    ToAgent,
    packed_command,
)
from pytest_agentbench.suites.suite import SUITE_FILE, PoolSuite

Message = TypeVar("Message")

UNREADABLE = "sent a message that cannot be read"


class TemplateDied(ConfigError):
    """The process ended before it had imported the suite's code."""


class Forking(Protocol):
    """A source of processes that have imported the code of a suite."""

    judging: tuple[str, ...]  # scorers that ask a model
    settings: Json  # the agent's, with its defaults

    def process(self, job: Job) -> AbstractAsyncContextManager[ForkedProcess]:
        """Yields a process for a job. It ends with the context."""


class Template:
    """The process that has imported the code of a suite, and forks one for each job."""

    def __init__(
        self, control: socket.socket, process: asyncio.subprocess.Process, died: Callable[[Template], None] = lambda _: None
    ) -> None:
        """`died` is called once, when the process can fork no more, before any job learns of it; `close` counts as well."""
        self._control, self._process, self._died = control, process, died
        self._numbers = itertools.count(1)
        self._ends: dict[int, asyncio.Future[JobEnded]] = {}
        self._listening: asyncio.Task[None] | None = None
        self.judging: tuple[str, ...] = ()  # scorers that ask a model
        self.settings: Json = {}  # the agent's, with its defaults

    @classmethod
    async def start(
        cls, suite: PoolSuite, variant: str, died: Callable[[Template], None] = lambda _: None, sizes: Sizes = USUAL
    ) -> Template:
        """Raises ConfigError when the code cannot be loaded, TemplateDied when the process that loads it ends."""
        control, its = socket.socketpair()
        command = (sys.executable, "-u", "-m", "pytest_agentbench.rollouts.isolation")  # -u: what a process prints before it dies is there
        with its:
            template = cls(control, await asyncio.create_subprocess_exec(*command, stdin=its.fileno()), died)
        control.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=control.dup())
        try:
            sent = replace(suite, scenarios=())
            writer.write(wire.pack(TemplateConfig(sent, variant, sizes, tuple(sys.path), logging.getLogger().level)))
            answer = LOADED.read((await wire.read(reader))[0])
        except (EOFError, ConnectionError):
            writer.close()
            await template.close()
            raise TemplateDied(
                f"{suite.folder / SUITE_FILE}: the process that imports the suite's code {end_text(template._process.returncode or 0)}"
            ) from None
        except ValueError as error:
            answer = NotLoaded(f"{suite.folder / SUITE_FILE}: the process that imports the suite's code {UNREADABLE}: {error}")
        if isinstance(answer, NotLoaded):
            writer.close()
            await template.close()
            raise ConfigError(answer.reason)
        template.judging, template.settings = answer.judging, answer.settings
        template._listening = asyncio.create_task(template._listen(reader, writer))
        return template

    async def close(self) -> None:
        """Ends it, and all that it forked."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        await self._process.wait()
        if self._listening is not None:
            await self._listening
        self._control.close()

    @asynccontextmanager
    async def process(self, job: Job) -> AsyncIterator[ForkedProcess]:
        """A process for a job; in the end it is gone, and what it printed is printed here."""
        number = next(self._numbers)
        mine, its = socket.socketpair()
        ended = self._ends[number] = asyncio.get_running_loop().create_future()
        with its:
            try:
                try:
                    await self._say(Fork(number), its.fileno())
                except BaseException:
                    mine.close()
                    raise
                its.close()
                reader, writer = await asyncio.open_connection(sock=mine)
                writer.write(wire.pack(job))
                try:
                    yield ForkedProcess(reader, writer, ended)
                finally:
                    writer.close()
                    await self._gone(number, ended)
            finally:
                del self._ends[number]

    async def _gone(self, number: int, ended: asyncio.Future[JobEnded]) -> None:
        with suppress(InfraError):  # it is gone with the process that forked it
            await self._say(Kill(number))
            sys.stderr.write((await asyncio.shield(ended)).printed)

    async def _say(self, command: ForkCommand, *descriptors: int) -> None:
        message = packed_command(command)
        try:
            while True:
                with suppress(BlockingIOError):  # hundreds of processes are to be forked at once
                    socket.send_fds(self._control, [message], descriptors) if descriptors else self._control.send(message)
                    return
                await asyncio.sleep(0.01)
        except OSError as error:
            self._lose()
            raise InfraError(f"the process that runs the suite's code is gone: {error}") from error

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(EOFError, ConnectionError, ValueError):
            while True:
                end = ENDED.read((await wire.read(reader))[0])
                if (ended := self._ends.get(end.job)) is not None and not ended.done():
                    ended.set_result(end)
        with suppress(OSError):  # A process whose messages cannot be read ends with its connection.
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        writer.close()
        self._lose()
        how = await self.end()
        for ended in self._ends.values():
            if not ended.done():
                ended.set_exception(InfraError(how))
                ended.exception()  # not everybody asks

    def _lose(self) -> None:
        died, self._died = self._died, lambda _: None
        died(self)

    async def end(self) -> str:
        """Waits for the end of the process; returns how it ended."""
        return f"the process that runs the suite's code {end_text(await self._process.wait())}"


@dataclass(frozen=True)
class ForkedProcess:
    """One forked process, while it works."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ended: asyncio.Future[JobEnded]  # raises InfraError when nobody knows

    async def read(self, messages: Messages[Message]) -> Message:
        """Returns its next message; raises ChildProcessError, with how it ended, when there are no more, and for one that is damaged."""
        try:
            return messages.read((await wire.read(self.reader))[0])
        except (EOFError, ConnectionError):
            raise ChildProcessError((await asyncio.shield(self.ended)).how) from None
        except ValueError as error:
            raise ChildProcessError(f"{UNREADABLE}: {error}") from None

    def say(self, message: ToAgent) -> None:
        self.writer.write(wire.pack(message))
