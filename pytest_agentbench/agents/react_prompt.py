"""What a ReAct speaker is told: the contract, the tools, and the conversation so far as text."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from pytest_agentbench.records import Json
from pytest_agentbench.suites.suite import Tool, content_text

SYSTEM_PROMPT = """\
You help a customer. These tools are there:

{tools}

Choose the tools for everything the customer asks for, and only for that. Arguments are what the customer says.
Answer in this format:

Thought: what is to be done next
Action: one of [{tool_names}]
Action Input: the arguments of the tool as a JSON object, or None
Observation: what the tool returned

An answer is one Thought, one Action and one Action Input. Stop behind it and wait; never write an Observation.
You then get the Observation, and go on with the next Thought. When nothing is left to do, answer:

Thought: I now know the final answer
Final Answer: what you have to tell the customer"""


def system_text(prompt: str, more: str, tools: Sequence[Tool], *, schemas: bool) -> str:
    """The prompt with the tools in it, one a line, and `more` behind it."""
    lines = "\n".join(_tool_line(tool, schema=schemas) for tool in tools)
    # Not str.format: a prompt may show JSON.
    text = prompt.replace("{tool_names}", ", ".join(tool.name for tool in tools)).replace("{tools}", lines)
    return f"{text} {more}" if more else text


def question_text(messages: Sequence[Json], max_history: int) -> str:
    """What the user asks, behind the last `max_history` messages of the conversation before it."""
    start = len(messages)
    while start and messages[start - 1]["role"] == "user":
        start -= 1
    earlier = messages[max(0, start - max_history) : start]
    history = "\n".join(filter(None, map(_told, earlier)))
    question = "\n".join(map(content_text, messages[start:]))
    return f"Previous conversation history:\n{history}\n\nQuestion: {question}"


def _tool_line(tool: Tool, *, schema: bool) -> str:
    line = f"{tool.name}: {' '.join(tool.description.split())}"
    return f"{line} Arguments must fit this JSON schema: {orjson.dumps(tool.parameters).decode()}" if schema else line


def _told(message: Json) -> str:
    """A message of the conversation before, in the words that the contract has for it."""
    text = content_text(message)
    if message["role"] == "tool":
        return f"Observation: {text}"
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    said = [f"{message['role']}: {text}"] if text else []
    return "\n".join([*said, *(f"Action: {call['name']}\nAction Input: {call.get('arguments') or None}" for call in calls)])
