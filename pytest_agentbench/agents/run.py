"""Runs an agent on a scenario: once for each message of the user, in a thread if the agent is not async.

Also contains `ask`, with which built-in agents send requests. It repeats a request if the answer was truncated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import ceil, inf
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from pytest_agentbench.agents import Agent
from pytest_agentbench.errors import AgentError, LimitReached, unknown_key
from pytest_agentbench.lib.cut_marks import beginning
from pytest_agentbench.lib.error_texts import place_of
from pytest_agentbench.lib.options import ValueKind, check_options, whole
from pytest_agentbench.lib.threads import in_thread, is_async
from pytest_agentbench.llm.client import LLM, Reply
from pytest_agentbench.records import Answer, Json
from pytest_agentbench.tools.toolbox import BlockingToolbox, Toolbox

if TYPE_CHECKING:
    from pytest_agentbench.suites.suite import Scenario


@runtime_checkable
class RemoteAgent(Protocol):
    """An agent that runs in another process. The method `work` runs it there on a scenario, for all messages of the user."""

    async def work(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer: ...


async def work(agent: Agent, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
    """Runs an agent on a scenario, and returns its answer to the last message of the user.

    If the user has several messages, the agent runs once for each of them, with the conversation so far.
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
    """Runs an agent once, and returns its answer to the scenario. Raises AgentError if answer or transcript has a wrong type."""
    if is_async(agent.run):
        answer = await agent.run(scenario, llm, tools)
    else:
        answer = await in_thread(agent.run, scenario, llm, BlockingToolbox(tools))  # type: ignore[arg-type]  # a user's blocking agent
    if not isinstance(answer, Answer):
        raise AgentError(f"the agent returned {beginning(str(answer), 80)!r} ({type(answer).__name__}), not an Answer{place_of(agent.run)}")
    if not isinstance(answer.text, str):
        raise AgentError(
            f"the agent returned an Answer whose text is {beginning(str(answer.text), 80)!r} ({type(answer.text).__name__}), not a str"
            f"{place_of(agent.run)}"
        )
    if invalid := [message for message in llm.transcript if not isinstance(message, dict)]:
        llm.transcript[:] = [message for message in llm.transcript if isinstance(message, dict)]
        shown = f"{beginning(str(invalid[0]), 80)!r} ({type(invalid[0]).__name__})"
        raise AgentError(f"the agent left {shown} in llm.transcript, which must be a list of messages, each a dict")
    return answer


def _conversation(scenario: Scenario, llm: LLM, answer: Answer) -> list[Json]:
    """Returns the conversation so far, without messages such as the system prompt that the agent put before the scenario's own."""
    first, messages = scenario.messages[0], [*llm.transcript]
    if first in messages:
        return messages[messages.index(first) :]
    return [*scenario.messages, {"role": "assistant", "content": answer.text}]


ABOVE_ONE = ValueKind(lambda value: type(value) in {int, float} and 1 < value < inf, "a number above 1")


@dataclass(frozen=True)
class TruncationRetry:
    """The option `truncation_retry`: how often a request is repeated if its answer was truncated, and how much larger the limit gets."""

    max_retries: Annotated[int, whole(0)] = 0  # A request with a truncated answer is repeated this many times.
    token_increment: Annotated[int, whole(1)] | None = None  # Tokens that are added to the limit each time; 1024 by default.
    # Alternative to `token_increment`: factor by which the token limit is multiplied each time.
    token_scaling: Annotated[float, ABOVE_ONE] | None = None

    def __post_init__(self) -> None:
        check_options(self, "truncation_retry.")
        if self.token_increment is not None and self.token_scaling is not None:
            raise ValueError("truncation_retry must have only one of token_increment and token_scaling")

    @classmethod
    def of(cls, options: Json) -> TruncationRetry:
        """Makes an instance from the value of `truncation_retry` in suite.yaml. Raises ValueError for an invalid option."""
        known = [each.name for each in fields(cls)]
        for name in options:
            if name not in known:
                raise ValueError(f"truncation_retry: {unknown_key(name, known)}")
        return cls(**options)

    def next_limit(self, limit: int) -> int:
        """Returns the token limit of a repeated request. `limit` is that of the truncated one."""
        return limit + (self.token_increment or 1024) if self.token_scaling is None else ceil(limit * self.token_scaling)


NO_RETRY = TruncationRetry()


async def ask(
    llm: LLM, messages: Sequence[Json], tools: Sequence[Json] = (), *, truncation_retry: TruncationRetry = NO_RETRY, **overrides: Any
) -> Reply:
    """Sends a request to the model, and returns its complete answer. Repeats the request if the answer was truncated.

    Raises LimitReached if the answer to the last request is truncated, too.
    """
    limit = overrides.get("max_tokens") or llm.sampling.get("max_tokens")
    for left in range(truncation_retry.max_retries, -1, -1):
        reply = await llm.chat(messages, tools, **overrides)
        if reply.finish_reason != "length":
            return reply
        limit = limit or reply.usage.get("completion_tokens") or 0
        if left:
            limit = overrides["max_tokens"] = truncation_retry.next_limit(limit)
    raise LimitReached(f"tokens: the answer was truncated after {limit} tokens (max_tokens)")
