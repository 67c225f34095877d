"""An agent on the openai SDK: calls the model until its answer asks for no tool. Replace the body by your own agent."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI

from pytest_agentbench import LLM, LimitReached, Scenario, Toolbox


async def run(scenario: Scenario, client: AsyncOpenAI, llm: LLM, tools: Toolbox, *, max_turns: int = 6) -> str:
    """`client` calls the model through the recording proxy. Parameters after the `*` are settings under `agent` in suite.yaml."""
    messages: list[Any] = [{"role": "system", "content": "You help the customers of a coffee shop."}, *scenario.messages]
    schemas: list[Any] = tools.schemas
    for turn in range(1, max_turns + 1):
        reply = await client.chat.completions.create(model=llm.model, messages=messages, tools=schemas, **llm.sampling)
        message: Any = reply.choices[0].message
        if not message.tool_calls:
            return str(message.content)
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = await tools.call(call.function.name, call.function.arguments, turn)  # recorded and scored
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise LimitReached(f"turns: {max_turns} were not enough")
