"""The pool's side of `isolation: process`: starts template processes, has them fork a process for each job, and gets the results.

Agents and scorers that run in forked processes look to the pool like any others.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, assert_never

from pytest_agentbench.agents.factory import UPGRADE, brings_code, make_agent, sampling_of
from pytest_agentbench.errors import AgentError, ConfigError, InfraError, LimitReached, RolloutError
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.foreign import USUAL, Sizes
from pytest_agentbench.lib.process import end_text
from pytest_agentbench.lib.user_code import is_import_path
from pytest_agentbench.lib.wire import Messages
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import JUDGE, Answer, Json, Rollout, Score
from pytest_agentbench.rollouts.attempt_context import current
from pytest_agentbench.rollouts.isolation.codecheck import brings_any
from pytest_agentbench.rollouts.isolation.protocol import (
    ENDED,
    FROM_AGENT,
    FROM_SCORER,
    LOADED,
    AgentDone,
    AgentJob,
    CallMade,
    Fork,
    ForkCommand,
    Job,
    JobEnded,
    JobRefused,
    Kill,
    ModelAccess,
    NotLoaded,
    RoleOpened,
    RoleQuestion,
    RoleRefused,
    Scored,
    ScoreFailed,
    ScoreJob,
    StopAgent,
    TemplateConfig,
    ToAgent,
    TriesSettled,
    packed_command,
)
from pytest_agentbench.rollouts.rollout import RolloutSetup
from pytest_agentbench.rollouts.scores import FailedElsewhere
from pytest_agentbench.scorers import Scorer, load_scorer
from pytest_agentbench.suites.suite import SUITE_FILE, PoolSuite, Scenario, score_name
from pytest_agentbench.tools import factory as tool_factory
from pytest_agentbench.tools.factory import answers_from
from pytest_agentbench.tools.source import DecisionOnly
from pytest_agentbench.tools.toolbox import Toolbox

Message = TypeVar("Message")

UNREADABLE = "sent a message that cannot be read"


class TemplateDied(ConfigError):
    """Raised if a template process ended before it had imported the suite's code."""


class Forking(Protocol):
    """The part of Template and TemplateKeeper that agents and scorers use: runs a job in a process that has imported the suite's code."""

    judging: tuple[str, ...]  # scorers that call a model
    settings: Json  # settings of the agent, including defaults

    def process(self, job: Job) -> AbstractAsyncContextManager[ForkedProcess]:
        """Returns a context manager. It yields a process that runs the job, and kills that process at the end."""


