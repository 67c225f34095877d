"""A suite whose own code runs elsewhere, as the pool sees it: an agent and scorers that are others' doing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import assert_never

from pytest_agentbench.agents.factory import UPGRADE, brings_code, make_agent, sampling_of
from pytest_agentbench.errors import AgentError, InfraError, LimitReached, RolloutError
from pytest_agentbench.lib.foreign import USUAL, Sizes
from pytest_agentbench.lib.user_code import is_import_path
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import JUDGE, Answer, Rollout, Score
from pytest_agentbench.rollouts.attempt_context import current
from pytest_agentbench.rollouts.isolation.codecheck import brings_any
from pytest_agentbench.rollouts.isolation.protocol import (
    FROM_AGENT,
    FROM_SCORER,
    AgentDone,
    AgentJob,
    CallMade,
    JobRefused,
    ModelAccess,
    RoleOpened,
    RoleQuestion,
    RoleRefused,
    Scored,
    ScoreFailed,
    ScoreJob,
    StopAgent,
    TriesSettled,
)
from pytest_agentbench.rollouts.isolation.template import ForkedProcess, Forking
from pytest_agentbench.rollouts.rollout import RolloutSetup
from pytest_agentbench.scorers import Scorer, load_scorer
from pytest_agentbench.suites.suite import PoolSuite, Scenario, score_name
from pytest_agentbench.tools import factory as tool_factory
from pytest_agentbench.tools.factory import answers_from
from pytest_agentbench.tools.source import DecisionOnly
from pytest_agentbench.tools.toolbox import Toolbox

PATIENCE = 0.5  # seconds in which a process that is stopped may tell what it did so far

_ERRORS: dict[str, type[RolloutError]] = {error.status: error for error in (AgentError, InfraError, LimitReached)}


def wants_isolation(suite: PoolSuite, variant: str) -> bool:
    """Whether a suite asks for it, and has code of its own. Code of this package runs in the pool anyway."""
    return suite.isolation == "process" and brings_any(suite, [variant])


def isolated(suite: PoolSuite, variant: str, template: Forking, sizes: Sizes = USUAL) -> RolloutSetup:
    """What `prepare` makes of a suite, with its own code on the other side."""
    settings, folder = suite.agent_of(variant), suite.folder
    own = brings_code(settings, folder) or tool_factory.brings_code(suite.tools_of(variant))  # an agent runs where its tools do
    agent = IsolatedAgent(template) if own else make_agent(settings, folder)
    scorers = {
        score_name(name): isolated_scorer(template, score_name(name)) if is_import_path(name) else load_scorer(name, folder, options)
        for name, options in suite.scorers.items()
    }
    shared = suite.roles, suite.limits, DecisionOnly(), {} if own else answers_from(suite.answers_of(variant))
    return RolloutSetup(agent, scorers, sampling_of(settings), settings.get(UPGRADE), template.settings, *shared, sizes=sizes)


@dataclass(frozen=True)
class IsolatedAgent:
    """An agent whose work is done in a process of its own, all turns of a scenario in the same one."""

    template: Forking

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        return await self.work(scenario, llm, tools)

    async def work(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        """Its answer; raises what the agent raised, and AgentError when its process died."""
        mark = current()
        assert mark is not None  # agents work within a rollout
        async with self.template.process(AgentJob(scenario, mark.key.trial, _access(llm), llm.sampling)) as process:
            try:
                done = await _agent_done(process, llm, tools)
            except asyncio.CancelledError:  # its time is over: what has it done?
                with suppress(TimeoutError, ChildProcessError, InfraError):  # a ChildProcessError: perhaps it came in the middle of a frame
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
    """Waits until an agent is done; what it did goes into `llm` and `tools`."""
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
                raise ChildProcessError(f"could not read its job: {reason}")
            case never:
                assert_never(never)


def isolated_scorer(template: Forking, name: str) -> Scorer:
    """A scorer whose work is done in a process of its own; it has the signature of one."""

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
            raise ChildProcessError(f"the scorer's process {error}") from None
    match done:
        case Scored(score):
            return score
        case ScoreFailed(reason):
            raise ChildProcessError(reason)
        case JobRefused(reason):
            raise ChildProcessError(f"the scorer's process could not read its job: {reason}")


def _access(llm: LLM) -> ModelAccess:
    """Returns what the other side makes the same client from."""
    return ModelAccess(llm.base_url, llm.model, llm.facts)
