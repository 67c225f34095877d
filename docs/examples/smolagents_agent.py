"""An agent on smolagents (`pip install "smolagents[openai]"`) for `kind: command`, which needs `own_tools: [final_answer]`."""

import json
import os
import sys
from pathlib import Path

from smolagents import OpenAIModel, Tool, ToolCallingAgent


def tool(spec: dict) -> Tool:
    class Canned(Tool):
        name, description, output_type = spec["name"], spec["description"], "string"
        skip_forward_signature_validation = True
        inputs = {
            name: {
                **field,
                "type": field.get("type", "any"),
                "description": field.get("description", name),
                "nullable": name not in spec["parameters"].get("required", []),
            }
            for name, field in spec["parameters"].get("properties", {}).items()
        }

        def forward(self, **arguments) -> str:
            return spec["response"]

    return Canned()


scenario = json.load(sys.stdin)
model = OpenAIModel(scenario["model"], api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"], **scenario["sampling"])
agent = ToolCallingAgent([*map(tool, scenario["tools"])], model, max_steps=12)
question = "\n".join(message["content"] for message in scenario["messages"] if message["role"] == "user")
Path(os.environ["AGENTBENCH_ANSWER"]).write_text(str(agent.run(question)))  # its progress goes to stdout
