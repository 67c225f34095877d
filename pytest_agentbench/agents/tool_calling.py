"""The agent that lets the model call tools natively, several per turn, until it answers or runs out of turns."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_agentbench.agents.toolbox import Toolbox
from pytest_agentbench.errors import LimitReached
from pytest_agentbench.llm import LLM
from pytest_agentbench.records import Answer, Json
from pytest_agentbench.scenarios import Scenario

SYSTEM_PROMPT = (
    "You help a customer. Use the tools for everything the customer asks for, and only for that; call several at once where you can. "
    "When nothing is left to do, answer the customer."
)


@dataclass(frozen=True)
class ToolCalling:
    """Options: `max_turns` (model calls), `system_prompt`."""

    max_turns: int = 12
    system_prompt: str = SYSTEM_PROMPT

    def __post_init__(self) -> None:
        if type(self.max_turns) is not int or self.max_turns < 1:
            raise ValueError(f"max_turns should be a whole number from 1 up, not {self.max_turns!r}")
        if not isinstance(self.system_prompt, str):
            raise TypeError(f"system_prompt should be a text, not {self.system_prompt!r}")

    async def run(self, scenario: Scenario, llm: LLM, tools: Toolbox) -> Answer:
        messages: list[Json] = [{"role": "system", "content": self.system_prompt}, *scenario.messages]
        for turn in range(1, self.max_turns + 1):
            reply = await llm.chat(messages, tools.schemas)
            messages.append(reply.message)
            if not reply.tool_calls:
                return Answer(reply.text)
            for call in reply.tool_calls:
                result = tools.call(call.name, call.arguments, turn)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        llm.transcript = messages
        raise LimitReached(f"turns: {self.max_turns} were not enough")