class Template:
    """The pool's handle of a template process, which has imported the code of a suite and forks a process for each job."""

    def __init__(
        self, control: socket.socket, process: asyncio.subprocess.Process, on_death: Callable[[Template], None] = lambda _: None
    ) -> None:
        """Takes the socket to the process. `on_death` is called once, when the process can no longer fork, also because of `close`."""
        self._control, self._process, self._on_death = control, process, on_death
        self._numbers = itertools.count(1)
        self._ends: dict[int, asyncio.Future[JobEnded]] = {}
        self._listening: asyncio.Task[None] | None = None
        self.judging: tuple[str, ...] = ()  # scorers that call a model
        self.settings: Json = {}  # settings of the agent, including defaults

    @classmethod
    async def start(
        cls, suite: PoolSuite, variant: str, on_death: Callable[[Template], None] = lambda _: None, sizes: Sizes = USUAL
    ) -> Template:
        """Starts a template process, and waits until it has imported the suite's code.

        Raises:
            ConfigError: The code cannot be loaded.
            TemplateDied: The process ended before that.
        """
        control, theirs = socket.socketpair()
        command = (sys.executable, "-u", "-m", "pytest_agentbench.rollouts.isolation")  # -u keeps output that is printed before a crash.
        with theirs:
            template = cls(control, await asyncio.create_subprocess_exec(*command, stdin=theirs.fileno()), on_death)
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
        """Ends the template process and all processes that it forked."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        await self._process.wait()
        if self._listening is not None:
            await self._listening
        self._control.close()

    @asynccontextmanager
    async def process(self, job: Job) -> AsyncIterator[ForkedProcess]:
        """Forks a process for a job and yields the connection to it. At the end kills the process, and writes its output to stderr."""
        number = next(self._numbers)
        mine, theirs = socket.socketpair()
        ended = self._ends[number] = asyncio.get_running_loop().create_future()
        with theirs:
            try:
                try:
                    await self._send(Fork(number), theirs.fileno())
                except BaseException:
                    mine.close()
                    raise
                theirs.close()
                reader, writer = await asyncio.open_connection(sock=mine)
                writer.write(wire.pack(job))
                try:
                    yield ForkedProcess(reader, writer, ended)
                finally:
                    writer.close()
                    await self._finish(number, ended)
            finally:
                del self._ends[number]

    async def _finish(self, number: int, ended: asyncio.Future[JobEnded]) -> None:
        with suppress(InfraError):  # If the template process has died, so has this one.
            await self._send(Kill(number))
            sys.stderr.write((await asyncio.shield(ended)).printed)

    async def _send(self, command: ForkCommand, *descriptors: int) -> None:
        message = packed_command(command)
        try:
            while True:
                with suppress(BlockingIOError):  # The buffer can be full if hundreds of processes are forked at once.
                    socket.send_fds(self._control, [message], descriptors) if descriptors else self._control.send(message)
                    return
                await asyncio.sleep(0.01)
        except OSError as error:
            self._lose()
            raise InfraError(f"the process that runs the suite's code has ended: {error}") from error

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
                ended.exception()  # Mark it as retrieved, because not every job reads it.

    def _lose(self) -> None:
        on_death, self._on_death = self._on_death, lambda _: None
        on_death(self)

    async def end(self) -> str:
        """Waits until the template process has ended. Returns a sentence on how it ended."""
        return f"the process that runs the suite's code {end_text(await self._process.wait())}"


@dataclass(frozen=True)
class ForkedProcess:
    """The connection to a forked process that runs one job."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ended: asyncio.Future[JobEnded]  # raises InfraError if the template process has died

    async def read(self, messages: Messages[Message]) -> Message:
        """Returns the next message, parsed by `messages`. Raises ChildProcessError if the process has ended or the message is damaged."""
        try:
            return messages.read((await wire.read(self.reader))[0])
        except (EOFError, ConnectionError):
            raise ChildProcessError((await asyncio.shield(self.ended)).how) from None
        except ValueError as error:
            raise ChildProcessError(f"{UNREADABLE}: {error}") from None

    def say(self, message: ToAgent) -> None:
        self.writer.write(wire.pack(message))


PATIENCE = 0.5  # seconds for a process that is stopped to report its results so far

_ERRORS: dict[str, type[RolloutError]] = {error.status: error for error in (AgentError, InfraError, LimitReached)}


def wants_isolation(suite: PoolSuite, variant: str) -> bool:
    """Returns whether a suite sets `isolation: process`, and has an agent, tools or scorers of its own in this variant."""
    return suite.isolation == "process" and brings_any(suite, [variant])


def isolated(suite: PoolSuite, variant: str, template: Forking, sizes: Sizes = USUAL) -> RolloutSetup:
    """Returns the setup (agent, scorers, settings) of a suite and variant whose own code runs in processes forked by `template`.

    Built-in scorers run in the pool, and so does a built-in agent unless its tools are the suite's own code.
    """
    settings, folder = suite.agent_of(variant), suite.folder
    own = brings_code(settings, folder) or tool_factory.brings_code(suite.tools_of(variant))  # An agent runs in the process of its tools.
    agent = IsolatedAgent(template) if own else make_agent(settings, folder)
    scorers = {
        score_name(name): isolated_scorer(template, score_name(name)) if is_import_path(name) else load_scorer(name, folder, options)
        for name, options in suite.scorers.items()
    }
    shared = suite.roles, suite.limits, DecisionOnly(), {} if own else answers_from(suite.answers_of(variant))
    return RolloutSetup(agent, scorers, sampling_of(settings), settings.get(UPGRADE), template.settings, *shared, sizes=sizes)


