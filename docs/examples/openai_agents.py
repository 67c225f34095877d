"""An agent on the OpenAI Agents SDK (`pip install openai-agents`) for `kind: command`."""

import asyncio
import json
import sys

from agents import Agent, FunctionTool, ModelSettings, Runner, set_default_openai_api, set_tracing_disabled


def tool(spec: dict) -> FunctionTool:
    async def respond(context, arguments: str) -> str:
        return spec["response"]

    return FunctionTool(spec["name"], spec["description"], spec["parameters"], respond, strict_json_schema=False)


async def main() -> None:
    scenario = json.load(sys.stdin)
    set_tracing_disabled(disabled=True)  # traces would go to api.openai.com
    set_default_openai_api("chat_completions")  # the default is Responses, which not every server has
    settings = {name: value for name, value in scenario["sampling"].items() if name in ("temperature", "top_p", "max_tokens")}
    agent = Agent(
        "customer service", model=scenario["model"], tools=[*map(tool, scenario["tools"])], model_settings=ModelSettings(**settings)
    )
    result = await Runner.run(agent, scenario["messages"], max_turns=12)
    print(result.final_output)


asyncio.run(main())
