"""Processes with a suite's code answer messages that they cannot read, and convert values that JSON does not have."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from pytest_agentbench.agents.run import work
from pytest_agentbench.errors import AgentError, InfraError
from pytest_agentbench.lib import wire
from pytest_agentbench.lib.standard_streams import capture
from pytest_agentbench.llm.client import LLM, ModelFacts
from pytest_agentbench.records import Json, Rollout, RolloutKey, Score
from pytest_agentbench.rollouts.attempt_context import current_attempt
from pytest_agentbench.rollouts.isolation.outside import Template, isolated
from pytest_agentbench.rollouts.isolation.protocol import (
    FROM_AGENT,
    FROM_SCORER,
    LOADED,
    AgentDone,
    AgentJob,
    Job,
    JobRefused,
    ModelAccess,
    NotLoaded,
    RoleQuestion,
    Scored,
    ScoreJob,
)
from pytest_agentbench.rollouts.scores import FailedElsewhere
from pytest_agentbench.suites.suite import PoolSuite, Scenario
from pytest_agentbench.tools.toolbox import Toolbox

pytestmark = pytest.mark.slow

CODE = """
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from pytest_agentbench import Score
from pytest_agentbench.errors import InfraError
from pytest_agentbench.records import Answer

@dataclass(frozen=True)
class Agent:
    since: date = date(2026, 1, 2)
    folder: Path = Path("/data")

    async def run(self, scenario, llm, tools):
        if scenario.id == "wrong":
            return Answer(5)
        llm.transcript = [{"role": "user", "content": scenario.metadata["since"], "at": self.since}]
        tools.final_state = {"since": self.since}
        try:
            await llm.role("search")
        except InfraError as error:
            return Answer(str(error))

def score(scenario, rollout):
    return Score(1, {"since": date(2026, 1, 2)}, f"{scenario.metadata} {rollout.final_state}")
"""

DAY: Json = {"since": date(2026, 1, 2)}
ACCESS = ModelAccess("http://127.0.0.1:9/v1", "m", ModelFacts())
SCENARIO = Scenario("shop-0", ({"role": "user", "content": "A lamp?"},), metadata=DAY)
ROLLOUT = Rollout("shop", "shop-0", "default", 1, "ok", final_state=DAY)


def shop(folder: Path) -> PoolSuite:
    (folder / "own.py").write_text(CODE)
    agent = {"kind": "./own.py:Agent"}
    return PoolSuite("shop", folder, (SCENARIO,), agent, scorers={"./own.py:score": {}}, isolation="process")


@asynccontextmanager
async def template_of(suite: PoolSuite) -> AsyncIterator[Template]:
    template = await Template.start(suite, "default")
    try:
        yield template
    finally:
        await template.close()


def test_a_config_that_cannot_be_read() -> None:
    """A template process describes the fault in its config and ends."""

    async def answer() -> NotLoaded:
        ours, its = socket.socketpair()
        with ours, its:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "pytest_agentbench.rollouts.isolation"), stdin=its.fileno()
            )
            ours.sendall(wire.framed(["TemplateConfig", {"variant": "default"}]))
            found = LOADED.read((await asyncio.to_thread(wire.receive, ours))[0])
            assert 0 == await process.wait()
        assert isinstance(found, NotLoaded)
        return found

    assert NotLoaded("suite is missing") == asyncio.run(answer())


async def test_values_that_json_does_not_have(tmp_path: Path) -> None:
    """Dates and paths in scenarios, agent settings and the results of agents and scorers become strings."""
    async with template_of(shop(tmp_path)) as template:
        assert {"since": "2026-01-02", "folder": "/data", "kind": "./own.py:Agent"} == template.settings
        async with template.process(AgentJob(SCENARIO, 1, ACCESS, {})) as process:
            assert RoleQuestion("search", None) == await process.read(FROM_AGENT)
            process.writer.write(wire.framed(["RoleOpened", {}]))
            done = await process.read(FROM_AGENT)
        async with template.process(ScoreJob("score", SCENARIO, ROLLOUT, None)) as process:
            scored = await process.read(FROM_SCORER)

    transcript = ({"role": "user", "content": "2026-01-02", "at": "2026-01-02"},)
    assert AgentDone("ok", "", "llm is missing", transcript, (), (), {"since": "2026-01-02"}) == done
    assert Scored(Score(1)) == scored
    assert isinstance(scored, Scored)
    assert "{'since': '2026-01-02'}" == str(scored.score.parts)
    assert "{'since': '2026-01-02'} {'since': '2026-01-02'}" == scored.score.explanation


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (AgentJob(replace(SCENARIO, id=5), 1, ACCESS, {}), "scenario.id is a whole number, not a text"),  # type: ignore[arg-type]
        (ScoreJob("score", SCENARIO, replace(ROLLOUT, answer=5), None), "rollout.answer is a whole number, not a text"),  # type: ignore[arg-type]
    ],
)
async def test_a_job_that_cannot_be_read(tmp_path: Path, job: Job, reason: str) -> None:
    """A forked process refuses a job with an invalid value that user code has put there, and names the value."""
    async with template_of(shop(tmp_path)) as template, template.process(job) as process:
        assert JobRefused(reason) == await (process.read(FROM_AGENT) if isinstance(job, AgentJob) else process.read(FROM_SCORER))


async def test_a_template_process_that_has_died(tmp_path: Path) -> None:
    """A job of a dead template process raises InfraError, before and after its death is noticed, and no socket stays open."""
    has_died = asyncio.Event()
    template = await Template.start(shop(tmp_path), "default", lambda _: has_died.set())
    template._process.kill()
    for _ in range(2):
        with pytest.raises(InfraError, match=r"^the process that runs the suite's code "):
            async with template.process(AgentJob(SCENARIO, 1, ACCESS, {})) as process:
                await process.read(FROM_AGENT)
        await has_died.wait()
    await template.end()
    assert template._listening is not None
    await template._listening

    del template
    gc.collect()  # A socket that is still open causes a warning now.


async def test_an_answer_that_is_not_a_text(tmp_path: Path) -> None:
    """An answer that no record can hold is an error of the agent. A job that a scorer's process cannot read is an error of the scorer."""
    suite = shop(tmp_path)
    wrong = replace(SCENARIO, id="wrong")
    async with template_of(suite) as template:
        setup = isolated(suite, "default", template)
        with capture() as log, current_attempt(RolloutKey("shop", "wrong", "default", 1), log):
            with pytest.raises(AgentError, match=r"^the agent returned an Answer whose text is '5' \(int\), not a str \(own\.py:14\)$"):
                await work(setup.agent, wrong, LLM("", ""), Toolbox(()))
            refused = (
                r"^the scorer's process could not read the scenario and rollout of its job: rollout\.answer is a whole number, not a text$"
            )
            with pytest.raises(FailedElsewhere, match=refused):
                await setup.scorers["score"](wrong, replace(ROLLOUT, answer=5))  # type: ignore[arg-type,misc]
