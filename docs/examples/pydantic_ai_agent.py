"""An agent on Pydantic AI (`pip install "pydantic-ai-slim[openai]"`) for `kind: command`."""

import json
import sys

from pydantic_ai import Agent, Tool
from pydantic_ai.models.openai import OpenAIChatModel


def tool(spec: dict) -> Tool:
    def respond(**arguments) -> str:
        return spec["response"]

    return Tool.from_schema(respond, name=spec["name"], description=spec["description"], json_schema=spec["parameters"])


scenario = json.load(sys.stdin)
agent = Agent(OpenAIChatModel(scenario["model"]), tools=[*map(tool, scenario["tools"])], model_settings=scenario["sampling"])
question = "\n".join(message["content"] for message in scenario["messages"] if message["role"] == "user")
print(agent.run_sync(question).output)
