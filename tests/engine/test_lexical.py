"""The policy `lexical`: which tools it calls, when, and the texts of its answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_agentbench.engine.chat import ReplyCall, parse_chat
from pytest_agentbench.engine.lexical.policy import Lexical, split_clauses
from pytest_agentbench.records import Json

Messages = list[Json]


def _calls(tools: list[Json], messages: str | Messages, **extra: Any) -> list[ReplyCall]:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return list(Lexical().reply({"messages": messages, "tools": tools, **extra}).tool_calls)


def _call_message(*names: str) -> Json:
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in names]
    return {"role": "assistant", "content": None, "tool_calls": calls}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "Good morning! Could you move $1,250.50 from my checking account to savings on Friday? Thanks a lot.",
            [
                ReplyCall(
                    "transfer_funds", {"from_account": "checking", "to_account": "savings", "amount": 1250.5, "transfer_date": "friday"}
                )
            ],
        ),
        (
            "My credit card ending in 9023 was stolen on the train, so please block it. What's the balance of our joint account?",
            [
                ReplyCall("report_card", {"card_type": "credit", "incident": "stolen", "last_four": "9023"}),
                ReplyCall("get_balance", {"account_type": "joint"}),
            ],
        ),
        (
            "Calculate the payment for a loan of 25k at 6.5% over 5 years, and where is the nearest branch in Denver that's open Saturday?",
            [
                ReplyCall("calculate_loan", {"loan_amount": 25000, "interest_rate": 6.5, "term_months": 60}),
                ReplyCall("find_branch", {"location": "Denver", "open_on": "saturday"}),
            ],
        ),
        (
            "Send 300 dollars to Maria Lopez from my savings account.",
            [ReplyCall("transfer_funds", {"from_account": "savings", "to_account": "Maria Lopez", "amount": 300})],
        ),
        (
            "Tell me the balance of my checking account and the balance of my savings account.",
            [ReplyCall("get_balance", {"account_type": "checking"}), ReplyCall("get_balance", {"account_type": "savings"})],
        ),
        ("You have been most helpful, have a lovely weekend!", []),
    ],
)
def test_finds_tools_and_arguments(tools: list[Json], message: str, expected: list[ReplyCall]) -> None:
    """The calls for a message are those it requests, in the same order."""
    assert expected == _calls(tools, message)


def test_calls_two_per_turn_and_then_answers(tools: list[Json]) -> None:
    """Calls since the last user message are not repeated. After the last one, the answer lists them."""
    text = "Find the nearest branch in Boston. Tell me the balance of my savings account. My debit card was lost, please block that card."
    messages: Messages = [{"role": "user", "content": text}]
    first = [call.name for call in _calls(tools, messages)]
    messages += [_call_message(*first), {"role": "tool", "tool_call_id": "find_branch", "content": "Main Street"}]
    second = [call.name for call in _calls(tools, messages)]
    messages.append(_call_message(*second))
    closing = Lexical().reply({"messages": messages, "tools": tools})

    assert (["find_branch", "get_balance"], ["report_card"]) == (first, second)
    assert () == closing.tool_calls
    assert "find branch, get balance, report card" in closing.text


def test_a_new_message_is_a_new_exchange(tools: list[Json]) -> None:
    """A request that is repeated in a later message is carried out again."""
    wish = {"role": "user", "content": "What is the balance of my savings account?"}

    assert ["get_balance"] == [call.name for call in _calls(tools, [wish, _call_message("get_balance"), wish])]


def test_reads_what_the_user_said_last(tools: list[Json]) -> None:
    """Consecutive user messages are read as one. Messages before an answer are ignored."""
    balance, branch = (
        {"role": "user", "content": text} for text in ("What is the balance of my savings account?", "Find a branch in Boston.")
    )
    answer = {"role": "assistant", "content": "Sure."}

    assert ["get_balance", "find_branch"] == [call.name for call in _calls(tools, [balance, branch])]
    assert ["find_branch"] == [call.name for call in _calls(tools, [balance, answer, branch])]


def test_calls_of_one_tool_are_counted(tools: list[Json]) -> None:
    """A tool that is requested twice is called a second time after its first call."""
    wish = {"role": "user", "content": "Tell me the balance of my checking account and the balance of my savings account."}
    still_open = _calls(tools, [wish, _call_message("get_balance")])

    assert [ReplyCall("get_balance", {"account_type": "savings"})] == still_open


def test_clauses_about_the_same_thing_are_one_call(tools: list[Json]) -> None:
    """Two clauses about the same thing become one call with the arguments of both."""
    message = "Transfer $40 from checking to savings. The transfer of the money between the accounts should be made tomorrow."
    expected = {"from_account": "checking", "to_account": "savings", "amount": 40, "transfer_date": "tomorrow"}

    assert [ReplyCall("transfer_funds", expected)] == _calls(tools, message)


def test_obeys_the_request(tools: list[Json]) -> None:
    """`parallel_tool_calls` and `tool_choice` are obeyed, and without tools there is no call."""
    message = "Find the nearest branch in Boston. Tell me the balance of my savings account."
    named = {"type": "function", "function": {"name": "report_card"}}

    assert ["find_branch"] == [call.name for call in _calls(tools, message, parallel_tool_calls=False)]
    assert [] == _calls(tools, message, tool_choice="none") == _calls([], message)
    assert [ReplyCall("report_card", {"card_type": "debit", "incident": "lost"})] == _calls(tools, message, tool_choice=named)
    assert 1 == len(_calls(tools, "Good bye!", tool_choice="required"))


def test_text_without_a_tool_is_short(tools: list[Json]) -> None:
    """A message that matches no tool gets a question, and one without tools a confirmation."""
    puzzled = Lexical().reply({"messages": [{"role": "user", "content": "Lovely weather!"}], "tools": tools}).text
    plain = Lexical().reply({"messages": [{"role": "user", "content": "Lovely weather!"}]}).text

    assert puzzled.startswith("I could not find anything I can do about this.")
    assert plain.startswith('You wrote "Lovely weather!".')


def test_clauses_end_at_signs_and_conjunctions() -> None:
    """Short clauses are joined with their neighbour. Dates, numbers and names are not split at commas."""
    message = (
        "Hi! Pay $1,200 to Acme on May 3, 2026 from my savings account, then check my savings balance; also find a branch in Austin, TX."
    )
    clauses = [message[clause.start : clause.end].strip() for clause in split_clauses(message)]

    assert [
        "Hi! Pay $1,200 to Acme on May 3, 2026 from my savings account,",
        "then check my savings balance;",
        "also find a branch in Austin, TX.",
    ] == clauses


def test_serves_the_tools_of_the_banking_suite() -> None:
    """With the toolset of the banking suite, plain requests lead to the right tools."""
    file = Path(__file__).parents[2] / "scenarios" / "banking" / "tools.json"
    tools = [{"type": "function", "function": {"name": tool["title"], "parameters": tool, **tool}} for tool in json.loads(file.read_text())]
    message = "Please dispute the $89.99 charge from Netflix as unauthorized, and change my email address to jo@example.org."
    calls = {call.name: call.arguments for call in _calls(tools, message)}

    assert ["initiate_transaction_dispute", "update_contact_information"] == list(calls)
    assert {"merchant": "Netflix", "amount": 89.99, "reason": "unauthorized"} == calls["initiate_transaction_dispute"]
    assert {"field": "email", "new_value": "jo@example.org"} == calls["update_contact_information"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
KINDS = st.sampled_from(["string", "number", "integer", "boolean", "array", "object", "null", ["string", "null"], [], 7])
SCHEMAS = st.fixed_dictionaries(
    {},
    optional={
        "type": KINDS,
        "enum": st.lists(JSON, max_size=3) | JSON,
        "description": JSON,
        "default": JSON,
        "items": st.fixed_dictionaries({}, optional={"type": KINDS}) | JSON,
        "anyOf": st.lists(st.fixed_dictionaries({"type": KINDS}), max_size=2) | JSON,
    },
)
NAMES = st.sampled_from(
    ["from_account", "toCity", "amount", "min_amount", "start_date", "time", "term_years", "payee", "query", "currency", "x", ""]
)
PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        "properties": st.dictionaries(NAMES | st.text(max_size=8), SCHEMAS | JSON, max_size=4) | JSON,
        "required": st.lists(NAMES | JSON, max_size=3) | JSON,
    },
)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {"name": st.text(min_size=1, max_size=12)}, optional={"description": JSON, "parameters": PARAMETERS}
            ),
        }
    ),
    max_size=3,
)
WORDS = st.sampled_from(
    [
        "move",
        "$1,200.50",
        "to",
        "from",
        "Acme Corp",
        "and",
        "then",
        "6.5%",
        "5 years",
        "on",
        "May 3, 2026",
        "4471",
        "ending in 4471",
        "3 pm",
        "€5k",
        "x",
        "amount",
        ".",
    ]
)
TEXTS = st.text(max_size=60) | st.lists(WORDS | st.text(max_size=4), max_size=12).map(" ".join)


@given(text=TEXTS, tools=TOOLS, choice=st.sampled_from(["auto", "required"]))
def test_never_fails_on_odd_requests(text: str, tools: list[Json], choice: str) -> None:
    """Every request that passes the server's checks gets tools of the request and arguments that are valid JSON."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "tools": tools, **({"tool_choice": choice} if tools else {})}
    request = parse_chat(json.dumps(body).encode(), "m")
    reply = Lexical().reply(request)

    assert {call.name for call in reply.tool_calls} <= {tool["function"]["name"] for tool in tools}
    assert bool(reply.text) != bool(reply.tool_calls)
    assert json.loads(json.dumps([call.arguments for call in reply.tool_calls])) == [call.arguments for call in reply.tool_calls]
    assert reply == Lexical().reply(request)
