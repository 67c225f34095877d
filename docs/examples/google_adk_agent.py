"""An agent on Google's ADK (`pip install google-adk openai`) for `kind: command`."""

import asyncio
import json
import sys

from google.adk.agents import LlmAgent, RunConfig
from google.adk.integrations.openai import OpenAILlm
from google.adk.runners import InMemoryRunner
from google.adk.tools import BaseTool
from google.genai import types


class Canned(BaseTool):
    """A tool of the scenario, which returns its prepared response."""

    def __init__(self, spec: dict) -> None:
        super().__init__(name=spec["name"], description=spec["description"])
        self.spec = spec

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(name=self.name, description=self.description, parameters_json_schema=self.spec["parameters"])

    async def run_async(self, *, args, tool_context) -> str:
        return self.spec["response"]


async def main() -> None:
    scenario = json.load(sys.stdin)
    sampling = {{"max_tokens": "max_output_tokens"}.get(name, name): value for name, value in scenario["sampling"].items()}
    agent = LlmAgent(
        name="customer_service",
        model=OpenAILlm(model=scenario["model"]),
        tools=[*map(Canned, scenario["tools"])],
        generate_content_config=types.GenerateContentConfig(**sampling),
    )
    question = "\n".join(message["content"] for message in scenario["messages"] if message["role"] == "user")
    runner = InMemoryRunner(agent)
    session = await runner.session_service.create_session(app_name=runner.app_name, user_id="customer")
    message = types.UserContent(parts=[types.Part(text=question)])
    answer = ""
    async for event in runner.run_async(
        user_id="customer", session_id=session.id, new_message=message, run_config=RunConfig(max_llm_calls=12)
    ):
        if event.is_final_response() and event.content:
            answer = "".join(part.text or "" for part in event.content.parts)
    print(answer)


asyncio.run(main())
