"""Labels that are guessed from keywords, compared with values of the original code."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.records import Json
from pytest_agentbench.suites.datasets.agent_leaderboard_hub import expected_calls


def _tool(title: str, description: str | None, **properties: Json) -> Json:
    return {"title": title, "description": description, "properties": properties, "required": list(properties)}


TOOLS = [
    _tool("get_account_balance", "Retrieves account balance."),
    _tool("transfer_funds", "Move money between accounts."),
    _tool("get_exchange_rates", "Retrieves currency rates."),
    _tool("schedule_appointment", "Books a branch visit."),
]


@pytest.mark.parametrize(
    ("goals", "derived"),
    [
        (["Check my balance"], ["get_account_balance", "transfer_funds"]),  # "accounts" is in the second's description
        (["Transfer $5 to savings"], ["transfer_funds"]),
        (["Get EUR exchange rates"], []),
        (["Check the balance then transfer money"], ["get_account_balance", "transfer_funds"]),
        ([], []),
    ],
)
def test_vectors(goals: list[str], derived: list[str]) -> None:
    """The guessed tools are those of the original for these goals, each once."""
    assert derived == [call["tool"] for call in expected_calls(goals, TOOLS)]


def test_a_tool_is_expected_for_its_first_goal() -> None:
    """A tool that several goals ask for is expected once, for the first of these goals."""
    calls = expected_calls(["TRANSFER it", "check the balance", "transfer more"], TOOLS)

    assert [("transfer_funds", "TRANSFER it"), ("get_account_balance", "check the balance")] == [
        (call["tool"], call["goal"]) for call in calls
    ]


def test_keywords_match_inside_words() -> None:
    """Keywords are substrings: "block" is in "unblock" and "freeze" in "unfreeze", so either goal expects both tools."""
    tools = [_tool("lock_it", ""), _tool("unfreeze_it", None)]

    assert ["lock_it", "unfreeze_it"] == [call["tool"] for call in expected_calls(["Unblock it"], tools)]
    assert ["lock_it", "unfreeze_it"] == [call["tool"] for call in expected_calls(["Block it"], tools)]


@pytest.mark.parametrize(
    ("schema", "placeholder"),
    [
        ({"type": "string"}, "<x>"),
        ({}, "<x>"),
        ({"type": "integer"}, 0),
        ({"type": "number"}, 0.0),
        ({"type": "boolean"}, True),
        ({"type": "array"}, None),
        ({"type": ["string", "null"]}, None),
    ],
)
def test_placeholders(schema: Json, placeholder: Any) -> None:
    """Required parameters get placeholders by type. Optional parameters get none."""
    tool = _tool("transfer_funds", "", x=schema)
    tool["properties"]["optional"] = {"type": "string"}

    (call,) = expected_calls(["transfer"], [tool])

    assert {"x": placeholder} == call["parameters"]
    assert type(placeholder) is type(call["parameters"]["x"])


def test_a_required_name_without_a_schema_is_a_string() -> None:
    """A required parameter without a schema is treated as a string."""
    (call,) = expected_calls(["transfer"], [{"title": "transfer", "description": "", "properties": {}, "required": ["to"]}])

    assert {"tool": "transfer", "parameters": {"to": "<to>"}, "goal": "transfer"} == call
