"""The simulated bank that executes the twenty tools of the banking suite."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pytest_agentbench.suites.folder import load_suite
from pytest_agentbench.suites.suite import Suite
from pytest_agentbench.tools.factory import load_tools
from pytest_agentbench.tools.toolbox import Toolbox
from tests.project import ROOT


def banking() -> Suite:
    return load_suite(ROOT / "scenarios" / "banking" / "suite.yaml")


@asynccontextmanager
async def bank(suite: Suite) -> AsyncIterator[Toolbox]:
    tools = load_tools(suite.tools_of("executed"), suite.folder, suite.scenarios)
    async with tools.opened(suite.scenarios[0]) as source:
        yield Toolbox(suite.scenarios[0].tools, source=source)


@pytest.mark.slow
async def test_expected_calls_succeed() -> None:
    """The bank has all tools of the data. Each call that a label expects succeeds, so a right decision is never refused."""
    suite = banking()
    for scenario in suite.scenarios:
        async with bank(suite) as tools:
            for label in scenario.expected:
                await tools.call(label["tool"], json.dumps(label["parameters"]), 1)
            tools.settle()

            assert [] == [(scenario.id, call.name, call.detail, call.refusal) for call in tools.calls if call.problem or call.refusal]

    assert 20 == len({label["tool"] for scenario in suite.scenarios for label in scenario.expected})


async def test_sums_are_right() -> None:
    """Money that leaves an account arrives at another one, to the cent. Impossible transfers are refused and change nothing."""
    async with bank(banking()) as tools:
        before = tools.source.state()
        for amount, target in ((0.29, "savings"), (0.2, "savings 4471"), (12.34, "Ann"), (1e9, "Ann"), (5, "checking")):
            await tools.call("transfer_funds", json.dumps({"from_account": "checking", "to_account": target, "amount": amount}), 1)
        tools.settle()

    assert before is not None and tools.final_state is not None
    after = tools.final_state
    assert (-1283, 49) == tuple(after["accounts"][name] - before["accounts"][name] for name in ("checking", "savings"))
    assert sum(before["accounts"].values()) == sum(after["accounts"].values()) + after["paid_out"]["Ann"]
    assert [False, False, False, True, True] == [bool(call.refusal) for call in tools.calls]


async def test_a_loan_is_paid_off() -> None:
    """The monthly payments sum to the total cost of a loan, by the usual formula.

    Without interest, the payment is the loan divided by the months.
    """
    async with bank(banking()) as tools:
        said = json.loads(
            await tools.call("calculate_loan_payment", '{"loan_amount": 145000, "interest_rate": 7.25, "term_months": 84}', 1)
        )
        free = json.loads(await tools.call("calculate_loan_payment", '{"loan_amount": 1200, "interest_rate": 0, "term_months": 12}', 1))

    monthly = 145000 * (r := 7.25 / 1200) / (1 - (1 + r) ** -84)
    assert (round(monthly, 2), round(said["monthly_payment"] * 84, 2)) == (said["monthly_payment"], said["total_cost"])
    assert (100.0, 0.0) == (free["monthly_payment"], free["total_interest"])
