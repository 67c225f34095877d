"""A program that is an agent, for suites of the tests and of the reference runs."""

from __future__ import annotations

#: An agent in Python that needs nothing but its standard library.
PLAIN = """
import json, os, sys, urllib.request

scenario = json.load(sys.stdin)
shown = ("name", "description", "parameters")
tools = [{"type": "function", "function": {name: tool[name] for name in shown}} for tool in scenario["tools"]]
answers = {tool["name"]: tool["response"] for tool in scenario["tools"]}
messages = scenario["messages"]
while True:
    body = {"model": scenario["model"], "messages": messages, "tools": tools, **scenario["sampling"]}
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), headers)
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(message)
    if not message.get("tool_calls"):
        break
    for call in message["tool_calls"]:
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": answers[call["function"]["name"]]})
print(message["content"])
print("a line for the log", file=sys.stderr)
"""
