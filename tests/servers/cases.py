"""What is asked of real servers, by case: bodies of Chat Completions that have one answer, however often they are asked."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_agentbench.records import Json
from tests.servers.script import SAYINGS

PARAMETERS: Json = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FIND: Json = {"name": "find", "description": "Finds.", "parameters": PARAMETERS}
TOOLS: Json = {"tools": [{"type": "function", "function": FIND}]}
NAMED: Json = {"tool_choice": {"type": "function", "function": {"name": "find"}}}

#: With this, random weights that are held to a schema come to its end: without a penalty they would go on writing spaces.
FORCED: Json = {
    "tools": [{"type": "function", "function": {**FIND, "strict": True}}],
    "parallel_tool_calls": False,
    "frequency_penalty": 2,
    "max_tokens": 400,
}
HEAD: Json = {"model": "tiny", "messages": [{"role": "user", "content": "Say something about the sky and the sea."}], "max_tokens": 120}

#: What a Dynamo client may ask to be told.
TOLD: Json = {"nvext": {"extra_fields": ["worker_id", "timing", "completion_token_ids"]}}


def of_vllm(saying: str | None = None, *, thinking: bool = False, **more: object) -> Json:
    """A request that vLLM answers with `saying`, held to it by a grammar; without one, with what the weights say."""
    held = {} if saying is None else {"structured_outputs": {"choice": [saying]}}
    return {**HEAD, "temperature": 0, "seed": 1, "chat_template_kwargs": {"enable_thinking": thinking}, **held, **more}


def of_dynamo(saying: str, **more: object) -> Json:
    """A request that the mocker answers with what its script has under this name."""
    nvext = {"annotations": [f"output_replay_id:{saying}"]}
    return {**HEAD, **more, "nvext": {**nvext, **more.get("nvext", {})}}  # type: ignore[dict-item]


VLLM: Mapping[str, Json] = {
    "text": of_vllm(SAYINGS["text"]),
    "cut": of_vllm(max_tokens=8),
    "stop": of_vllm(SAYINGS["text"], stop=["sea"]),
    "two": of_vllm(max_tokens=4, temperature=1, n=2),
    "logprobs": of_vllm(SAYINGS["text"], logprobs=True, top_logprobs=2),
    "token ids": of_vllm(SAYINGS["text"], return_token_ids=True),
    "call": of_vllm(SAYINGS["call"], **TOOLS),
    "parallel calls": of_vllm(SAYINGS["calls"], **TOOLS),
    "call, cut": of_vllm(SAYINGS["call"], **TOOLS, max_tokens=20),
    "text and call": of_vllm("I look. " + SAYINGS["call"], **TOOLS),
    "required call": of_vllm(**FORCED, tool_choice="required"),
    "named call": of_vllm(**FORCED, **NAMED),
    "reasoning": of_vllm(SAYINGS["reasoning"].removeprefix("<think>"), thinking=True),
    "reasoning and call": of_vllm(SAYINGS["reasoning and call"].removeprefix("<think>"), thinking=True, **TOOLS),
    "reasoning, cut": of_vllm("I look it up.", thinking=True, max_tokens=4),
    "reasoning with an emoji, cut": of_vllm("\N{OWL} I look it up.", thinking=True, max_tokens=8),
}

DYNAMO: Mapping[str, Json] = {
    "text": of_dynamo("text"),
    "cut": of_dynamo("text", max_tokens=8),
    "nvext": of_dynamo("text", **TOLD),
    "two": of_dynamo("text", n=2),
    "logprobs": of_dynamo("text", logprobs=True, top_logprobs=2),
    "call": of_dynamo("call", **TOOLS),
    "parallel calls": of_dynamo("calls", **TOOLS),
    "required call": of_dynamo("call", **TOOLS, tool_choice="required"),
    "named call": of_dynamo("call", **TOOLS, **NAMED),
    "reasoning": of_dynamo("reasoning"),
    "reasoning and call": of_dynamo("reasoning and call", **TOOLS),
    "reasoning, cut": of_dynamo("reasoning, cut"),
}
