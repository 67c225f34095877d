"""Guesses expected tool calls from keywords, as NVIDIA's NeMo Agent Toolkit does for the agent leaderboard.

Such labels lack some calls and contain wrong ones, cover only banking, and have placeholders as parameters. Data with them have the
label source `heuristic-v1`, which distinguishes them from data with labels made by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_agentbench.records import Json

LABEL_SOURCE = "heuristic-v1"

#: A goal that contains a keyword expects each tool whose title or description contains one of its words.
KEYWORDS: Mapping[str, Sequence[str]] = {
    "balance": ("balance", "check", "account"),
    "transfer": ("transfer", "send", "move", "pay"),
    "transaction": ("transaction", "history", "statement"),
    "payment": ("payment", "pay", "bill"),
    "card": ("card", "credit", "debit"),
    "loan": ("loan", "mortgage", "credit"),
    "dispute": ("dispute", "challenge", "report"),
    "limit": ("limit", "increase", "decrease"),
    "block": ("block", "freeze", "lock"),
    "unblock": ("unblock", "unfreeze", "unlock"),
    "statement": ("statement", "report", "summary"),
    "contact": ("contact", "phone", "email", "address"),
    "beneficiary": ("beneficiary", "recipient", "payee"),
    "standing": ("standing", "recurring", "automatic"),
    "wire": ("wire", "international", "swift"),
}


def expected_calls(goals: Sequence[str], tools: Sequence[Json]) -> list[Json]:
    """Returns an expected call `{tool, parameters, goal}` for each tool that a goal seems to need. `goal` is the first of these goals.

    Tools are `{title, description, properties, required}`; their properties are objects, not JSON text.
    """
    calls: dict[str, Json] = {}
    for goal in goals:
        for tool in tools:
            if tool["title"] not in calls and _asks_for(goal, tool):
                calls[tool["title"]] = {"tool": tool["title"], "parameters": _placeholders(tool), "goal": goal}
    return list(calls.values())


def _asks_for(goal: str, tool: Json) -> bool:
    goal, title, description = goal.lower(), tool["title"].lower(), (tool.get("description") or "").lower()
    return any(keyword in goal and any(word in title or word in description for word in words) for keyword, words in KEYWORDS.items())


def _placeholders(tool: Json) -> Json:
    properties = tool.get("properties") or {}
    return {name: _placeholder(name, properties.get(name) or {}) for name in tool.get("required") or ()}


def _placeholder(name: str, schema: Json) -> Any:
    kind = schema.get("type", "string")
    values = {"string": f"<{name}>", "integer": 0, "number": 0.0, "boolean": True}
    return values.get(kind) if isinstance(kind, str) else None
