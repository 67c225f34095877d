"""The code that runs in a forked process: runs one agent or one scorer, and reports its calls and its result to the pool.

The template process, which forked the process, reads what it prints.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import aiohttp

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.foreign import Sizes
from pytest_agentbench.lib.standard_streams import LOG_LIMIT, Log, print_exception
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Draft, Json, ToolCall
from pytest_agentbench.rollouts.isolation.protocol import (
    JOBS,
    TO_AGENT,
    AgentDone,
    AgentJob,
    CallMade,
    FromAgent,
    FromScorer,
    Job,
    JobRefused,
    RoleOpened,
    RoleQuestion,
    RoleRefused,
    Scored,
    ScoreFailed,
    ScoreJob,
    StopAgent,
    TriesSettled,
)
from pytest_agentbench.rollouts.rollout import RolloutSetup, outcome
from pytest_agentbench.rollouts.scores import no_judge, score, score_error
from pytest_agentbench.suites.suite import Tool
from pytest_agentbench.tools.factory import with_canned_answers
from pytest_agentbench.tools.source import ToolSource
from pytest_agentbench.tools.toolbox import Toolbox

CHUNK = 1 << 16  # bytes
REST = 16  # chunks that are read at most after the end of a process, more than a pipe holds


class PrintedOutput:
    """Reads the output of a forked process from a pipe.

    Keeps at most half as much output as the log of a rollout can hold, because the log also has other content.
    """

    def __init__(self, pipe: int) -> None:
        """Takes the non-blocking descriptor of the pipe's read end."""
        self._pipe = pipe
        self._log = Log(LOG_LIMIT // 2)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    @classmethod
    def through_pipe(cls) -> tuple[PrintedOutput, int]:
        """Creates a pipe. Returns the reader, and the descriptor to write to."""
        pipe, other = os.pipe()
        os.set_blocking(pipe, False)
        return cls(pipe), other

    def fileno(self) -> int:
        return self._pipe

    def read(self) -> bool:
        """Reads a chunk. Returns False at the end of the pipe. Raises BlockingIOError if nothing is there to read yet."""
        data = os.read(self._pipe, CHUNK)
        self._log.write(self._decode(data, not data))
        return bool(data)

    def end(self) -> str:
        """Reads the rest and closes the pipe, even if a process still writes to it. Returns the output, shortened if it is long."""
        with suppress(BlockingIOError):
            for _ in range(REST):
                self.read()
        os.close(self._pipe)
        return self._log.text


GRACE = 0.2  # seconds for an agent to end after the pool has stopped it; part of the time after which the pool kills the process


def run_job(setup: RolloutSetup, connection: socket.socket) -> None:
    """Receives a job over a connection to the pool, runs the agent or the scorer, and sends the result."""
    asyncio.run(_run_job(setup, connection))


async def _run_job(setup: RolloutSetup, connection: socket.socket) -> None:
    line = PoolLine(*await asyncio.open_connection(sock=connection))
    try:
        job = JOBS.read((await wire.read(line.reader))[0])
    except ValueError as error:
        line.tell(JobRefused(str(error)))
    else:
        line.tell(await _result_of(setup, job, line))
    await line.writer.drain()
    line.writer.close()
    await line.writer.wait_closed()


async def _result_of(setup: RolloutSetup, job: Job, line: PoolLine) -> AgentDone | Scored | ScoreFailed:
    """Runs the agent or the scorer of a job, and returns the message with its result."""
    async with aiohttp.ClientSession() as session:
        work = _agent(setup, job, line, session) if isinstance(job, AgentJob) else _score(setup, job, session)
        task: asyncio.Task[AgentDone | Scored | ScoreFailed] = asyncio.create_task(work)
        listening = asyncio.create_task(line.listen(task))
        done = await task
        listening.cancel()
    return done


async def _agent(setup: RolloutSetup, job: AgentJob, line: PoolLine, session: aiohttp.ClientSession) -> AgentDone:
    """Runs the agent and returns its results. If the pool stops the agent, these are the results so far."""
    llm = LLM(job.llm.base_url, job.llm.model, job.sampling, session, line.role, facts=job.llm.facts)
    scenario = setup.tools.for_scenario(job.scenario)
    async with setup.tools.opened(scenario) as source:
        tools = ReportedToolbox(scenario.tools, line, with_canned_answers(source, setup.answers, scenario, job.trial), setup.sizes)
        try:
            status, reason, answer = await outcome(setup.agent, scenario, llm, tools, None, setup.sizes, grace=GRACE)
        except asyncio.CancelledError:
            status, reason, answer = "cancelled", "", ""
            with suppress(InfraError):  # Keep the state of the tools so far.
                tools.settle()
    return AgentDone(status, reason, answer, tuple(llm.transcript), tuple(tools.calls), tuple(tools.drafts), tools.final_state)


async def _score(setup: RolloutSetup, job: ScoreJob, session: aiohttp.ClientSession) -> Scored | ScoreFailed:
    async def judge() -> LLM:
        if job.judge is None:
            return await no_judge()
        return LLM(job.judge.base_url, job.judge.model, session=session, facts=job.judge.facts)

    scorer = setup.scorers[job.scorer]
    try:
        return Scored(await score(scorer, job.scenario, job.rollout, judge, setup.sizes))
    except (Exception, SystemExit) as error:  # The scorer is user code.
        print_exception(error)  # The pool gets only the last of its frames.
        return ScoreFailed(score_error(error, scorer, setup.sizes))


class PoolLine:
    """The connection of a forked process to the pool."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._pending_role: asyncio.Future[RoleOpened | RoleRefused] | None = None
        self._one_at_a_time = asyncio.Lock()

    def tell(self, message: FromAgent | FromScorer) -> None:
        """Sends a message from any thread. In the loop's thread the message is written at once, so a crash right after does not lose it."""
        frame = wire.pack(message)
        if threading.get_ident() == self._thread:
            self.writer.write(frame)
        else:
            self._loop.call_soon_threadsafe(self.writer.write, frame)

    async def role(self, name: str, endpoint: Json | None) -> LLM:
        """Returns a client for the model that plays a role, for example the judge. Raises InfraError if the pool refuses the role."""
        async with self._one_at_a_time:
            self._pending_role = self._loop.create_future()
            self.tell(RoleQuestion(name, endpoint))
            answer = await self._pending_role
        if isinstance(answer, RoleRefused):
            raise InfraError(answer.reason)
        return LLM(answer.llm.base_url, answer.llm.model, facts=answer.llm.facts)

    async def listen(self, task: asyncio.Task[Any]) -> None:
        """Handles answers of the pool. Cancels `task` if the pool sends `StopAgent` or disconnects."""
        with suppress(EOFError, ConnectionError):
            while not isinstance(answer := await self._answer(), StopAgent):
                if self._pending_role is not None and not self._pending_role.done():
                    self._pending_role.set_result(answer)
        task.cancel()

    async def _answer(self) -> RoleOpened | RoleRefused | StopAgent:
        """Returns the next message of the pool. A message that cannot be read becomes a refusal."""
        try:
            return TO_AGENT.read((await wire.read(self.reader))[0])
        except ValueError as error:
            return RoleRefused(str(error))


class ReportedToolbox(Toolbox):
    """The toolbox of an isolated agent: reports each call to the pool at once, so that the record of a killed agent has its calls."""

    def __init__(self, tools: Sequence[Tool], line: PoolLine, source: ToolSource, sizes: Sizes) -> None:
        super().__init__(tools, source=source, sizes=sizes)
        self._line = line

    def keep(self, place: int, call: ToolCall) -> None:
        super().keep(place, call)
        self._line.tell(CallMade(place, call))

    def settle_on(self, calls: Sequence[ToolCall], drafts: Sequence[Draft]) -> None:
        super().settle_on(calls, drafts)
        self._line.tell(TriesSettled(tuple(calls), tuple(drafts)))
