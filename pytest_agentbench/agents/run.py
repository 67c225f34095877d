"""How an agent runs: through all that the user says, and in a thread where it blocks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pytest_agentbench.agents import Agent
from pytest_agentbench.errors import AgentError
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.threads import in_thread, is_async
from pytest_agentbench.llm.client import LLM
from pytest_agentbench.records import Answer, Json
from pytest_agentbench.tools.toolbox import BlockingToolbox, Toolbox

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@runtime_checkable
class RemoteAgent(Protocol):
    """An agent for which `work` is done somewhere else."""

    async def work(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer: ...


async def work(agent: Agent, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
    """The agent's answer to what the user said last.

    Where the user has more than one thing to say, the agent runs once for each, on the conversation so far.
    """
    if isinstance(agent, RemoteAgent):
        return await agent.work(scenario, llm, tools)
    answer = await work_once(agent, scenario, llm, tools)
    for later in scenario.turns:
        tools.user_turn += 1
        scenario = dataclasses.replace(scenario, messages=(*_conversation(scenario, llm, answer), *later))
        answer = await work_once(agent, scenario, llm, tools)
    return answer


async def work_once(agent: Agent, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
    """Returns the agent's answer to a scenario's messages; raises AgentError if it, or the transcript, is not what a record can hold."""
    if is_async(agent.run):
        answer = await agent.run(scenario, llm, tools)
    else:
        answer = await in_thread(agent.run, scenario, llm, BlockingToolbox(tools))  # type: ignore[arg-type]  # of a user, and blocking
    if not isinstance(answer, Answer):
        raise AgentError(f"the agent returned {beginning(str(answer), 80)!r} ({type(answer).__name__}), not an Answer")
    if not isinstance(answer.text, str):
        raise AgentError(f"the agent returned an Answer whose text is {beginning(str(answer.text), 80)!r} ({type(answer.text).__name__})")
    if others := [message for message in llm.transcript if not isinstance(message, dict)]:
        llm.transcript[:] = [message for message in llm.transcript if isinstance(message, dict)]
        found = f"{beginning(str(others[0]), 80)!r} ({type(others[0]).__name__})"
        raise AgentError(f"the agent left {found} in llm.transcript; it should have messages only, each a dict")
    return answer


def _conversation(scenario: Scenario, llm: LLM, answer: Answer) -> list[Json]:
    """What was said so far, without what the agent tells the model of itself before it."""
    first, messages = scenario.messages[0], [*llm.transcript]
    if first in messages:
        return messages[messages.index(first) :]
    return [*scenario.messages, {"role": "assistant", "content": answer.text}]
