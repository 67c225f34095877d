"""Fixtures: real engine processes, and a small toolset for requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pytest_agentbench.lib.process import Child
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.records import Json
from tests.engines import engine

StartEngine = Callable[..., Child]
Ask = Callable[..., httpx.Response]


@pytest.fixture
def start_engine(tmp_path: Path) -> Iterator[StartEngine]:
    """Starts an engine with the given settings. `ready` waits for its port. All engines are stopped at the end."""
    children: list[Child] = []

    def start(**config: Any) -> Child:
        children.append(Child("pytest_agentbench.engine", config, tmp_path / f"engine-{len(children)}.log"))
        return children[-1]

    yield start
    for child in children:
        child.stop()


@pytest.fixture
def serve(start_engine: StartEngine) -> Callable[..., str]:
    """Starts an engine with the given settings and returns its address when it serves."""
    return lambda **config: f"http://127.0.0.1:{start_engine(**config).ready(Listening).port}"


@pytest.fixture(scope="session")
def lexical(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a shared engine with default settings. Tests may only change its counters."""
    with engine(tmp_path_factory.mktemp("engine")) as url:
        yield url


@pytest.fixture
def ask() -> Ask:
    """Posts one chat request: `ask(url, "text", key=value)`."""

    def post(url: str, text: str = "Hello", **body: Any) -> httpx.Response:
        request = {"model": "embedded-lexical", "messages": [{"role": "user", "content": text}], **body}
        return httpx.post(f"{url}/v1/chat/completions", json=request, timeout=30)

    return post


def _tool(name: str, description: str, required: list[str], **properties: Json) -> Json:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


@pytest.fixture
def tools() -> list[Json]:
    """Five tools of a bank."""
    accounts = {"type": "string", "enum": ["checking", "savings", "joint"], "description": "Kind of account."}
    return [
        _tool("get_balance", "Tells how much money is in an account: its balance.", ["account_type"], account_type=accounts),
        _tool(
            "transfer_funds",
            "Moves or sends money from one account to another account or person.",
            ["from_account", "to_account", "amount"],
            from_account={"type": "string", "description": 'Account the money is taken from: "checking", "savings" or "joint".'},
            to_account={"type": "string", "description": 'Account ("checking", "savings", "joint") or person that gets it.'},
            amount={"type": "number", "description": "Dollars to move."},
            transfer_date={"type": "string", "description": "Day of the transfer."},
        ),
        _tool(
            "report_card",
            "Blocks a debit or credit card that was lost or stolen.",
            ["card_type", "incident"],
            card_type={"type": "string", "enum": ["debit", "credit"]},
            incident={"type": "string", "enum": ["lost", "stolen"]},
            last_four={"type": "string", "description": "Last four digits of the card."},
        ),
        _tool(
            "calculate_loan",
            "Calculates the monthly payment of a loan.",
            ["loan_amount", "interest_rate", "term_months"],
            loan_amount={"type": "number"},
            interest_rate={"type": "number", "description": "Percent per year."},
            term_months={"type": "integer"},
        ),
        _tool(
            "find_branch",
            "Finds the nearest branch or cash machine.",
            ["location"],
            location={"type": "string", "description": "City or neighborhood."},
            open_on={"type": "string", "description": "Day on which it has to be open."},
        ),
    ]
