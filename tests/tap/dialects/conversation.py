"""The same conversation in all APIs: a question, a tool call, its result and an answer."""

from __future__ import annotations

from pytest_agentbench.records import Json

CALL: Json = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"item": "tea"}'}}
QUESTION: Json = {"role": "user", "content": "What is tea?"}
THINKING: Json = {"role": "assistant", "content": "I look.", "reasoning_content": "Tea, hm.", "tool_calls": [CALL]}
FOUND: Json = {"role": "tool", "tool_call_id": "c1", "content": "a leaf"}
ANSWER: Json = {"role": "assistant", "content": "A leaf."}
RULES: Json = {"role": "system", "content": "Be brief."}
IMAGE: Json = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}
SEARCH: Json = {"type": "web_search_call", "id": "w1", "status": "completed"}


def text(value: str, kind: str = "text") -> Json:
    return {"type": kind, "text": value}


REQUESTS: dict[str, Json] = {
    "/chat/completions": {"messages": [RULES, QUESTION, THINKING, FOUND]},
    "/messages": {
        "system": [text("Be brief.")],
        "messages": [
            QUESTION,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Tea, hm.", "signature": "s"},
                    text("I look."),
                    {"type": "tool_use", "id": "c1", "name": "find", "input": {"item": "tea"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [text("a leaf")]}]},
        ],
    },
    "/responses": {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [text("What is tea?", "input_text")]},
            {"type": "reasoning", "id": "r1", "summary": [text("Tea, hm.", "summary_text")]},
            {"type": "message", "role": "assistant", "content": [text("I look.", "output_text")]},
            {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"item": "tea"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "a leaf"},
        ],
    },
}

REPLIES: dict[str, Json] = {
    "/chat/completions": {"choices": [{"message": ANSWER}, {"message": {"role": "assistant", "content": "another choice"}}]},
    "/completions": {"choices": [{"text": "A leaf."}]},
    "/messages": {"type": "message", "role": "assistant", "content": [text("A leaf.")]},
    "/responses": {"output": [{"type": "message", "role": "assistant", "content": [text("A leaf.", "output_text")]}]},
}
