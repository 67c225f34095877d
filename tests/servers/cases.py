"""Requests to real servers, by server, API and case. Each body has the same answer every time."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_agentbench.records import Json
from tests.servers.script import SAYINGS

#: The names of the APIs in docs/backends/stream-upgrade.md, and their paths.
ROUTES = {"Chat Completions": "/chat/completions", "Completions": "/completions", "Responses": "/responses", "Messages": "/messages"}

PARAMETERS: Json = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FIND: Json = {"name": "find", "description": "Finds.", "parameters": PARAMETERS}

#: The tool in the form of each API, and the setting that requires a call of it.
TOOLS: Json = {"tools": [{"type": "function", "function": FIND}]}
NAMED: Json = {"tool_choice": {"type": "function", "function": {"name": "find"}}}
RESPONSES_TOOLS: Json = {"tools": [{"type": "function", **FIND}]}
RESPONSES_NAMED: Json = {"tool_choice": {"type": "function", "name": "find"}}
MESSAGES_TOOLS: Json = {"tools": [{"name": "find", "description": "Finds.", "input_schema": PARAMETERS}]}
MESSAGES_NAMED: Json = {"tool_choice": {"type": "tool", "name": "find"}}

#: Random weights with a schema reach its end only with a penalty. Without it they write spaces forever.
PENALTY: Json = {"parallel_tool_calls": False, "frequency_penalty": 2}
FORCED: Json = {"tools": [{"type": "function", "function": {**FIND, "strict": True}}], **PENALTY, "max_tokens": 400}
RESPONSES_FORCED: Json = {"tools": [{"type": "function", **FIND, "strict": True}], **PENALTY, "max_output_tokens": 400}

ASKED = "Say something about the sky and the sea."
HEAD: Json = {"model": "tiny", "messages": [{"role": "user", "content": ASKED}], "max_tokens": 120}
COMPLETIONS: Json = {"model": "tiny", "prompt": ASKED, "max_tokens": 120}
RESPONSES: Json = {"model": "tiny", "input": ASKED, "max_output_tokens": 120}

#: The additional fields that a Dynamo client can request.
TOLD: Json = {"nvext": {"extra_fields": ["worker_id", "timing", "completion_token_ids"]}}


def of_vllm(saying: str | None = None, *, head: Json = HEAD, thinking: bool = False, **more: object) -> Json:
    """Returns a request that vLLM answers with `saying`, because a grammar allows nothing else. Without it, the weights decide."""
    held = {} if saying is None else {"structured_outputs": {"choice": [saying]}}
    return {**head, "temperature": 0, "seed": 1, "chat_template_kwargs": {"enable_thinking": thinking}, **held, **more}


def message_of_vllm(saying: str | None = None, *, thinking: bool = False, **more: object) -> Json:
    """Returns a request as `of_vllm` does, but for Messages, where only JSON can be enforced. So `saying` is answered with quotes."""
    schema = {"type": "string", "pattern": re.sub(r"[{}.?]", r"\\\g<0>", saying or "")}
    held = {} if saying is None else {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    return {**HEAD, "temperature": 0, "chat_template_kwargs": {"enable_thinking": thinking}, **held, **more}


def of_dynamo(saying: str, *, head: Json = HEAD, **more: object) -> Json:
    """Returns a request that the mocker answers with the text of this name in its script."""
    nvext = {"annotations": [f"output_replay_id:{saying}"]}
    return {**head, **more, "nvext": {**nvext, **more.get("nvext", {})}}  # type: ignore[dict-item]


VLLM: Mapping[str, Mapping[str, Json]] = {
    "Chat Completions": {
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
    },
    "Completions": {
        "text": of_vllm(SAYINGS["text"], head=COMPLETIONS),
        "cut": of_vllm(head=COMPLETIONS, max_tokens=8),
        "stop": of_vllm(SAYINGS["text"], head=COMPLETIONS, stop=["sea"]),
        "echo": of_vllm(SAYINGS["text"], head=COMPLETIONS, echo=True),
        "two": of_vllm(head=COMPLETIONS, max_tokens=4, temperature=1, n=2),
        "two prompts": of_vllm(SAYINGS["text"], head={**COMPLETIONS, "prompt": [ASKED, "The sea"]}),
        "logprobs": of_vllm(SAYINGS["text"], head=COMPLETIONS, logprobs=2),
        "echo with logprobs": of_vllm(SAYINGS["text"], head=COMPLETIONS, echo=True, logprobs=2),
        "token ids": of_vllm(SAYINGS["text"], head=COMPLETIONS, return_token_ids=True),
    },
    "Responses": {
        "text": of_vllm(SAYINGS["text"], head=RESPONSES),
        "cut": of_vllm(head=RESPONSES, max_output_tokens=8),
        "stop": of_vllm(SAYINGS["text"], head=RESPONSES, stop=["sea"]),
        "logprobs": of_vllm(SAYINGS["text"], head=RESPONSES, include=["message.output_text.logprobs"], top_logprobs=2),
        "call": of_vllm(SAYINGS["call"], head=RESPONSES, **RESPONSES_TOOLS),
        "parallel calls": of_vllm(SAYINGS["calls"], head=RESPONSES, **RESPONSES_TOOLS),
        "call, cut": of_vllm(SAYINGS["call"], head=RESPONSES, **RESPONSES_TOOLS, max_output_tokens=20),
        "text and call": of_vllm("I look. " + SAYINGS["call"], head=RESPONSES, **RESPONSES_TOOLS),
        "required call": of_vllm(head=RESPONSES, **RESPONSES_FORCED, tool_choice="required"),
        "named call": of_vllm(head=RESPONSES, **RESPONSES_FORCED, **RESPONSES_NAMED),
        "reasoning": of_vllm(SAYINGS["reasoning"].removeprefix("<think>"), head=RESPONSES, thinking=True),
        "reasoning and call": of_vllm(
            SAYINGS["reasoning and call"].removeprefix("<think>"), head=RESPONSES, thinking=True, **RESPONSES_TOOLS
        ),
        "reasoning, cut": of_vllm("I look it up.", head=RESPONSES, thinking=True, max_output_tokens=4),
    },
    "Messages": {  # They have no penalty, so a forced call might never end.
        "text": message_of_vllm(SAYINGS["text"]),
        "cut": message_of_vllm(max_tokens=8),
        "stop": message_of_vllm(SAYINGS["text"], stop_sequences=["sea"]),
        "call": message_of_vllm(SAYINGS["call"], **MESSAGES_TOOLS),
        "parallel calls": message_of_vllm(SAYINGS["calls"], **MESSAGES_TOOLS),
        "call, cut": message_of_vllm(SAYINGS["call"], **MESSAGES_TOOLS, max_tokens=24),
        "reasoning": message_of_vllm(SAYINGS["reasoning"].removeprefix("<think>"), thinking=True),
        "reasoning and call": message_of_vllm(SAYINGS["reasoning and call"].removeprefix("<think>"), thinking=True, **MESSAGES_TOOLS),
        "reasoning, cut": message_of_vllm("I look it up.", thinking=True, max_tokens=4),
    },
}

DYNAMO: Mapping[str, Mapping[str, Json]] = {
    "Chat Completions": {
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
    },
    "Completions": {
        "text": of_dynamo("text", head=COMPLETIONS),
        "cut": of_dynamo("text", head=COMPLETIONS, max_tokens=8),
        "nvext": of_dynamo("text", head=COMPLETIONS, **TOLD),
        "echo": of_dynamo("text", head=COMPLETIONS, echo=True),
        "two": of_dynamo("text", head=COMPLETIONS, n=2),
        "two prompts": of_dynamo("text", head={**COMPLETIONS, "prompt": [ASKED, "The sea"]}),
        "logprobs": of_dynamo("text", head=COMPLETIONS, logprobs=2),
    },
    "Responses": {
        "text": of_dynamo("text", head=RESPONSES),
        "cut": of_dynamo("text", head=RESPONSES, max_output_tokens=8),
        "nvext": of_dynamo("text", head=RESPONSES, nvext={"extra_fields": ["worker_id", "timing"]}),
        "call": of_dynamo("call", head=RESPONSES, **RESPONSES_TOOLS),
        "parallel calls": of_dynamo("calls", head=RESPONSES, **RESPONSES_TOOLS),
        "required call": of_dynamo("call", head=RESPONSES, **RESPONSES_TOOLS, tool_choice="required"),
        "named call": of_dynamo("call", head=RESPONSES, **RESPONSES_TOOLS, **RESPONSES_NAMED),
        "reasoning": of_dynamo("reasoning", head=RESPONSES),
        "reasoning and call": of_dynamo("reasoning and call", head=RESPONSES, **RESPONSES_TOOLS),
        "reasoning, cut": of_dynamo("reasoning, cut", head=RESPONSES),
    },
    "Messages": {
        "text": of_dynamo("text"),
        "cut": of_dynamo("text", max_tokens=8),
        "call": of_dynamo("call", **MESSAGES_TOOLS),
        "parallel calls": of_dynamo("calls", **MESSAGES_TOOLS),
        "required call": of_dynamo("call", **MESSAGES_TOOLS, tool_choice={"type": "any"}),
        "named call": of_dynamo("call", **MESSAGES_TOOLS, **MESSAGES_NAMED),
        "reasoning": of_dynamo("reasoning"),
        "reasoning and call": of_dynamo("reasoning and call", **MESSAGES_TOOLS),
        "reasoning, cut": of_dynamo("reasoning, cut"),
    },
}

#: Cases by the installation that they need.
CASES = {"vllm": VLLM, "dynamo": DYNAMO}
