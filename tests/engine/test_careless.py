"""The policy `careless` makes errors at a given rate, and the same ones with the same seed."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_agentbench.engine.careless import Careless
from pytest_agentbench.engine.lexical.policy import Lexical
from pytest_agentbench.lib.wire import Listening
from pytest_agentbench.records import Json

TOOLS: list[Json] = [
    {"type": "function", "function": {"name": name, "description": description, "parameters": {"type": "object", "properties": {}}}}
    for name, description in (("find_lamp", "Finds a lamp."), ("order_chair", "Orders a chair."), ("return_table", "Takes a table back."))
]


def request(number: int, **keys: Any) -> Json:
    return {"messages": [{"role": "user", "content": f"Customer {number} wants to find a lamp."}], "tools": TOOLS, **keys}


def wrong(error_rate: float, seed: int, customers: int = 400, times: int = 1) -> list[bool]:
    """Returns which requests got another tool than with the policy `lexical`. Each request is sent several times."""
    policy = Careless(error_rate, seed)
    right = Lexical().reply(request(0)).tool_calls[0].name
    return [policy.reply(request(number)).tool_calls[0].name != right for _ in range(times) for number in range(customers)]


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 1.0])
def test_the_rate(rate: float) -> None:
    """The error rate is the share of wrong calls. The tolerance is four standard errors of 400 calls."""
    assert sum(wrong(rate, 1)) / 400 == pytest.approx(rate, abs=4 * (rate * (1 - rate) / 400) ** 0.5 + 1e-9)


def test_seeds_and_trials() -> None:
    """The same seed makes the same errors. Another seed, or a second trial, makes other errors."""
    first = wrong(0.3, 1, times=2)

    assert first == wrong(0.3, 1, times=2)
    assert first != wrong(0.3, 2, times=2)
    assert first[:400] != first[400:]


def test_order_does_not_matter() -> None:
    """Requests of other scenarios in between do not change the errors, so neither does concurrency."""
    one, other = Careless(0.5, 1), Careless(0.5, 1)
    for number in range(50):
        other.reply(request(1000 + number))

    assert [one.reply(request(number)) for number in range(20)] == [other.reply(request(number)) for number in reversed(range(20))][::-1]


def test_without_tools_there_is_nothing_to_get_wrong() -> None:
    """Text, and a call of the only tool, are as with the policy `lexical`."""
    text = request(1, tools=[])
    single = request(1, tools=TOOLS[:1])

    assert Lexical().reply(text) == Careless(1.0, 1).reply(text)
    assert Lexical().reply(single) == Careless(1.0, 1).reply(single)


def test_an_error_rate_belongs_to_it(start_engine: Any) -> None:
    """An error rate is refused for other policies, which would ignore it."""
    child = start_engine(policy="lexical", error_rate=0.1)

    with pytest.raises(Exception, match="error_rate is only allowed if policy is 'careless'"):
        child.ready(Listening)
