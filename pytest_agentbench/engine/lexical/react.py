"""The policy `lexical` as a ReAct speaker: a prompt of that contract becomes a request with tools, and the reply becomes text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from pytest_agentbench.engine.chat import content_text
from pytest_agentbench.engine.protocol import PolicyReply
from pytest_agentbench.records import Json

#: What the system prompt of the contract asks for.
CONTRACT = ("Thought:", "Action:", "Action Input:", "Observation:", "Final Answer:")
LABELS = frozenset({"Thought", "Action", "Observation", "Question", "Note"})
#: Name and description of a tool.
TOOL_LINE = re.compile(r"^(?:[-*] )?([\w.-]+): (.*)$", re.MULTILINE)
#: What stands between a description and the parameters, such as `Arguments must fit this JSON schema: `.
BEFORE_PARAMETERS = re.compile(r" ?Arguments\b[^.:{\n]{0,100}: (?=\{)")
CALLED = re.compile(r"^Action: *([^ \n](?:.*[^ \n])?) *$", re.MULTILINE)


def as_native(request: Mapping[str, Any]) -> Json | None:
    """The request as an agent with native tools would make it; None for one that is no ReAct."""
    system, *rest = request["messages"]
    prompt = content_text(system)
    if request.get("tools") or not rest or not all(word in prompt for word in CONTRACT):
        return None
    question, *scratchpad = rest
    _, _, asked = content_text(question).rpartition("\n\nQuestion: ")
    user = {"role": "user", "content": asked}
    return {"messages": [user, *_calls_made(scratchpad)], "tools": [*_tools(prompt)], "parallel_tool_calls": False}


def spoken(reply: PolicyReply) -> PolicyReply:
    """A reply with a tool call, or with text, as the contract has it."""
    if not reply.tool_calls:
        return PolicyReply(f"Thought: I now know the final answer\nFinal Answer: {reply.text}")
    call = reply.tool_calls[0]
    arguments = call.arguments if isinstance(call.arguments, str) else orjson.dumps(call.arguments).decode()
    about = call.name.replace("_", " ")
    return PolicyReply(f"Thought: The customer asks for this: {about}\nAction: {call.name}\nAction Input: {arguments}")


def _tools(prompt: str) -> Iterator[Json]:
    """The tools of a prompt: lines whose name stands in it a second time, in the list of names."""
    for name, text in TOOL_LINE.findall(prompt):
        if name not in LABELS and len(re.findall(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", prompt)) > 1:
            between = BEFORE_PARAMETERS.search(text) if text.endswith("}") else None
            description, schema = (text[: between.start()], text[between.end() :]) if between else (text, "")
            yield {"type": "function", "function": {"name": name, "description": description, "parameters": _parameters(schema)}}


def _parameters(schema: str) -> Json:
    try:
        return dict(orjson.loads(schema))
    except orjson.JSONDecodeError:  # none, or none that is whole
        return {}


def _calls_made(scratchpad: Sequence[Mapping[str, Any]]) -> Iterator[Json]:
    """What the assistant has called, as messages with tool calls."""
    for message in scratchpad:
        if message["role"] == "assistant":
            names = CALLED.findall(content_text(message))
            yield {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": name}} for name in names]}