@dataclass(frozen=True)
class IsolatedAgent:
    """Stands in the pool for an agent that runs in a forked process, because the agent or its tools are the suite's own code.

    Each rollout has a new process, in which the agent handles all messages of the user.
    """

    template: Forking

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        return await self.work(scenario, llm, tools)

    async def work(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        """Runs the agent in a forked process and returns its answer. Raises the agent's RolloutError, or AgentError if the process died."""
        mark = current()
        assert mark is not None  # Agents run only within an attempt.
        async with self.template.process(AgentJob(scenario, mark.key.trial, _access(llm), llm.sampling)) as process:
            try:
                done = await _agent_done(process, llm, tools)
            except asyncio.CancelledError:  # Its time is over. Fetch its results so far.
                with suppress(TimeoutError, ChildProcessError, InfraError):  # The cancellation may have come in the middle of a frame.
                    async with asyncio.timeout(PATIENCE):
                        process.say(StopAgent())
                        await _agent_done(process, llm, tools)
                raise
            except ChildProcessError as error:
                raise AgentError(f"the agent's process {error}") from None
        if done.status in _ERRORS:
            ended = _ERRORS[done.status](done.reason)
            ended.answer = done.answer
            raise ended
        return Answer(done.answer)


async def _agent_done(process: ForkedProcess, llm: LLM, tools: Toolbox) -> AgentDone:
    """Handles messages of an agent's process until the agent is done. Stores its calls and transcript in `tools` and `llm`."""
    while True:
        match await process.read(FROM_AGENT):
            case CallMade(place, call):
                tools.keep(place, call)
            case TriesSettled(calls, drafts):
                tools.settle_on(calls, drafts)
            case RoleQuestion(name, endpoint):
                try:
                    process.say(RoleOpened(_access(await (llm.judge(endpoint) if name == JUDGE else llm.role(name)))))
                except InfraError as error:
                    process.say(RoleRefused(str(error)))
            case AgentDone() as done:
                llm.transcript = [*done.transcript]
                tools.settle_on(done.tool_calls, done.drafts)
                tools.final_state = done.final_state
                return done
            case JobRefused(reason):
                raise ChildProcessError(f"could not read the scenario and settings of its job: {reason}")
            case never:
                assert_never(never)


def isolated_scorer(template: Forking, name: str) -> Scorer:
    """Returns a scorer that runs the suite's scorer `name` in a forked process. It takes a `judge` if the suite's scorer does."""

    async def judged(scenario: Scenario, rollout: Rollout, judge: LLM) -> Score:
        return await _scored_elsewhere(template, name, scenario, rollout, judge)

    async def alone(scenario: Scenario, rollout: Rollout) -> Score:
        return await _scored_elsewhere(template, name, scenario, rollout, None)

    return judged if name in template.judging else alone  # type: ignore[return-value]  # a scorer may be a coroutine function


async def _scored_elsewhere(template: Forking, name: str, scenario: Scenario, rollout: Rollout, judge: LLM | None) -> Score:
    async with template.process(ScoreJob(name, scenario, rollout, None if judge is None else _access(judge))) as process:
        try:
            done = await process.read(FROM_SCORER)
        except ChildProcessError as error:
            raise FailedElsewhere(f"the scorer's process {error}") from None
    match done:
        case Scored(score):
            return score
        case ScoreFailed(reason):
            raise FailedElsewhere(reason)
        case JobRefused(reason):
            raise FailedElsewhere(f"the scorer's process could not read the scenario and rollout of its job: {reason}")


def _access(llm: LLM) -> ModelAccess:
    """Returns the data from which a forked process makes a client like `llm`: for the same model, at the same address of the tap."""
    return ModelAccess(llm.base_url, llm.model, llm.facts)
