"""Limits of calls, tokens and cost: what is counted, and what happens to further calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_agentbench.errors import InfraError, LimitReached
from pytest_agentbench.llm.client import failure
from pytest_agentbench.metrics.terms import TokenPrices
from pytest_agentbench.records import LLMCall
from pytest_agentbench.tap.budgets import Account
from pytest_agentbench.tap.client import TapControl, Taps
from pytest_agentbench.tap.protocol import NO_LIMITS, OpenAddress, RolloutAccount, SpendingLimits
from tests.tap.peers import Message, Tap, agent, answering, backend, request, said

PRICES = TokenPrices("USD", input=10.0, output=1000.0)


RecordOfCall = Callable[[], LLMCall | None]


def under_way() -> None:
    return None


def call(prompt: int | None = 100, output: int | None = 10, **keys: Any) -> RecordOfCall:
    return lambda: LLMCall(0, 0, 1, prompt_tokens=prompt, completion_tokens=output, **keys)


@pytest.mark.parametrize(
    ("limits", "spent", "refusal"),
    [
        (NO_LIMITS, [call(), call()], ""),
        (SpendingLimits(calls=2), [call()], ""),
        (SpendingLimits(calls=2), [call(), under_way], "calls: the rollout may use 2, and used 2"),
        (SpendingLimits(tokens=111), [call()], ""),
        (SpendingLimits(tokens=110), [call()], "tokens: the rollout may use 110, and used 110"),
        (SpendingLimits(tokens=110), [call(None, None), under_way], ""),  # the numbers of tokens are unknown
        (SpendingLimits(cost=0.02), [call()], ""),
        (SpendingLimits(cost=0.02), [call(), call(cached_tokens=50)], "cost: the rollout may use 0.02, and used 0.022"),
        (SpendingLimits(calls=9, tokens=9, cost=9), [call()], "tokens: the rollout may use 9, and used 110"),
    ],
)
def test_limits(limits: SpendingLimits, spent: list[RecordOfCall], refusal: str) -> None:
    """When a limit is reached, no further call is allowed.

    Calls in flight already count as calls, and their tokens count when they have ended.
    """
    assert refusal == Account("the rollout", limits, [(each, PRICES) for each in spent]).refusal()


async def test_a_call_too_many(tap: Tap) -> None:
    """A call beyond a limit never reaches the backend.

    The agent gets a 403 of the tap, which its client treats as a limit, and it is recorded.
    """
    heard: list[Message] = []
    async with backend(answering(said("yes"), requests=heard)) as url:
        await tap.point_at(f"{url}/v1")
        shared = RolloutAccount("one", SpendingLimits(calls=3))
        own = await tap.open(account=shared)
        role = await tap.open(role="search", limits=SpendingLimits(calls=1), account=shared)
        answers = []
        for id in (role, role, own, own, own):
            async with agent(tap.port) as caller:
                answers.append(await caller.ask(request(id)))
        roles, owns = await tap.close(role), await tap.close(own)

    assert ([200, 403, 200, 200, 403], 3) == ([each.status for each in answers], len(heard))
    assert ["", "calls: the role 'search' may use 1, and used 1"] == [each.error for each in roles]
    assert ["", "", "calls: the rollout may use 3, and used 3"] == [each.error for each in owns]
    assert ("limit", "search") == (roles[1].error_kind, roles[1].role)
    reached = failure(answers[1].status, answers[1].body)
    assert (LimitReached, roles[1].error) == (type(reached), str(reached))


async def test_tokens_of_relayed_calls_count(tap: Tap) -> None:
    """The tokens of a call count when it has ended, and the next call is refused."""
    async with backend(answering(said("yes"))) as url:
        await tap.point_at(f"{url}/v1")
        id = await tap.open(account=RolloutAccount("one", SpendingLimits(tokens=1)))
        async with agent(tap.port) as caller:
            statuses = [(await caller.ask(request(id))).status for _ in range(2)]
        calls = await tap.close(id)

    assert [200, 403] == statuses
    assert ["", "tokens: the rollout may use 1, and used 1"] == [each.error for each in calls]


async def test_an_account_ends_with_its_addresses(tap: Tap) -> None:
    """An account is deleted with its last address, and does not affect a later rollout."""
    async with backend(answering(said("yes"))) as url:
        await tap.point_at(f"{url}/v1")
        statuses = []
        for _ in range(2):
            id = await tap.open(account=RolloutAccount("one", SpendingLimits(calls=1)))
            async with agent(tap.port) as caller:
                statuses.append((await caller.ask(request(id))).status)
            await tap.close(id)

    assert [200, 200] == statuses


async def test_several_taps_cannot_count_together(tap: Tap) -> None:
    """Each tap sees only a part of the calls, so limits are refused with a message that names the option to remove."""
    controls: list[TapControl] = [tap.control, tap.control]
    with pytest.raises(InfraError, match="remove --agentbench-taps"):
        await Taps(controls).open(OpenAddress("x", limits=SpendingLimits(calls=1)))
