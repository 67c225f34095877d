"""What a forked process does: one agent's work, or one score, told to the pool as it goes."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import aiohttp

from pytest_agentbench.errors import InfraError
from pytest_agentbench.lib import codec, wire
from pytest_agentbench.lib.capture import print_exception
from pytest_agentbench.lib.sizes import Sizes, cut
from pytest_agentbench.lib.user_frames import with_place
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.llm.model_facts import ModelFacts
from pytest_agentbench.records import Draft, Json, Rollout, ToolCall
from pytest_agentbench.rollouts.rollout import RolloutSetup, outcome
from pytest_agentbench.rollouts.scores import no_judge, score
from pytest_agentbench.suites.suite import Scenario, Tool
from pytest_agentbench.tools.answers import answered
from pytest_agentbench.tools.source import ToolSource
from pytest_agentbench.tools.toolbox import Toolbox

GRACE = 0.2  # seconds that an agent has to end when the pool stops it, of those that the pool waits before it kills the process


def work_off(setup: RolloutSetup, connection: socket.socket) -> None:
    """Does the job that comes over a connection to the pool."""
    asyncio.run(_work_off(setup, connection))


async def _work_off(setup: RolloutSetup, connection: socket.socket) -> None:
    line = PoolLine(*await asyncio.open_connection(sock=connection))
    job, body = await wire.read(line.reader)
    facts = json.loads(body)
    scenario = codec.received(Scenario, facts["scenario"])
    async with aiohttp.ClientSession() as session:
        work = _agent(setup, scenario, job, line, session) if job["op"] == "agent" else _score(setup, scenario, job, facts, session)
        task = asyncio.create_task(work)
        listening = asyncio.create_task(line.listen(task))
        done = await task
        listening.cancel()
    line.tell({"op": "done"}, done)
    await line.writer.drain()
    line.writer.close()
    await line.writer.wait_closed()


async def _agent(setup: RolloutSetup, scenario: Scenario, job: Json, line: PoolLine, session: aiohttp.ClientSession) -> Json:
    """What became of the agent's work; when it is stopped, what it did so far."""
    llm = LLM(job["base_url"], job["model"], job["sampling"], session, line.role, facts=ModelFacts(**job["facts"]))
    scenario = setup.tools.for_scenario(scenario)
    async with setup.tools.opened(scenario) as source:
        tools = ReportedToolbox(scenario.tools, line, answered(source, setup.answers, scenario, job["trial"]), setup.sizes)
        try:
            status, reason, answer = await outcome(setup.agent, scenario, llm, tools, None, setup.sizes, grace=GRACE)
        except asyncio.CancelledError:
            status, reason, answer = "cancelled", "", ""
            with suppress(InfraError):  # what they made of their state up to here
                tools.settle()
    done = {"status": status, "reason": reason, "answer": answer, "transcript": llm.transcript}
    return {
        **done,
        "tool_calls": codec.plain(tools.calls),
        "drafts": codec.plain(tools.drafts),
        "final_state": tools.final_state,
    }


async def _score(setup: RolloutSetup, scenario: Scenario, job: Json, facts: Json, session: aiohttp.ClientSession) -> Json:
    async def judge() -> LLM:
        if "base_url" not in job:
            return await no_judge()
        return LLM(job["base_url"], job["model"], session=session, facts=ModelFacts(**job["facts"]))

    try:
        rollout = codec.received(Rollout, facts["rollout"])
        return {"score": codec.plain(await score(setup.scorers[job["name"]], scenario, rollout, judge, setup.sizes))}
    except (Exception, SystemExit) as error:  # the scorer is the user's code
        print_exception(error)  # The other side gets the last of its frames only.
        return {"error": with_place(f"{type(error).__name__}: {cut(str(error), setup.sizes.reason)}", error)}


class PoolLine:
    """The connection to the pool, from this side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._asked: asyncio.Future[Json] | None = None
        self._one_at_a_time = asyncio.Lock()

    def tell(self, header: Json, body: object) -> None:
        """Sends something, from whatever thread; at once, so that it has been said whatever happens next."""
        frame = wire.pack(header, json.dumps(body, default=str).encode())
        if threading.get_ident() == self._thread:
            self.writer.write(frame)
        else:
            self._loop.call_soon_threadsafe(self.writer.write, frame)

    async def role(self, name: str, endpoint: Json | None) -> LLM:
        """A model that plays a role, whose address the pool gives; raises InfraError when it has none."""
        async with self._one_at_a_time:
            self._asked = self._loop.create_future()
            self.tell({"op": "role"}, {"name": name, "endpoint": endpoint})
            reply = await self._asked
        if "error" in reply:
            raise InfraError(reply["error"])
        return LLM(reply["base_url"], reply["model"], facts=ModelFacts(**reply["facts"]))

    async def listen(self, task: asyncio.Task[Any]) -> None:
        """Takes replies; stops the work when the pool says so, or is gone."""
        try:
            while (message := await wire.read(self.reader))[0]["op"] == "reply":
                if self._asked is not None and not self._asked.done():
                    self._asked.set_result(message[0])
        except (EOFError, ConnectionError):
            pass
        task.cancel()


class ReportedToolbox(Toolbox):
    """Tells of each call as it is made: an agent that is killed has made it all the same."""

    def __init__(self, tools: Sequence[Tool], line: PoolLine, source: ToolSource, sizes: Sizes) -> None:
        super().__init__(tools, source=source, sizes=sizes)
        self._line = line

    def keep(self, place: int, call: ToolCall) -> None:
        super().keep(place, call)
        self._line.tell({"op": "tool_call"}, {"place": place, "call": codec.plain(call)})

    def settle_on(self, calls: Sequence[ToolCall], drafts: Sequence[Draft]) -> None:
        super().settle_on(calls, drafts)
        self._line.tell({"op": "tries"}, {"calls": codec.plain(calls), "drafts": codec.plain(drafts)})
