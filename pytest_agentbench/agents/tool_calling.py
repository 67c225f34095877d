"""The agent `tool_calling`: the model calls tools natively (`tool_calls` of the API) until it answers or runs out of turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pytest_agentbench.agents.factory import A_PROMPT
from pytest_agentbench.agents.run import TruncationRetry, ask
from pytest_agentbench.errors import AgentError, LimitReached
from pytest_agentbench.lib.options import check_options, whole
from pytest_agentbench.llm.client import LLM, Reply
from pytest_agentbench.records import Answer, Json
from pytest_agentbench.suites.suite import Scenario
from pytest_agentbench.tools.toolbox import Toolbox

SYSTEM_PROMPT = (
    "You help a customer. Use the tools for everything the customer asks for, and only for that; call several at once where you can. "
    "When nothing is left to do, answer the customer."
)


@dataclass(frozen=True)
class ToolCalling:
    """The agent `tool_calling`: carries out the model's tool calls, and ends with the first answer without any.

    Options: docs/reference/agent-options.md.
    """

    # Largest number of the model's answers without repeated requests; after them the status is `limit`.
    max_turns: Annotated[int, whole(1)] = 12
    system_prompt: str = field(default=SYSTEM_PROMPT, metadata=A_PROMPT)  # The system message.
    parallel: bool = True  # With `true`, an answer may call several tools.
    truncation_retry: Json = field(default_factory=dict)  # How requests are repeated if the answer was truncated at the token limit.
    # A request whose answer has neither text nor a tool call is repeated this many times.
    max_empty_response_retries: Annotated[int, whole(0)] = 0

    def __post_init__(self) -> None:
        check_options(self)
        TruncationRetry.of(self.truncation_retry)

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        messages: list[Json] = [{"role": "system", "content": self.system_prompt}, *scenario.messages]
        for turn in range(1, self.max_turns + 1):
            reply = await self._reply(llm, messages, tools.schemas)
            messages.append(reply.message)
            if not reply.tool_calls:
                return Answer(reply.text)
            for call in reply.tool_calls:
                result = await tools.call(call.name, call.arguments, turn)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        llm.transcript = messages
        raise LimitReached(f"turns: {self.max_turns} were not enough (max_turns)")

    async def _reply(self, llm: LLM, messages: list[Json], schemas: list[Json]) -> Reply:
        """Returns the model's next answer, with at most one tool call unless `parallel` is set. Repeats the request if it is empty."""
        retry = TruncationRetry.of(self.truncation_retry)
        one_by_one = {"parallel_tool_calls": False} if schemas and not self.parallel else {}
        for _ in range(self.max_empty_response_retries + 1):
            reply = await ask(llm, messages, schemas, truncation_retry=retry, **one_by_one)
            if not reply.is_empty:
                return reply if self.parallel else reply.with_one_call()  # The other calls would have no result.
        raise AgentError("the model's answer is empty: no text and no tool call")
