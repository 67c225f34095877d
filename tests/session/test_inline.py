"""Refusals of the pool while a rollout runs inside its test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from pytest_agentbench.errors import InfraError, MissingError
from pytest_agentbench.records import Access, Rollout, RolloutKey
from pytest_agentbench.rollouts.questions_of_tests import QuestionRefused
from pytest_agentbench.session.inline import PooledTap, submit
from pytest_agentbench.session.pool_connection import PoolConnection
from tests.session.test_pool_connection import answers, pool


async def closed(connection: PoolConnection) -> None:
    await PooledTap(connection).close("1")


async def told(connection: PoolConnection) -> None:
    await PooledTap(connection).said("1")


async def opened(connection: PoolConnection) -> None:
    await PooledTap(connection).open(RolloutKey("shop", "shop-0"), Access())


async def written(connection: PoolConnection) -> None:
    submit(connection, Rollout("shop", "shop-0", "default", 1, "ok"))


@pytest.mark.parametrize("question", [closed, told, opened, written], ids=["close", "said", "open", "submit"])
@pytest.mark.parametrize(("status", "error"), [("infra_error", InfraError), ("missing", MissingError)])
async def test_a_refusal_is_no_answer(question: Callable[[PoolConnection], Awaitable[None]], status: str, error: type[Exception]) -> None:
    """A refusal raises an error. It is never taken for an empty list of calls or an empty record."""
    with pool(answers(QuestionRefused("the pool is full", status))) as connection, pytest.raises(error, match="the pool is full"):
        await question(connection)
